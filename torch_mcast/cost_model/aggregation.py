"""Bytes that pass each NIC when aggregators fold a part of a reduction, and the least time they
take.

All loads are multiples of S, the bytes of one host's whole input, per direction of a link. P is the
number of hosts (a host sends one contribution, whatever its ranks), s the aggregators in units of a
worker's link, f the part of the vector that they fold, c = (P-1)/P. The time is that of the busiest
direction of any NIC: a bound set by links, not by CPUs.

Sources of the formulas. Dedicated servers with unicast results, P/s in and out: Optcast
(osrg/optcast, its reduction servers), BytePS (OSDI'20). A result that a switch multicasts to all:
SwitchML (NSDI'21), Trio-ML (SIGCOMM'22). A split between servers and workers, f = 2c / (P/s - 1 +
2c): BytePS has the idea; with results by multicast it gains 1 + s(P-2)/P^2 over rings. Rings and
the workers' own multicast are in torch_mcast.bench.formulas. Ways O and R are this project's:
docs/aggregation.md.

csrc/aggregation/plan/placement.cpp plans with the same loads in integers; tests/python/test_cost_model.py
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_mcast.bench import formulas

OPS = ("all_reduce", "reduce_scatter", "ag_rs")

# Equal to csrc/aggregation/plan/placement.h.
LEAST_BYTES = 1 << 20
STATION_SEGMENTS = 4
# Equal to csrc/core/collective/plan.cpp.
_SEGMENT = (4 << 10, 60 << 10)


@dataclass(frozen=True)
class Loads:
    """Multiples of S at one worker, at one aggregator (None: the way has none; in a tree the busiest leaf)
    and at one aggregator at the top of a tree."""

    worker_in: float
    worker_out: float
    aggregator_in: float | None = None
    aggregator_out: float | None = None
    top_in: float | None = None
    top_out: float | None = None
    speed: float = 1.0  # of an aggregator's link, in units of a worker's

    @property
    def times(self) -> tuple[float, ...]:
        """Returns the time of each direction of each NIC, in units of S/B."""
        servers = (self.aggregator_in, self.aggregator_out, self.top_in, self.top_out)
        return (self.worker_in, self.worker_out, *((load or 0.0) / self.speed for load in servers))

    @property
    def time(self) -> float:
        return max(self.times)


def _gather(hosts: int) -> tuple[float, float]:
    """Returns loads in and out of a worker in an all-gather by multicast."""
    return (hosts - 1) / hosts, 1 / hosts


def ring(op: str, hosts: int) -> Loads:
    """Every received byte is passed on: in = out."""
    load = formulas.ring_send_bytes(op, 1, hosts)
    return Loads(load, load)


def workers_only(op: str, hosts: int) -> Loads:
    """This project without aggregators: contributions to their owners, results by multicast."""
    return Loads(
        formulas.receive_bytes(op, 1, hosts), formulas.multicast_send_bytes(op, 1, hosts) or 0.0
    )


def ideal_switch(op: str, hosts: int) -> Loads:
    """Every host sends its vector once and receives its result once, whatever load the switch has
    (SHARP; an ideal SwitchML or Trio-ML): T = S/B."""
    return Loads(1 / hosts if op == "reduce_scatter" else 1.0, 1.0)


@dataclass(frozen=True)
class Servers:
    """`hosts` workers and `links` worker links' worth of aggregators, `count` of them."""

    hosts: int
    count: int
    links: float

    def _loads(self, worker_in: float, worker_out: float, all_in: float, all_out: float) -> Loads:
        count = self.count
        speed = self.links / count
        return Loads(worker_in, worker_out, all_in / count, all_out / count, speed=speed)

    def unicast(self, op: str) -> Loads:
        """Everything on aggregators, results by unicast: Optcast, BytePS. The all-gather beside a
        reduce-scatter is unicast among the workers."""
        hosts = self.hosts
        if op == "all_reduce":
            return self._loads(1.0, 1.0, hosts, hosts)
        beside = (hosts - 1) / hosts if op == "ag_rs" else 0.0
        return self._loads(1 / hosts + beside, 1 + beside, hosts, 1.0)

    def by_owner(self, op: str, f: float, kept: bool, ratio: int) -> Loads:
        """Way O: an aggregator hands a segment's result to the segment's owner, who multicasts it in an
        all_reduce. `kept`: the owner adds its own shard itself, to a partial result whose elements are
        `ratio` times as long."""
        hosts, c = self.hosts, (self.hosts - 1) / self.hosts
        result, sent = (ratio, hosts - 1) if kept else (1, hosts)
        worker_in = f * result / hosts + (1 - f) * c
        worker_out = f * sent / hosts + (1 - f) * c
        if op != "reduce_scatter":
            got, cast = _gather(hosts)
            worker_in, worker_out = worker_in + got, worker_out + cast
        return self._loads(worker_in, worker_out, f * sent, f * result)

    def by_server(self, f: float) -> Loads:
        """Way R, all_reduce only: the aggregator multicasts its results itself, as SwitchML's and Trio-ML's
        switches do. The workers fold the rest."""
        c = (self.hosts - 1) / self.hosts
        return self._loads(f + 2 * (1 - f) * c, 1.0, f * self.hosts, f)


