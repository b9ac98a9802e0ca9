"""Random loss, bit errors, cuts and a rate limit for multicast, as nftables rules at the ingress of
a device.

Damage towards a host is applied where its NIC receives; damage from a host is applied where the
switch's port receives, that is after the sender's shaper. Each device has one table, rewritten as a
whole when its faults change, with a counter per rule.

A bit error flips one bit at one of a few places behind the transport header. nftables leaves the
UDP/TCP checksum alone for such raw writes, and on veth nobody verifies it (the frame counts as
"checksum not yet computed"), so the damage reaches the receiving program, which needs a checksum of
its own to detect it. Frames shorter than the place pass undamaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_mcast.lab import system
from torch_mcast.lab.spec import Fault, LabSpec
from torch_mcast.lab.topology import NIC, Host

_SCALE = 10_000_000
# Bytes from the start of the UDP/TCP header, all beyond it: in mcast's datagram header (8..40 of
# UDP), and in its payload, near and far.
_PLACES = (33, 47, 61, 200, 777, 1201)
_OFFLOADS = "tso {0} gso {0} tx-udp-segmentation {0}"


@dataclass(frozen=True)
class Device:
    """The device at which faults of one host and direction are applied."""

    host: str
    direction: str
    namespace: str
    name: str

    @property
    def table(self) -> str:
        return f"lab_{self.name.replace('-', '_')}"


def devices(host: Host, switch: str) -> dict[str, Device]:
    return {
        "in": Device(host.name, "in", host.namespace, NIC),
        "out": Device(host.name, "out", switch, host.port),
    }


def applies(fault: Fault, device: Device) -> bool:
    return fault.direction == device.direction and (not fault.hosts or device.host in fault.hosts)


def limit_rule(rate: int, burst: int) -> str:
    """Returns a rule that drops multicast above `rate` bits/s once `burst` bytes of it have passed."""
    return (
        f"ip daddr 224.0.0.0/4 ip protocol udp limit rate over {max(1, rate // 8)} bytes/second "
        f'burst {burst} bytes counter drop comment "multicast rate"'
    )


def rules(faults: list[Fault], silent: bool, limit: str = "") -> list[str]:
    """Returns nft rules in order. silent: the cable is cut and neither end sees it. limit: limit_rule()."""
    if silent:
        return ['counter drop comment "cut"']
    out = [limit] if limit else []
    for fault in faults:
        match = "" if fault.protocol == "all" else f"meta l4proto {fault.protocol} "
        # Rules share the probability evenly: in nearly all cases at most one of the places is hit.
        places = _PLACES if fault.kind == "bits" else (0,)
        scaled = round(fault.probability / len(places) * _SCALE)
        for index, place in enumerate(places):
            # nft refuses a comparison that is always true.
            chance = match + (f"numgen random mod {_SCALE} < {scaled} " if scaled < _SCALE else "")
            if fault.kind == "loss":
                out.append(chance + 'counter drop comment "loss"')
            else:
                at = f"@th,{place * 8},8"
                out.append(f'{chance}{at} set {at} ^ {1 << index} counter comment "bits"')
    return out


def script(device: Device, faults: list[Fault], silent: bool, limit: str = "") -> str:
    """Returns an nft script that replaces the device's table; without rules it only removes it."""
    lines = [f"table netdev {device.table}", f"delete table netdev {device.table}"]
    body = rules(faults, silent, limit)
    if body:
        lines += [
            f"table netdev {device.table} {{ chain ingress {{",
            f'type filter hook ingress device "{device.name}" priority 0; policy accept;',
            *body,
            "}",
            "}",
        ]
    return "\n".join(lines) + "\n"


def offload_script(device: Device, host: Host, single: bool) -> tuple[str, str]:
    """Returns (namespace, shell script) that sets whether the link carries super-packets or single
    datagrams.

    The sending end must split them; the receiving end must not join them again before the rules.
    """
    sender = host.port if device.direction == "in" else NIC
    namespace = host.namespace if device.direction == "out" else ""
    state = _OFFLOADS.format("off" if single else "on")
    return namespace, f"ethtool -K {sender} {state}"


def apply(
    hosts: list[Host],
    switch: str,
    spec: LabSpec,
    faults: list[Fault],
    silent: set[str],
    before: set[tuple[str, str]],
) -> set[tuple[str, str]]:
    """Gives the lab exactly these faults. before/result: (host, direction) that have rules."""
    after = set()
    scripts: dict[str, list[str]] = {}
    shells: dict[str, list[str]] = {}
    for host in hosts:
        for direction, device in devices(host, switch).items():
            mine = [fault for fault in faults if applies(fault, device) and fault.probability > 0]
            cut = host.name in silent
            rate = spec.multicast_rate if direction == "out" else None
            limit = limit_rule(rate, spec.burst) if rate is not None else ""
            key = (host.name, direction)
            if not mine and not cut and not limit and key not in before:
                continue
            if mine or cut or limit:
                after.add(key)
            scripts.setdefault(device.namespace, []).append(script(device, mine, cut, limit))
            namespace, line = offload_script(
                device, host, any(fault.unit == "datagram" for fault in mine)
            )
            shells.setdefault(namespace or switch, []).append(line)
    for namespace, lines in shells.items():
        system.shell(namespace, "\n".join(lines))
    for namespace, parts in scripts.items():
        system.nft(namespace, "".join(parts))
    return after


def read_counters(hosts: list[Host], switch: str) -> list[dict[str, Any]]:
    """Returns what the rules have hit: [{host, direction, kind, packets, bytes}], summed per kind."""
    totals: dict[tuple[str, str, str], list[int]] = {}
    owners = {(d.namespace, d.table): d for host in hosts for d in devices(host, switch).values()}
    for namespace in sorted({namespace for namespace, _ in owners}):
        listing = system.call_json(
            ["ip", "netns", "exec", namespace, "nft", "-j", "list", "ruleset", "netdev"]
        )
        for entry in listing["nftables"]:
            rule = entry.get("rule")
            device = rule and owners.get((namespace, rule["table"]))
            if not device:
                continue
            for part in rule["expr"]:
                if "counter" in part:
                    kind = rule.get("comment", "loss")
                    total = totals.setdefault((device.host, device.direction, kind), [0, 0])
                    total[0] += part["counter"]["packets"]
                    total[1] += part["counter"]["bytes"]
    return [
        {"host": host, "direction": direction, "kind": kind, "packets": n, "bytes": size}
        for (host, direction, kind), (n, size) in sorted(totals.items())
    ]
