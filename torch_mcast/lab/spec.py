"""Description of a lab: hosts, links, switches and faults, as plain data.

Everything is checked at construction and can be converted to JSON and back, so that a lab can be
described on a command line, kept in a state file and attached to from another process.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch_mcast.lab.units import parse_probability, parse_rate, parse_size

MULTICAST_MODES = ("flood", "snooping", "blocked")
DIRECTIONS = ("in", "out")
PROTOCOLS = ("udp", "tcp", "all")
UNITS = ("datagram", "superpacket")


@dataclass(frozen=True)
class Fault:
    """Random damage on the links of some hosts.

    kind: ``loss`` drops a frame, ``bits`` flips one bit of its transport payload (checksums are
        left as they were; veth does not verify them, so the damage reaches the application).
    hosts: names ("h2") or empty for every host.
    direction: ``in`` = towards the host, ``out`` = from it (applied where it enters the switch).
    protocol: ``udp``, ``tcp`` or ``all`` (everything, ARP too).
    unit: ``datagram`` turns segmentation offloads off on that link, so that each frame is one
        datagram; ``superpacket`` leaves them on: one event hits up to 64 KB of payload.
    """

    kind: str
    probability: float
    hosts: tuple[str, ...] = ()
    direction: str = "in"
    protocol: str = "udp"
    unit: str = "datagram"

    def __post_init__(self) -> None:
        object.__setattr__(self, "probability", parse_probability(self.probability))
        object.__setattr__(self, "hosts", tuple(self.hosts))
        _one_of("kind", self.kind, ("loss", "bits"))
        _one_of("direction", self.direction, DIRECTIONS)
        _one_of("protocol", self.protocol, PROTOCOLS)
        _one_of("unit", self.unit, UNITS)
        if self.kind == "bits" and self.protocol == "all":
            raise ValueError("bit errors need a protocol: udp or tcp")

    @classmethod
    def parse(cls, kind: str, text: str) -> Fault:
        """Parses ``1%`` or ``0.01,host=h2+h3,direction=out,protocol=all,unit=superpacket``."""
        probability, *pairs = text.split(",")
        fields: dict[str, Any] = {}
        for pair in pairs:
            key, separator, value = pair.partition("=")
            if not separator or key not in ("host", "direction", "protocol", "unit"):
                raise ValueError(
                    f"{text!r}: {pair!r} is none of host=, direction=, protocol=, unit="
                )
            if key == "host":
                fields["hosts"] = tuple(value.split("+"))
            else:
                fields[key] = value
        return cls(kind, parse_probability(probability), **fields)


def Loss(probability: float | str, **fields: Any) -> Fault:
    """Returns random loss; fields as of Fault."""
    return Fault("loss", parse_probability(probability), **fields)


def BitErrors(probability: float | str, **fields: Any) -> Fault:
    """Returns random single-bit errors; fields as of Fault. probability is per frame."""
    return Fault("bits", parse_probability(probability), **fields)


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r} is none of {', '.join(allowed)}")


@dataclass(frozen=True)
class LabSpec:
    """A lab.

    hosts: worker hosts h1..hN; aggregators: further hosts a1..aM with that role, on each of which
        `torch-mcast aggregator` runs with aggregator_options; None: it is not started. The
        ranks get their addresses (MCAST_AGGREGATORS).
    engine_options: `torch-mcast engine run` runs with these on each worker host, and its ranks use
        it (MCAST_ENGINE); None: ranks do their networking themselves.
    ranks_per_host: processes that `run` and the worker pool start on each worker host.
    rate: bits/s of each link, both directions ("1gbit"), None = no shaping. host_rates: exceptions.
    mtu: bytes of IP packet. burst: bytes that pass a shaper at full speed (small messages do not
        see the rate). queue: bytes that wait before a shaper drops.
    racks: hosts per rack (aggregators count after the workers); each rack has a switch of its own
        with an uplink of uplink_rate to a spine. Empty: one switch.
    aggregator_racks: for each aggregator the number of its rack, from 1 on, or 0: at the spine. Then
        `racks` counts workers only, and ranks get their rack (MCAST_RACK, MCAST_AGGREGATORS): the
        aggregators in racks are the leaves of a tree, those at the spine its top.
    tx_queues: transmit queues per NIC. With more than one, each queue has its own shaper at the
        link's rate (the kernel has no shaper above several queues), so a host that uses k queues
        can send at k times the rate; the receiver's port still holds it.
    multicast: ``flood`` (a switch without snooping), ``snooping`` (with a querier: members only),
        ``blocked`` (unknown multicast is not forwarded, as where memberships have aged out). Empty:
        snooping where there are aggregators, which a flood would fill the links of, else flood.
    ipv6: hosts have addresses of IPv6 only (but for loopback). Then `multicast` is ``flood`` or
        ``snooping`` (MLD): a switch that forwards no unknown multicast carries no neighbour discovery.
    multicast_rate: bits/s of UDP multicast that the switch takes from each host, as gateways of clouds
        limit it; what is more is dropped. None: as much as the link carries.
    """

    hosts: int = 2
    ranks_per_host: int = 1
    aggregators: int = 0
    aggregator_options: tuple[str, ...] | None = ()
    engine_options: tuple[str, ...] | None = None
    rate: int | None = None
    mtu: int = 1500
    burst: int = 256 << 10
    queue: int = 4 << 20
    host_rates: dict[str, int | None] = field(default_factory=dict)
    racks: tuple[int, ...] = ()
    aggregator_racks: tuple[int, ...] = ()
    uplink_rate: int | None = None
    tx_queues: int = 1
    multicast: str = ""
    multicast_rate: int | None = None
    ipv6: bool = False
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("rate", parse_rate(self.rate))
        put("uplink_rate", parse_rate(self.uplink_rate))
        put("multicast_rate", parse_rate(self.multicast_rate))
        put("burst", parse_size(self.burst))
        put("queue", parse_size(self.queue))
        put("host_rates", {name: parse_rate(rate) for name, rate in self.host_rates.items()})
        put("racks", tuple(self.racks))
        put("aggregator_racks", tuple(self.aggregator_racks))
        put("faults", tuple(self.faults))
        if self.aggregator_options is not None:
            put("aggregator_options", tuple(self.aggregator_options))
        if self.engine_options is not None:
            put("engine_options", tuple(self.engine_options))
        put("multicast", self.multicast or ("snooping" if self.aggregators else "flood"))
        _one_of("multicast", self.multicast, MULTICAST_MODES)
        if self.ipv6 and (self.multicast == "blocked" or self.multicast_rate is not None):
            raise ValueError("multicast='blocked' and multicast_rate work in IPv4 labs only")
        if self.hosts < 1 or self.ranks_per_host < 1 or self.aggregators < 0:
            raise ValueError("a lab needs at least one host and one rank per host")
        if self.hosts + self.aggregators > 250:
            raise ValueError("at most 250 hosts fit in the lab's /24 network")
        if not 1 <= self.tx_queues <= 64:
            raise ValueError("tx_queues must be 1 to 64")
        if not 576 <= self.mtu <= 65535:
            raise ValueError("mtu must be 576 to 65535 bytes")
        inside = self.hosts + (0 if self.aggregator_racks else self.aggregators)
        if self.racks and (min(self.racks) < 1 or sum(self.racks) != inside):
            raise ValueError(f"racks {list(self.racks)} do not add up to {inside} hosts")
        self._check_tree()
        named = set(self.host_rates).union(*(fault.hosts for fault in self.faults), ())
        unknown = named - set(self.host_names)
        if unknown:
            raise ValueError(f"unknown hosts {sorted(unknown)}; there are {self.host_names}")

    def _check_tree(self) -> None:
        where = self.aggregator_racks
        if where and (
            len(where) != self.aggregators or min(where) < 0 or max(where) > len(self.racks)
        ):
            raise ValueError(
                f"aggregator_racks {list(where)}: expected {self.aggregators} numbers from 0 to "
                f"{len(self.racks)}"
            )

    @property
    def host_names(self) -> list[str]:
        """Returns workers first, then aggregators; the position is the host's number from 0."""
        return [f"h{i + 1}" for i in range(self.hosts)] + [
            f"a{i + 1}" for i in range(self.aggregators)
        ]

    @property
    def world_size(self) -> int:
        return self.hosts * self.ranks_per_host

    def rate_of(self, host: str) -> int | None:
        """Returns bits per second of the host's link, None if it is not shaped."""
        return self.host_rates.get(host, self.rate)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabSpec:
        return cls(**{**data, "faults": tuple(Fault(**fault) for fault in data["faults"])})