def best_part(loads: Callable[[float], Loads], most: float = 1.0) -> float:
    """Returns the f in [0, most] with the least time, the smallest of several. Times are the
    largest of linear functions, so it is an end or an intersection of two of them."""
    lines = list(zip(loads(0.0).times, loads(1.0).times, strict=True))
    parts = {0.0, most}
    for a0, a1 in lines:
        for b0, b1 in lines:
            slope = (b1 - b0) - (a1 - a0)
            if slope and 0 < (a0 - b0) / slope < most:
                parts.add((a0 - b0) / slope)
    return min(parts, key=lambda f: (round(loads(f).time, 12), f))


def careful_most(loads: Callable[[float], Loads]) -> float:
    """Returns the largest f with which a reduce_scatter alone takes at most 9/8 of its time on the
    workers."""
    first, last = loads(0.0), loads(1.0)
    limit = first.time * 9 / 8
    lines = zip(first.times, last.times, strict=True)
    return min([1.0, *((limit - a) / (b - a) for a, b in lines if b > limit)])


@dataclass(frozen=True)
class Plan:
    """part: f, 0 with `reason` if aggregators fold nothing. Times in S/B, of an all_reduce or of a
    reduce_scatter and an all_gather at once; served: way R's, alone: a reduce_scatter's."""

    reason: str
    part: float
    kept: bool
    planned: float
    workers: float
    alone: float
    served: float


