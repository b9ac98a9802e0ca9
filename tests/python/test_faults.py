"""End to end under injected faults: the bytes are right and the repair counters show the reason."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from contents import assert_same, content
from named_errors import check_error

import torch_mcast

pytestmark = pytest.mark.engine

LOSSES = [
    "drop:rate=0.01,seed=1",
    "drop:rate=0.1,seed=2",
    "drop:rate=0.05,seed=3;duplicate:rate=0.05,seed=4;reorder:rate=0.05,seed=5",
    "corrupt:rate=0.02,seed=6",
]


def exchange(sizes) -> dict:
    rank, world = dist.get_rank(), dist.get_world_size()
    for salt, size in enumerate(sizes):
        output = torch.zeros(size * world, dtype=torch.uint8)
        dist.all_gather_into_tensor(output, content(rank, size, torch.uint8, salt))
        for r in range(world):
            block = output[r * size : (r + 1) * size]
            assert_same(block, content(r, size, torch.uint8, salt), (size, r))
        tensor = content(rank, size, torch.uint8, salt + 100)
        dist.broadcast(tensor, salt % world)
        assert_same(tensor, content(salt % world, size, torch.uint8, salt + 100), size)
    dist.barrier()
    return torch_mcast.stats()


@pytest.mark.parametrize("faults", LOSSES)
def test_losses(ranks, faults):
    sizes = [1, 1000, 40_000, 1 << 20, (4 << 20) + 1]
    stats = ranks(3, exchange, sizes, options={"faults": faults, "algorithm": "multicast"})
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
    repaired = sum(row["counters"]["repair_chunks_received"] for row in stats)
    again = sum(row["counters"]["remulticast_chunks"] for row in stats)
    assert repaired + again > 0
    if "corrupt" in faults:
        assert sum(row["counters"]["corrupt"] for row in stats) > 0
    if "duplicate" in faults:
        assert sum(row["counters"]["duplicates"] for row in stats) > 0


def test_no_losses_no_repair(ranks):
    stats = ranks(2, exchange, [1 << 20], options={"algorithm": "multicast"})
    for row in stats:
        for counter in ("corrupt", "malformed", "repair_chunks_received", "remulticast_chunks"):
            assert row["counters"][counter] == 0, counter
        assert row["repairs"] == {peer: {"received_bytes": 0, "sent_bytes": 0} for peer in (0, 1)}


def test_ring(ranks):
    stats = ranks(3, exchange, [1, 40_000, 1 << 20], options={"algorithm": "ring"})
    assert all(row["path"] == "ring" for row in stats)
    assert sum(row["counters"]["ring_bytes_sent"] for row in stats) > 0


def bad_faults() -> None:
    with pytest.raises((ValueError, dist.DistBackendError), match="fault"):
        dist.new_group(backend="mcast", pg_options=torch_mcast.Options(faults="explode:now"))


def test_bad_faults(ranks):
    ranks(1, bad_faults)


def late(limit_ms: int) -> str:
    """Rank 1 never posts: rank 0 gets an error that names it, within its timeout."""
    from datetime import timedelta

    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(backend="mcast", timeout=timedelta(milliseconds=limit_ms))
    if dist.get_rank() == 1:
        store.wait(["over"])
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_gather_into_tensor(torch.zeros(8), torch.zeros(4), group=group)
        dist.barrier(group=group)
    store.set("over", "1")
    return str(caught.value)


def test_late_rank_is_named(ranks):
    text = ranks(2, late, 1500)[0]
    check_error(text, "ranks_late", ranks=1)


def more_than_a_second() -> dict:
    """Runs large broadcasts for longer than a comparison of rates waits, and some more."""
    busy, told, tensor = 0.0, torch.zeros(1, dtype=torch.uint8), torch.zeros(4 << 20)
    for salt in itertools.count():
        began = time.monotonic()
        dist.broadcast(tensor, salt % 2)
        busy += time.monotonic() - began
        told[0] = dist.get_rank() == 0 and salt > 20 and busy > 1.5
        dist.broadcast(told, 0)
        if told.item():
            return torch_mcast.stats()


@pytest.mark.network
def test_ranks_of_one_host_do_not_compare_rates(ranks):
    """Multicast between them has no limit; only the machine's load makes it slow."""
    for row in ranks(2, more_than_a_second):
        assert row["path"] == "multicast" and row["counters"]["rate_tests"] == 0
