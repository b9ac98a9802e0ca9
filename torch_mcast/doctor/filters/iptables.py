"""Reads `iptables -S` (of both kinds of iptables) into rules."""

from __future__ import annotations

import ipaddress
import shlex

from torch_mcast.doctor.filters.rules import Chain, Condition, Fit, Packets, Rule

# Modules without a condition of their own; their options have conditions.
_SILENT = {"tcp", "udp", "state", "conntrack", "pkttype", "addrtype", "multiport", "comment"}
_VERDICTS = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "RETURN": "return"}
# Targets after which the packet continues.
_PASSING = {
    "LOG",
    "NFLOG",
    "MARK",
    "CONNMARK",
    "TRACE",
    "CT",
    "SECMARK",
    "TCPMSS",
    "DSCP",
    "CLASSIFY",
}


def _unknown(packets: Packets) -> Fit:
    return Fit.MAYBE


def _interface(name: str) -> Condition:
    def fit(packets: Packets) -> Fit:
        if name.endswith("+"):
            return Fit.YES if packets.interface.startswith(name[:-1]) else Fit.NO
        return Fit.YES if packets.interface == name else Fit.NO

    return fit


def _protocol(name: str) -> Condition:
    names = {"2": "igmp", "6": "tcp", "17": "udp", "all": "all", "0": "all"}
    name = names.get(name, name)
    return lambda packets: Fit.YES if name in ("all", packets.protocol) else Fit.NO


def _network(text: str, source: bool) -> Condition:
    try:
        asked = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return _unknown
    return lambda packets: packets.fits_network(packets.source if source else packets.to, asked)


def any_of(conditions: list[Condition]) -> Condition:
    def fit(packets: Packets) -> Fit:
        fits = [condition(packets) for condition in conditions]
        if Fit.YES in fits:
            return Fit.YES
        return Fit.MAYBE if Fit.MAYBE in fits else Fit.NO

    return fit


def _ports(text: str) -> Condition:
    parts: list[Condition] = []
    for word in text.split(","):
        first, _, last = word.partition(":")
        if not (first or "0").isdigit() or not (last or first or "0").isdigit():
            return _unknown
        low, high = int(first or 0), int((last or "65535") if ":" in word else first)
        parts.append(lambda packets, low=low, high=high: packets.fits_ports(low, high))  # type: ignore[misc]
    return any_of(parts)


def _states(text: str) -> Condition:
    # Matches the first packet of a connection, and all of a multicast stream, which gets no
    # replies.
    return lambda packets: Fit.YES if "NEW" in text.upper().split(",") else Fit.NO


def _packet_type(text: str) -> Condition:
    # "host" and LOCAL match packets to one address of this host.
    def fit(packets: Packets) -> Fit:
        return Fit.YES if (text.lower() == "multicast") is packets.multicast else Fit.NO

    return (
        fit if text.lower() in ("multicast", "host", "unicast", "local") else lambda packets: Fit.NO
    )


_OPTIONS = {
    "-i": _interface,
    "-p": _protocol,
    "-s": lambda text: _network(text, True),
    "-d": lambda text: _network(text, False),
    "--dport": _ports,
    "--dports": _ports,
    "--state": _states,
    "--ctstate": _states,
    "--pkt-type": _packet_type,
    "--dst-type": _packet_type,
}


def _negated(condition: Condition) -> Condition:
    return lambda packets: condition(packets).negated()


def _rule(words: list[str], text: str) -> Rule:
    conditions: list[Condition] = []
    verdict, target, negate = "next", "", False
    at = 0
    while at < len(words):
        word, value = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word == "!":
            negate = True
            at += 1
            continue
        if word in ("-j", "-g"):
            known = _VERDICTS.get(value)
            if known is None:
                known = "next" if value in _PASSING else ("jump" if word == "-j" else "goto")
            # The rest are options of the target.
            return Rule(tuple(conditions), known, value, text)
        if word == "--comment" or (word in ("-m", "--match") and value in _SILENT):
            at += 2
            continue
        if word in _OPTIONS:
            condition = _OPTIONS[word](value)
            conditions.append(_negated(condition) if negate else condition)
            at += 2
        else:
            conditions.append(_unknown)
            at += 1
        negate = False
    return Rule(tuple(conditions), verdict, target, text)


def read(rules: str, label: str = "iptables") -> dict[str, Chain]:
    """Returns the chains of the table `filter`; INPUT is the one with a policy."""
    chains: dict[str, Chain] = {}
    for line in rules.splitlines():
        words = shlex.split(line)
        if len(words) < 2:
            continue
        name = words[1]
        chain = chains.setdefault(name, Chain(name, label=f"{label} {name}"))
        if words[0] == "-P" and name == "INPUT":
            chain.policy = "drop" if words[2] in ("DROP", "REJECT") else "accept"
        elif words[0] == "-A":
            chain.rules.append(_rule(words[2:], line))
    return chains
