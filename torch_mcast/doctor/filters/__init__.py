"""Packet filters of this host: what lets the packets of a job in, and what does not.

rules      chains that can be asked about packets
iptables   reads `iptables -S`
nft        reads `nft -j list ruleset`
"""
