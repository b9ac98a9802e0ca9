"""Packet filters of this host: which rules accept the packets of a job, and which drop them.

rules      chains of rules that can be evaluated for packets
iptables   reads `iptables -S`
nft        reads `nft -j list ruleset`
"""
