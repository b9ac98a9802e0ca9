"""Types of the result of `torch_mcast.stats()`.

Amounts are bytes, counts start when the group is created, and times are in ms unless a field says
otherwise.
"""

from __future__ import annotations

from typing import TypedDict


class Aggregator(TypedDict):
    """One address of `MCAST_AGGREGATORS`."""

    address: str
    state: str
    """`"asking"`, `"admitted"`, `"refused"`, `"unreachable"`, `"lost"` or `"draining"`."""
    reason: str
    stations: int
    capacity: float
    """In links of a rank."""


class Station(TypedDict):
    """One thread of an aggregator that folds for the group."""

    address: str
    capacity: float
    """In links of a rank."""
    part: float
    """Part of the vector that it folds."""
    lost: bool
    """True if it was lost before the operation: the owners fold its part."""


class Measured(TypedDict):
    """Measured times of a reduction."""

    with_ms: float
    without_ms: float


class Plan(TypedDict):
    """How the planner placed the last large reduction of a kind."""

    sequence: int
    bytes: int
    """Bytes of a rank's whole input."""
    reason: str
    """`"placed"`, or why ranks fold all of it."""
    part: float
    """Part of the vector that aggregators fold."""
    own: str
    """Contribution of a segment's owner: `"kept"`, `"sent"`, or `""` if aggregators fold no part."""
    stations: list[Station]
    measured: Measured | None
    """With aggregators and without; on rank 0."""
    planned: float
    """The model's time with aggregators, in bytes divided by the rate of a link."""
    workers: float
    """The same without aggregators."""
    ratio: float
    """Ratio of `planned` and `workers`."""


class Waiting(TypedDict):
    """Contributions that aggregators wait for."""

    sequence: int
    """Sequence of the operation."""
    ranks: list[int]
    """Ranks whose contributions are missing."""
    ms: float
    """Time since the last contribution to that segment."""


class LastPartial(TypedDict):
    """The last reduction that ended without late ranks."""

    sequence: int
    ranks: list[int]
    """Ranks whose inputs are missing."""
    contributors: int


class Partial(TypedDict):
    """Reductions that ended without late ranks."""

    limit_ms: float
    """The setting `partial`."""
    not_served: str
    """Why reductions of this group never end without late ranks, or `""`."""
    operations: int
    excused: int
    """Number of these without this rank's input."""
    last: LastPartial | None


class Served(TypedDict):
    """Calls of one operation, by the backend that served them."""

    engine: int
    fallback: int


class RepairBytes(TypedDict):
    """Payload bytes of repairs between this rank and one peer."""

    received_bytes: int
    sent_bytes: int


class Source(TypedDict):
    """Refused traffic of one sender."""

    address: str
    refused: int
    inherited: int
    """Upper bound of the part of `refused` that belongs to a source that this one replaced in the list."""
    causes: dict[str, int]


class Security(TypedDict):
    """Protection of the group's traffic, and counts of refused traffic."""

    mode: str
    """The setting `security`."""
    suite: str
    """Cipher suite of a guarded group that uses a network, else `""`."""
    library: str
    trust_store: bool
    """True if the secret came through the store."""
    keys_locked: bool
    """False if keys may be written to swap (`ulimit -l`)."""
    sealed: int
    """Datagrams that this rank has sealed."""
    opened: int
    """Datagrams of others that this rank has opened."""
    untried: int
    """Datagrams that lanes did not try to open, since too many before them were forged."""
    epoch: int
    """Key epoch of this rank's latest datagram."""
    clear_fallback_calls: int
    """Calls that the fallback sent over the network in clear."""
    causes: dict[str, int]
    """Datagrams and connections that lanes have refused, by cause."""
    sources_watched: bool
    """The setting `monitor`."""
    sources: list[Source]
    """The ten sources with most refusals."""


class Device(TypedDict):
    """Pinned host memory that collectives on device tensors of this process hold."""

    pinned_bytes: int
    pinned_peak: int
    pinned_waits: int
    """Calls that waited for earlier ones, since together they exceed the setting `device_pinned`."""


class Stats(TypedDict):
    """Facts and counters of one group on this rank."""

    group: str
    rank: int
    size: int
    path: str
    """`"multicast"`, `"ring"`, `"shared memory"` or `"local"`."""
    reason: str
    """Why the group uses that path."""
    transport: str
    """Interface, addresses, MTU and buffers, in one line."""
    transport_reason: str
    """What was asked for, or which rank has no verbs and why.

    It begins with "engine of this host (process N): " if an engine of the host runs the network."""
    contributions: str
    """Contributions to a block of a reduction.

    `"one per rank"`, or `"one per host (4)"` if the ranks of a host are folded there first."""
    fold: str
    """Order in which contributions are folded: the setting `fold`."""
    streams: str
    """Receivers of large broadcasts and all-gathers.

    `"every rank"`, or `"one rank per host (4)"`, from which the other ranks of the host copy."""
    aggregators: list[Aggregator]
    """Filled on rank 0 of groups on several hosts."""
    aggregation: dict[str, Plan]
    """Plans of `"all_reduce"` and `"reduce_scatter"`; in groups on several hosts."""
    waiting: Waiting | None
    """On rank 0, while aggregators wait for contributions."""
    partial: Partial
    chunk: int
    window: int
    eager: int
    segment: int
    next_sequence: int
    next_reduce_sequence: int
    security: Security
    device: Device
    failure: str
    """Why the group cannot be used any more, or `""`."""
    fallback: dict[str, str]
    """Fallback backend by device type."""
    calls: dict[str, Served]
    """Calls by operation."""
    bytes: dict[str, int]
    """Bytes of the engine's outputs, by operation."""
    counters: dict[str, int]
    """Counters of both lanes together; docs/counters.md has their meanings."""
    reduce_counters: dict[str, int]
    """The reduce lane's part of `counters`."""
    repairs: dict[int, RepairBytes]
    """Repairs by peer."""
