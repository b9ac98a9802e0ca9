"""Bytes that an operation moves, and the least time it can take.

S = "size" in bytes, as nccl-tests counts it (doc/PERFORMANCE.md there): the larger of one rank's
input and output. algbw = S / t. busbw = algbw x factor, with nccl-tests' factors, so that it can be
compared with the speed of a link whatever the number of ranks.

The bound is the time in which one host's NIC can receive the data that it lacks, at the full
payload rate of the link: with H hosts it lacks S(H-1)/H of an all-gather. It holds for any
algorithm that reduces on the workers. Ranks of one host share the NIC."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes of headers. A datagram has IP 20, UDP 8 and mcast 32 bytes. A frame has Ethernet 14 (as tbf
# counts).
_HEADERS = 60
_ETHERNET = 14


@dataclass(frozen=True)
class Op:
    """name; title for people; bus: nccl-tests' factor is bus x (n-1)/n (None: no bandwidth);
    receive: multiples of S(H-1)/H that a host must receive; whole: true for broadcast, which moves
    S instead."""

    name: str
    title: str
    bus: float | None
    receive: float
    whole: bool = False


OPS = {
    op.name: op
    for op in (
        Op("broadcast", "broadcast", 1, 1, whole=True),
        Op("all_gather", "all_gather_into_tensor", 1, 1),
        Op("reduce_scatter", "reduce_scatter_tensor", 1, 1),
        Op("all_reduce", "all_reduce", 2, 2),
        Op("all_to_all", "all_to_all_single", 1, 1),
        Op("gather", "gather", 1, 1),  # at the root's host
        Op("scatter", "scatter", 1, 1),  # sent by the root's host
        Op("send_recv", "isend to the next, irecv from the one before", 1, 1, whole=True),
        Op("ag_rs", "all-gather + reduce-scatter at once", 2, 2),
        Op("fsdp2", "FSDP2 training step", None, 3),
        Op("fsdp2_async", "FSDP2 training step, all-gathers ahead", None, 3),
        Op("barrier", "barrier", None, 0),
    )
}


def bus_factor(op: str, world: int) -> float | None:
    """Returns busbw / algbw, or None if the operation has no bandwidth."""
    factor = OPS[op].bus
    if factor is None:
        return None
    return factor if OPS[op].whole else factor * (world - 1) / world


def receive_bytes(op: str, size: int, hosts: int) -> float:
    """Returns the least payload bytes that the NIC of a host (broadcast: not the root's) must
    receive.

    An FSDP2 step gathers the parameters twice (forward, backward) and reduce-scatters once.
    """
    if hosts < 2:
        return 0.0
    return OPS[op].receive * size * (1 if OPS[op].whole else (hosts - 1) / hosts)


def multicast_send_bytes(op: str, size: int, hosts: int) -> float | None:
    """Returns the least payload bytes that a host sends with multicast: the model for NIC bytes.
    For broadcast it is the mean over hosts (only the root sends). None if the model does not cover
    the operation."""
    if hosts < 2:
        return 0.0
    reduce = size * (hosts - 1) / hosts
    return {
        "broadcast": size / hosts,
        "all_gather": size / hosts,
        "reduce_scatter": reduce,
        "all_reduce": reduce + size / hosts,
        "all_to_all": reduce,
        "gather": reduce / hosts,
        "scatter": reduce / hosts,
        "send_recv": size,
        "ag_rs": reduce + size / hosts,
        "fsdp2": reduce + 2 * size / hosts,
        "fsdp2_async": reduce + 2 * size / hosts,
    }.get(op)


# Multiples of S(P-1)/P.
_RING = {"broadcast": 1, "all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "ag_rs": 2}
_GLOO = {**_RING, "reduce_scatter": 2, "ag_rs": 3}


def ring_send_bytes(op: str, size: int, world: int) -> float:
    """Returns the payload bytes that a rank sends in a ring of unicast connections, the mean over
    ranks. It forwards every block but one, an all-reduce is a reduce-scatter and an all-gather
    (Patarasu and Yuan 2009; NCCL's ring), and all ranks but the last forward a broadcast."""
    return _RING[op] * size * (world - 1) / world


def gloo_send_bytes(op: str, size: int, world: int) -> float:
    """Returns the same for torch's Gloo backend: rings, a tree for broadcast (as many bytes), and a
    reduce-scatter that is an all-reduce of the whole input (gloo/allgather.cc, gloo/allreduce.cc;
    reduce_scatter_tensor_coalesced in ProcessGroupGloo.cpp). Bytes counted on a loopback interface
    (torch 2.13, 3 and 4 ranks) are these plus 0.3 % of headers."""
    return _GLOO[op] * size * (world - 1) / world


def payload_rate(rate: int, mtu: int) -> float:
    """Returns the payload bytes per second of a link of `rate` bits/s: 118.9 MB/s at 1 Gbit/s and
    MTU 1500."""
    return rate / 8 * (mtu - _HEADERS) / (mtu + _ETHERNET)


def bound_s(
    op: str, size: int, hosts: int, rate: int | None, mtu: int, burst: int = 0
) -> float | None:
    """Returns the least seconds for the operation; None without a link rate or without bytes to
    receive. burst: bytes as framed that the link takes at once."""
    need = receive_bytes(op, size, hosts)
    if rate is None or not need:
        return None
    return max(0.0, need / payload_rate(rate, mtu) - burst * 8 / rate)


def padded_size(size: int, world: int, item: int = 4) -> int:
    """Returns the smallest multiple of world x item that holds `size` (every rank gets an equal shard)."""
    step = world * item
    return max(step, -(-size // step) * step)
