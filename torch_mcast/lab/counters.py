"""Bytes and packets per NIC, switch port and NIC queue.

There are two kinds, never mixed: `tx_bytes`/`rx_bytes` are the device's own and count a
super-packet's headers once; `wire_bytes` come from the queueing discipline, which counts every
frame that the super-packet stands for (Ethernet header included, no preamble or FCS). A link's two
directions are the host's NIC (from the host) and the switch's port (towards the host)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from torch_mcast.lab import system
from torch_mcast.lab.topology import NIC, Host, Uplink


@dataclass
class Port:
    """One device: its own counters, the bytes that left through its queues as framed, and drops there."""

    tx_bytes: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    rx_packets: int = 0
    wire_bytes: int = 0
    wire_packets: int = 0
    queue_drops: int = 0
    queues: list[int] = field(default_factory=list)

    def __sub__(self, other: Port) -> Port:
        scalars = {name: getattr(self, name) - getattr(other, name) for name in _SCALARS}
        queues = [a - b for a, b in zip(self.queues, other.queues, strict=True)]
        return Port(**scalars, queues=queues)


_SCALARS = (
    "tx_bytes",
    "tx_packets",
    "rx_bytes",
    "rx_packets",
    "wire_bytes",
    "wire_packets",
    "queue_drops",
)


@dataclass
class Counters:
    """nics: host -> its eth0; ports: host -> the switch's port to it; uplinks: device -> port."""

    nics: dict[str, Port]
    ports: dict[str, Port]
    uplinks: dict[str, Port] = field(default_factory=dict)

    def __sub__(self, other: Counters) -> Counters:
        def minus(a: dict[str, Port], b: dict[str, Port]) -> dict[str, Port]:
            return {name: port - b[name] for name, port in a.items()}

        return Counters(
            minus(self.nics, other.nics),
            minus(self.ports, other.ports),
            minus(self.uplinks, other.uplinks),
        )

    @property
    def fabric_bytes(self) -> int:
        """Returns bytes as framed that crossed links, each link and direction counted separately."""
        groups = (self.nics, self.ports, self.uplinks)
        return sum(port.wire_bytes for group in groups for port in group.values())

    def sent(self, host: str) -> int:
        """Returns bytes as framed that the host put on its link."""
        return self.nics[host].wire_bytes

    def received(self, host: str) -> int:
        """Returns bytes as framed that the switch put on the host's link."""
        return self.ports[host].wire_bytes


def parse(links: list[dict[str, Any]], qdiscs: list[dict[str, Any]]) -> dict[str, Port]:
    """Returns the ports of one namespace from `ip -s -j link` and `tc -s -j qdisc`."""
    ports = {}
    for link in links:
        stats = link.get("stats64", {})
        tx, rx = stats.get("tx", {}), stats.get("rx", {})
        ports[link["ifname"]] = Port(
            tx.get("bytes", 0), tx.get("packets", 0), rx.get("bytes", 0), rx.get("packets", 0)
        )
    for qdisc in sorted(qdiscs, key=_queue_number):  # tc lists them in any order
        port = ports.get(qdisc.get("dev", ""))
        if port is None or qdisc["kind"] not in ("tbf", "pfifo", "mq"):
            continue
        if qdisc.get("root"):
            port.wire_bytes = qdisc.get("bytes", 0)
            port.wire_packets = qdisc.get("packets", 0)
            port.queue_drops = qdisc.get("drops", 0)
        if qdisc["kind"] != "mq" and (qdisc.get("root") or _queue_number(qdisc)):
            port.queues.append(qdisc.get("bytes", 0))
    return ports


def _queue_number(qdisc: dict[str, Any]) -> int:
    """Returns 1, 2, ... for the queue that a child of mq serves; 0 for a root."""
    major, _, minor = str(qdisc.get("parent", "")).partition(":")
    return int(minor, 16) if major == "1" else 0


def _read_namespace(namespace: str) -> dict[str, Port]:
    return parse(
        system.call_json(["ip", "-n", namespace, "-s", "-j", "link", "show"]),
        system.call_json(["tc", "-n", namespace, "-s", "-j", "qdisc", "show"]),
    )


def read(hosts: list[Host], switch: str, uplinks: list[Uplink]) -> Counters:
    """Reads all counters of a lab, one after the other (not at one instant: let traffic end before)."""
    with ThreadPoolExecutor(4) as pool:
        *per_host, ports = pool.map(_read_namespace, [h.namespace for h in hosts] + [switch])
    return Counters(
        {host.name: found[NIC] for host, found in zip(hosts, per_host, strict=True)},
        {host.name: ports[host.port] for host in hosts},
        {name: ports[name] for uplink in uplinks for name in (uplink.lower, uplink.upper)},
    )
