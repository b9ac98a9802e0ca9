"""Reads `nft -j list ruleset` into rules: the chains that packets for this host go through."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from torch_mcast.doctor.filters.iptables import any_of
from torch_mcast.doctor.filters.rules import Chain, Condition, Fit, Packets, Rule

_FAMILIES = ("ip", "inet")
_HOOKS = ("prerouting", "input")
_INGRESS = ("netdev", "inet")
_PASSING = {"counter", "log", "mangle", "notrack", "meter", "set", "ct helper"}


def _unknown(packets: Packets) -> Fit:
    return Fit.MAYBE


def _network(value: Any, source: bool) -> Condition:
    if isinstance(value, dict) and "prefix" in value:
        text = f"{value['prefix']['addr']}/{value['prefix']['len']}"
    elif isinstance(value, dict) and "range" in value:
        ends = [ipaddress.IPv4Address(end) for end in value["range"]]
        nets = list(ipaddress.summarize_address_range(*ends))
        return any_of([_network(str(net), source) for net in nets])
    else:
        text = str(value)
    try:
        asked = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return _unknown
    return lambda packets: packets.fits_network(packets.source if source else packets.to, asked)


def _ports(value: Any) -> Condition:
    first, last = value["range"] if isinstance(value, dict) and "range" in value else (value, value)
    if not isinstance(first, int) or not isinstance(last, int):
        return _unknown
    return lambda packets: packets.fits_ports(first, last)


def _word(get: Any, value: Any) -> Condition:
    return lambda packets: Fit.YES if get(packets) == value else Fit.NO


def _interface(value: Any) -> Condition:
    name = str(value)
    if name.endswith("*"):
        return lambda packets: Fit.YES if packets.interface.startswith(name[:-1]) else Fit.NO
    return _word(lambda packets: packets.interface, name)


def _packet_type(value: Any) -> Condition:
    kinds = {"multicast": True, "host": False, "unicast": False, "local": False}
    if value not in kinds:
        return lambda packets: Fit.NO
    return _word(lambda packets: packets.multicast, kinds[value])


def _single(left: dict[str, Any], value: Any) -> Condition:
    """Returns the condition that `left` has this one value."""
    kind, row = next(iter(left.items()))
    if kind == "meta":
        key = row.get("key")
        if key in ("iifname", "iif"):
            return _interface(value)
        if key == "l4proto":
            return _word(lambda packets: packets.protocol, value)
        if key in ("nfproto", "protocol"):
            return _word(lambda packets: True, value in ("ipv4", "ip"))
        if key == "pkttype":
            return _packet_type(value)
    if kind == "payload":
        protocol, name = row.get("protocol"), row.get("field")
        if protocol == "ip" and name in ("saddr", "daddr"):
            return _network(value, name == "saddr")
        if protocol == "ip" and name == "protocol":
            return _word(lambda packets: packets.protocol, value)
        if protocol in ("ip6", "arp", "icmpv6", "icmp"):
            return lambda packets: Fit.NO
        if name == "dport" and protocol in ("udp", "tcp", "th"):
            ports = _ports(value)
            if protocol == "th":
                return ports
            return lambda packets: ports(packets) if packets.protocol == protocol else Fit.NO
    if kind == "ct" and row.get("key") == "state":
        return lambda packets: Fit.YES if value == "new" else Fit.NO
    if kind == "ct" and row.get("key") == "status":
        return lambda packets: Fit.NO  # the first packet of a connection, which is not translated
    if kind == "fib" and row.get("result") == "type" and row.get("flags") == ["daddr"]:
        return _packet_type(value)
    return _unknown


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self.rows = document.get("nftables", [])
        self.sets = {
            (s["family"], s["table"], s["name"]): s.get("elem", [])
            for row in self.rows
            for s in [row.get("set") or row.get("map")]
            if s
        }

    def values(self, right: Any, at: tuple[str, str]) -> list[Any] | None:
        """Returns the values that `right` may have; None: not known."""
        if isinstance(right, dict) and "set" in right:
            right = right["set"]
        elif isinstance(right, str) and right.startswith("@"):
            found = self.sets.get((*at, right[1:]))
            if found is None:
                return None
            right = found
        elif isinstance(right, dict) and not ({"prefix", "range"} & right.keys()):
            return None
        return right if isinstance(right, list) else [right]

    def match(self, row: dict[str, Any], at: tuple[str, str]) -> Condition:
        left, op = row["left"], row["op"]
        values = self.values(row["right"], at)
        if values is None or not isinstance(left, dict) or op not in ("==", "!=", "in"):
            return _unknown
        condition = any_of([_single(left, value) for value in values])
        return (lambda packets: condition(packets).negated()) if op == "!=" else condition

    def rules(self, row: dict[str, Any]) -> list[Rule]:
        at = (row["family"], row["table"])
        text = f"rule with handle {row.get('handle', '?')}"
        if comment := row.get("comment"):
            text += f' ("{comment}")'
        conditions: list[Condition] = []
        for part in row.get("expr", []):
            kind, value = next(iter(part.items())) if isinstance(part, dict) else (str(part), {})
            if kind == "match":
                conditions.append(self.match(value, at))
            elif kind in ("accept", "drop", "return"):
                return [Rule(tuple(conditions), kind, text=text)]
            elif kind in ("reject", "queue", "synproxy", "tproxy"):
                return [
                    Rule(tuple(conditions), "drop" if kind == "reject" else "unknown", text=text)
                ]
            elif kind in ("jump", "goto"):
                return [Rule(tuple(conditions), kind, value["target"], text)]
            elif kind == "vmap":
                return self.vmap(value, conditions, at, text)
            elif kind not in _PASSING:
                conditions.append(_unknown)
        return []

    def vmap(
        self, row: dict[str, Any], conditions: list[Condition], at: tuple[str, str], text: str
    ) -> list[Rule]:
        found = []
        pairs = self.values(row["data"], at)
        if pairs is None or not isinstance(row["key"], dict):
            return [Rule(tuple(conditions), "unknown", text=text)]
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], dict):
                return [Rule(tuple(conditions), "unknown", text=text)]
            verdict, target = next(iter(pair[1].items()))
            name = target["target"] if isinstance(target, dict) else ""
            here = (*conditions, _single(row["key"], pair[0]))
            found.append(Rule(here, verdict, name, text))
        return found


def read(text: str, interface: str, without: frozenset[tuple[str, str]]) -> dict[str, Chain]:
    """Raises ValueError if the text is not nft's output. `without`: tables (family, name) that
    iptables covers."""
    reader = _Reader(json.loads(text))
    chains: dict[str, Chain] = {}

    def name_of(family: str, table: str, chain: str) -> str:
        return f"{family} {table} {chain}"

    for row in reader.rows:
        if made := row.get("chain"):
            if (made["family"], made["table"]) in without:
                continue
            name = name_of(made["family"], made["table"], made["name"])
            chain = chains[name] = Chain(name, label=f"nftables {name}")
            hook, family = made.get("hook"), made["family"]
            comes_in = hook in _HOOKS and family in _FAMILIES and made.get("type") == "filter"
            comes_in |= hook == "ingress" and family in _INGRESS and made.get("dev") == interface
            if comes_in:
                chain.policy = made.get("policy", "accept")
    for row in reader.rows:
        if (made := row.get("rule")) and (made["family"], made["table"]) not in without:
            home = chains.get(name_of(made["family"], made["table"], made["chain"]))
            if home is None:
                continue
            for rule in reader.rules(made):
                target = rule.target and name_of(made["family"], made["table"], rule.target)
                home.rules.append(Rule(rule.conditions, rule.verdict, target, rule.text))
    return chains