@dataclass(frozen=True)
class Case:
    """Input of the planner. own: "sent", "kept" or "either"; mode: the setting `aggregate`. With a
    tree, `servers` are those at its top, `leaves` counts the others, and own is "sent"."""

    scatter: bool
    size: int
    members: int
    servers: Servers
    segment: int
    ratio: int = 1
    own: str = "sent"
    mode: str = "careful"
    tree: Tree | None = None
    leaves: int = 0

    def loads(self, op: str, part: float, kept: bool) -> Loads:
        """Returns the loads with `part` of the vector at the aggregators."""
        if self.tree:
            return self.tree.loads(op, part)
        return self.servers.by_owner(op, part, kept, self.ratio)

    @property
    def cost(self) -> int:
        """Returns the bytes that the detour must save on the busiest link."""
        parties = self.servers.hosts + self.servers.count + self.leaves
        return STATION_SEGMENTS * self.segment * parties

    def choose(self, kept: bool) -> tuple[float, float]:
        """Returns the time with the best part, and that part."""
        most = 1.0
        if self.scatter and self.mode == "careful":
            most = careful_most(lambda f: self.loads("reduce_scatter", f, kept))
        part = best_part(lambda f: self.loads("ag_rs", f, kept), most)
        return self.loads("ag_rs", part, kept).time, part

    def obstacle(self) -> str:
        """Returns why aggregators fold nothing, before any arithmetic; or ""."""
        shard = -(-self.size // self.members)
        if self.mode == "off":
            return "aggregate is off"
        if not self.servers.links:
            return "no stations"
        if self.servers.hosts < 3:
            return "fewer than 3 contributors"
        if self.size < LEAST_BYTES:
            return "less than 1 MiB"
        if -(-shard // self.segment) < STATION_SEGMENTS:
            return "fewer than 4 segments for a station"
        return ""


def plan(case: Case) -> Plan:
    """Plans as place() in csrc/aggregation/plan/placement.cpp does, in fractions instead of bisection."""
    servers, hosts = case.servers, case.servers.hosts
    workers = workers_only("ag_rs", hosts).time if hosts > 1 else 0.0
    alone = workers_only("reduce_scatter", hosts).time if hosts > 1 else 0.0
    reason = case.obstacle()
    if reason:
        return Plan(reason, 0.0, False, workers, workers, alone, workers)
    served = workers
    if not case.scatter and not case.tree:
        served = servers.by_server(best_part(servers.by_server)).time
    kept = case.own != "sent"
    planned, part = case.choose(kept)
    if case.own == "either" and case.choose(False)[0] < planned:
        kept = False
        planned, part = case.choose(False)
    if not part or (workers - planned) * case.size < case.cost:
        reason = "the gain is less than the cost"
        return Plan(reason, 0.0, False, workers, workers, alone, served)
    alone = case.loads("reduce_scatter", part, kept).time
    return Plan("placed", part, kept, planned, workers, alone, served)


def segment_bytes(hosts: int, incast: int = 2 << 20, chunk: int = 1408) -> int:
    """Returns the bytes of a contribution's frame, whole chunks: docs/protocol.md, section 11."""
    least, most = _SEGMENT
    return max(least, min(most, incast // (2 * max(1, hosts - 1)))) // chunk * chunk


@dataclass(frozen=True)
class Tree:
    """A leaf level in each rack and a top level outside: the leaves of a rack fold its contributions, the
    top folds the racks' sums and sends results straight to the owners (leaves relay nothing down, unlike
    Optcast's tree). racks: hosts of each; leaves: aggregators of each, or their links together; tops:
    likewise. A rack without leaves sends its contributions to the top. Partial sums are `ratio` times as
    long. The owner's own contribution is in its rack's sum."""

    racks: tuple[int, ...]
    leaves: tuple[float, ...]
    tops: float
    ratio: int = 1
    speed: float = 1.0  # of an aggregator's link

    def loads(self, op: str, f: float) -> Loads:
        flat = Servers(sum(self.racks), 1, 1.0).by_owner(op, f, False, 1)
        racks = tuple(zip(self.racks, self.leaves, strict=True))
        leaves = tuple((hosts, count) for hosts, count in racks if count)
        inputs = sum(self.ratio if count else hosts for hosts, count in racks)
        return Loads(
            flat.worker_in,
            flat.worker_out,
            max((f * hosts / count for hosts, count in leaves), default=None),
            max((f * self.ratio / count for _, count in leaves), default=None),
            f * inputs / self.tops,
            f / self.tops,
            self.speed,
        )

    def uplink(self, op: str, f: float, rack: int, leaves: bool = True) -> tuple[float, float]:
        """Returns the multiples of S that leave and enter a rack. Without `leaves` every
        contribution of the part f leaves it: the aggregators are outside."""
        hosts, total = self.racks[rack], sum(self.racks)
        beyond = (1 - f) * hosts * (total - hosts) / total  # to other racks' owners, and from there
        up = f * (self.ratio if leaves else hosts) + beyond
        down = f * hosts / total + beyond
        if op != "reduce_scatter":
            up, down = up + hosts / total, down + (total - hosts) / total
        return up, down


def grow_leaves(racks: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Distributes `count` leaves, one per rack and the rest to the racks with most hosts per leaf."""
    if count < len(racks):
        raise ValueError(f"{len(racks)} racks need a leaf each and a top: {count} leaves are left")
    leaves = [1] * len(racks)
    for _ in range(count - len(racks)):
        leaves[max(range(len(racks)), key=lambda r: racks[r] / leaves[r])] += 1
    return tuple(leaves)
