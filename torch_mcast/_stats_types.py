"""Types of what stats() tells. Amounts are bytes, counts begin with the group, times are in ms."""

from __future__ import annotations

from typing import TypedDict


class Aggregator(TypedDict):
    """One address of MCAST_AGGREGATORS."""

    address: str
    state: str  # "asking", "admitted", "refused", "unreachable", "lost" or "draining"
    reason: str
    stations: int
    capacity: float  # in links of a rank


class Station(TypedDict):
    address: str
    capacity: float  # in links of a rank
    part: float  # of the vector
    lost: bool  # before the operation: owners fold its part


class Measured(TypedDict):
    with_ms: float
    without_ms: float


class Plan(TypedDict):
    """What the planner has made of the last large reduction of a kind."""

    sequence: int
    bytes: int  # of a rank's whole input
    reason: str  # "placed", or why ranks fold all of it
    part: float  # that aggregators fold
    own: str  # contribution of a segment's owner: "kept", "sent", or "" if there is no part
    stations: list[Station]
    measured: Measured | None  # on rank 0, with aggregators and without
    planned: float  # bytes / rate of a link, as planned
    workers: float  # the same without aggregators
    ratio: float  # of these


class Waiting(TypedDict):
    sequence: int  # of the operation
    ranks: list[int]  # whose contributions aggregators miss
    ms: float  # since the last contribution to that segment


class LastPartial(TypedDict):
    sequence: int
    ranks: list[int]  # whose inputs are missing
    contributors: int


class Partial(TypedDict):
    """Reductions that ended without late ranks."""

    limit_ms: float  # setting `partial`
    not_served: str  # why none ends so, or ""
    operations: int
    excused: int  # of these without this rank's input
    last: LastPartial | None


class Served(TypedDict):
    engine: int
    fallback: int


class RepairBytes(TypedDict):
    received_bytes: int
    sent_bytes: int


class Source(TypedDict):
    address: str
    refused: int
    inherited: int  # of these at most so many are another source's
    causes: dict[str, int]


class Security(TypedDict):
    mode: str  # setting `security`
    suite: str  # of a guarded group that uses a network, else ""
    library: str
    trust_store: bool  # the secret came through the store
    keys_locked: bool  # else they may be written to swap (`ulimit -l`)
    sealed: int  # datagrams of this rank
    opened: int  # of others
    untried: int  # that lanes did not try to open, since too many before were forged
    epoch: int  # of this rank's latest datagram
    clear_fallback_calls: int  # that went over the network in clear
    causes: dict[str, int]  # what lanes have refused, see torch_mcast._C.causes()
    sources_watched: bool  # setting `monitor`
    sources: list[Source]  # the ten with most


class Device(TypedDict):
    """Pinned host memory that collectives on device tensors of this process hold."""

    pinned_bytes: int
    pinned_peak: int
    pinned_waits: (
        int  # calls that waited for earlier ones, for together they exceed `device_pinned`
    )


class Stats(TypedDict):
    group: str
    rank: int
    size: int
    path: str  # "multicast", "ring", "shared memory" or "local"
    reason: str  # why that path
    transport: str  # interface, addresses, MTU, buffers, in one line
    # What was asked for, or which rank has no verbs and why. It begins with "engine of this host
    # (process N): " where that runs the network.
    transport_reason: str
    # To a block of a reduction: "one per rank", or "one per host (4)": those of a host are folded
    # there first.
    contributions: str
    fold: str  # order of contributions in a reduction: "rank" or "turn" (setting)
    # Large broadcasts and all-gathers are received by "every rank", or by "one rank per host (4)",
    # of which the others on the host take them.
    streams: str
    aggregators: list[Aggregator]  # on rank 0 of groups on several hosts
    aggregation: dict[str, Plan]  # "all_reduce", "reduce_scatter"; in groups on several hosts
    waiting: Waiting | None  # on rank 0, while aggregators miss contributions
    partial: Partial
    chunk: int
    window: int
    eager: int
    segment: int
    next_sequence: int
    next_reduce_sequence: int
    security: Security
    device: Device
    failure: str  # why the group cannot be used any more, or ""
    fallback: dict[str, str]  # device: backend
    calls: dict[str, Served]  # by operation
    bytes: dict[str, int]  # of the engine's outputs, by operation
    counters: dict[str, int]  # both lanes together, see torch_mcast._C.counters() for their meaning
    reduce_counters: dict[str, int]  # the reduce lane's part of them
    repairs: dict[int, RepairBytes]  # by peer
