"""Time of a collective between the GPUs of H hosts with L GPUs each, by the ways it can take.

S is the size as nccl-tests counts it, P = H L. An operation is cut into parts that pass a row of stages at
the same time: copies inside a GPU, PCIe out of it, the engine (NIC and lane), PCIe into it, GPU to GPU.
Its time is that of the busiest resource and, of every other one, the time of one part.

    route   inside a host                                between hosts
    rails   each GPU pulls from its neighbours           rank k of each host exchanges its share by multicast
    peer    the same                                     (one host only)
    host    all GPUs through pinned host memory          the engine, as it is without the other routes
    nccl    NCCL's ring                                  NCCL's ring; a tree for all_reduce of two hosts

docs/gpu-estimates.md has the formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_mcast.bench import formulas
from torch_mcast.cost_model.constants import Constant

OPS = ("all_gather", "broadcast", "reduce_scatter", "all_reduce")
ROUTES = ("rails", "peer", "nccl", "host")
PEERS = ("nvlink", "pcie")

_SLOTS = 4  # parts of an operation that are on their way at the same time
_LEAST_PART = 64 << 10
_LANES = 2  # a group's rings: gathers and reductions


@dataclass(frozen=True)
class Cluster:
    """rate: bits/s of all NICs of a host together, per direction; channels: rails side by side of each
    GPU; peers: the link between the GPUs of a host; ring: bytes of each ring memory."""

    hosts: int
    gpus: int
    rate: int
    channels: int = 1
    peers: str = "nvlink"
    ring: int = 64 << 20

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus


@dataclass(frozen=True)
class Term:
    """Bytes that pass one resource, and its speed in bytes/s. constant: where the speed comes from."""

    name: str
    bytes: float
    speed: float
    constant: str

    @property
    def seconds(self) -> float:
        return self.bytes / self.speed


@dataclass(frozen=True)
class Estimate:
    """parts: how many the operation is cut into; 0 if the route does not cut. core_seconds: CPU time of
    the lanes of a host; pinned: host memory, of an operation on route host, else of a group."""

    route: str
    op: str
    terms: tuple[Term, ...]
    parts: float = 0.0
    core_seconds: float = 0.0
    pinned: float = 0.0
    unavailable: str = ""

    @property
    def busiest(self) -> Term:
        return max(self.terms, key=lambda term: term.seconds)

    @property
    def first_part(self) -> float:
        """Seconds until the first part has passed the stages before and after the busiest one. The engine
        is one stage: its lanes and NIC work on the same part."""
        if not self.parts:
            return 0.0
        busiest = self.busiest.name
        engine = [term.seconds for term in self.terms if term.name in ("NIC", "lane")]
        others = [term.seconds for term in self.terms if term.name not in ("NIC", "lane", busiest)]
        if engine and busiest not in ("NIC", "lane"):
            others.append(max(engine))
        return sum(others) / self.parts

    @property
    def seconds(self) -> float:
        return self.busiest.seconds + self.first_part


@dataclass(frozen=True)
class Share:
    """Multiples of S of one GPU in routes rails and peer: PCIe out and in, GPU to GPU (the busier
    direction), copies and folds inside the GPU; and of a lane, sent plus received."""

    out: float
    into: float
    peers: float
    copies: float
    lane: float


def share_of(op: str, hosts: int, gpus: int) -> Share:
    own, all_ranks, neighbours = 1 / gpus, 1 / (hosts * gpus), (gpus - 1) / gpus
    if op == "all_gather":  # publish its block, pull the neighbours' rows, copy its own
        return Share(all_ranks, own, neighbours, all_ranks + own, own)
    if (
        op == "broadcast"
    ):  # on the root's host every neighbour pulls all shares from the root's ring
        return Share(own, own, gpus - 1, 1, own)
    lane = 2 * (hosts - 1) * all_ranks
    if op == "reduce_scatter":  # publish all blocks, fold a row of every ring
        return Share(own, all_ranks, neighbours, 2, lane)
    # Fold a share of every ring, then pull the neighbours' results.
    return Share(own, own, 2 * neighbours, 2 + own, lane + own)


def parts_of(op: str, size: float, cluster: Cluster) -> tuple[float, float]:
    """(parts, bytes of a part of a block or share). A slot of a ring holds a part of everything that
    passes the ring. Parts are not rounded to chunks, so that times are monotone."""
    hosts, gpus = cluster.hosts, cluster.gpus
    blocks = op in ("all_gather", "reduce_scatter")
    in_host_memory = 0 if hosts < 2 else hosts + 1 if blocks else 1
    on_the_gpu = {
        "all_gather": hosts,
        "broadcast": gpus,
        "reduce_scatter": hosts * gpus,
        "all_reduce": gpus + 1,
    }
    part = cluster.ring / _SLOTS / max(in_host_memory, on_the_gpu[op] if gpus > 1 else 0, 1)
    return max(1.0, size / (cluster.ranks if blocks else gpus) / part), part


class Model:
    """Estimates of operations of `size` bytes on one cluster."""

    def __init__(self, cluster: Cluster, size: float, constants: Mapping[str, Constant]) -> None:
        self.cluster, self.size = cluster, size
        self._speed = {name: constant.per_second for name, constant in constants.items()}

    def estimate(self, route: str, op: str) -> Estimate:
        made = {
            "rails": self._exchanged,
            "peer": self._exchanged,
            "nccl": self._nccl,
            "host": self._staged,
        }
        reason = self._obstacle(route, op)
        if reason:
            return Estimate(route, op, (), unavailable=reason)
        return made[route](route, op)

    def _obstacle(self, route: str, op: str) -> str:
        cluster = self.cluster
        if cluster.ranks < 2:
            return "one GPU"
        if route == "rails" and cluster.hosts < 2:
            return "one host: route peer"
        if route == "peer" and cluster.hosts > 1:
            return "several hosts: route rails"
        if route in ("rails", "peer"):
            part = parts_of(op, self.size, cluster)[1]
            if part < _LEAST_PART:
                needed = -(-cluster.ring * _LEAST_PART // part)
                return f"--ring must be at least {needed / (1 << 20):.0f} MiB"
        return ""

    def _nic(self, size: float) -> list[Term]:
        if self.cluster.hosts < 2:
            return []
        speed = self.cluster.rate / 8 * self._speed["link_share"]
        return [Term("NIC", size, speed, "link_share")]

    def _lane(self, share: Share, channels: int) -> list[Term]:
        if self.cluster.hosts < 2:
            return []
        speed = channels * self._speed["lane"]
        return [Term("lane", share.lane * self.size, speed, "lane")]

    def _between(self, size: float, out: float = 0.0, into: float = 0.0) -> list[Term]:
        """PCIe of a GPU, `out` and `into`, and `size` between the GPUs of a host."""
        beside = size if self.cluster.peers == "pcie" else 0.0
        pcie = self._speed["pcie"]
        terms = [
            Term(name, count + beside, pcie, "pcie")
            for name, count in (("PCIe out", out), ("PCIe in", into))
        ]
        if self.cluster.peers == "nvlink" and self.cluster.gpus > 1:
            terms.append(Term("NVLink", size, self._speed["nvlink"], "nvlink"))
        return [term for term in terms if term.bytes]

    def _exchanged(self, route: str, op: str) -> Estimate:
        """Routes rails and peer."""
        cluster, size = self.cluster, self.size
        share = share_of(op, cluster.hosts, cluster.gpus)
        crossing = cluster.hosts > 1  # host memory, and the network
        terms = [
            *self._nic(formulas.receive_bytes(op, 1, cluster.hosts) * size),
            *self._lane(share, cluster.channels),
            *self._between(
                share.peers * size,
                share.out * size if crossing else 0.0,
                share.into * size if crossing else 0.0,
            ),
        ]
        if cluster.gpus > 1:
            copies = share.copies * size
            terms.append(
                Term("device memory", copies, self._speed["device_memory"], "device_memory")
            )
        pinned = _LANES * cluster.channels * cluster.gpus * cluster.ring if crossing else 0
        parts = parts_of(op, size, cluster)[0]
        return Estimate(route, op, tuple(terms), parts, self._core_seconds(share), pinned)

    def _core_seconds(self, share: Share) -> float:
        if self.cluster.hosts < 2:
            return 0.0
        return self.cluster.gpus * share.lane * self.size / self._speed["lane"]

    def _nccl(self, route: str, op: str) -> Estimate:
        cluster, size = self.cluster, self.size
        ring = (cluster.ranks - 1) / cluster.ranks * size
        inside = {"broadcast": size, "all_reduce": 2 * ring}.get(op, ring)
        between = size if op == "all_reduce" and cluster.hosts == 2 else inside
        terms = self._nic(between)
        if cluster.gpus > 1:
            terms += self._between(inside)
        return Estimate(route, op, tuple(terms))

    def _staged(self, route: str, op: str) -> Estimate:
        """Route host: the speed of the copies through host memory was measured as a whole."""
        cluster, size = self.cluster, self.size
        share = share_of(op, cluster.hosts, cluster.gpus)
        block = 1 / cluster.ranks
        out, into = {"all_gather": (block, 1.0), "reduce_scatter": (1.0, block)}.get(op, (1.0, 1.0))
        name = f"host_{op}" if op in ("reduce_scatter", "all_reduce") else "host_gather"
        pcie = self._speed["pcie"]
        terms = [
            *self._nic(formulas.receive_bytes(op, 1, cluster.hosts) * size),
            *self._lane(share, 1),
            Term("PCIe out", out * size, pcie, "pcie"),
            Term("PCIe in", into * size, pcie, "pcie"),
            Term("staging", size, self._speed[name], name),
        ]
        pinned = cluster.gpus * size * (1 + block if op in ("all_gather", "reduce_scatter") else 1)
        return Estimate(route, op, tuple(terms), 0.0, self._core_seconds(share), pinned)
