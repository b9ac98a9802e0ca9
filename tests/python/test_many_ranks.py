"""16 and 32 real ranks on one machine: every operation once, over the network path and in shared memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from contents import compare

sys.path.insert(0, str(Path(__file__).parent / "lifecycle"))

import exact

import torch_mcast

COUNT = 1001


def rooted(root: int) -> None:
    """Runs gather, scatter and reduce."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, everybody = exact.words(rank, COUNT, 3), [exact.words(r, COUNT, 3) for r in range(world)]
    gathered = [torch.zeros_like(mine) for _ in range(world)] if rank == root else None
    dist.gather(mine, gathered, root)
    if gathered is not None:
        compare(torch.cat(gathered), torch.cat(everybody), "gather")
    output = torch.zeros_like(mine)
    dist.scatter(output, everybody if rank == root else None, root)
    compare(output, mine, "scatter")
    reduced = mine.clone()
    dist.reduce(reduced, root)
    if rank == root:
        compare(reduced, sum(everybody), "reduce")


def exchanges() -> None:
    """Runs all_to_all with blocks of different sizes, and messages around the ring and across it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    gives = [1 + (rank + 3 * r) % 5 for r in range(world)]
    takes = [1 + (r + 3 * rank) % 5 for r in range(world)]
    output = torch.zeros(sum(takes), dtype=torch.int64)
    dist.all_to_all_single(output, torch.full((sum(gives),), rank), takes, gives)
    expected = torch.cat([torch.full((n,), r) for r, n in enumerate(takes)])
    compare(output, expected, "all_to_all_single")
    for step in (1, world // 2):
        source, target = (rank - step) % world, (rank + step) % world
        message = torch.zeros(COUNT, dtype=torch.int64)
        works = [dist.irecv(message, source), dist.isend(exact.words(rank, COUNT, 5), target)]
        for work in works:
            work.wait()
        compare(message, exact.words(source, COUNT, 5), f"message over {step}")


def lists() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(COUNT, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(outputs, exact.words(rank, COUNT, 6))
    for source, output in enumerate(outputs):
        compare(output, exact.words(source, COUNT, 6), f"all_gather of {source}")
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(world)]


def subgroup() -> None:
    """Halves of the ranks create a group each."""
    rank, world = dist.get_rank(), dist.get_world_size()
    halves = [list(range(first, world, 2)) for first in range(2)]
    groups = [dist.new_group(half) for half in halves]
    tensor = exact.words(rank, COUNT, 9)
    dist.all_reduce(tensor, group=groups[rank % 2])
    compare(tensor, sum(exact.words(r, COUNT, 9) for r in halves[rank % 2]), "half's all_reduce")


def every_operation() -> tuple[str, set[str]]:
    exact.every((COUNT,))
    rooted(root=dist.get_world_size() - 2)
    exchanges()
    lists()
    subgroup()
    stats = torch_mcast.stats()
    assert stats["failure"] == "" and not any(c["fallback"] for c in stats["calls"].values())
    dist.barrier()
    return stats["path"], {name for name, count in stats["calls"].items() if count["engine"]}


CALLED = {
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all_single", "barrier", "broadcast", "gather",
    "recv", "reduce", "reduce_scatter_tensor", "scatter", "send",
}  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "path"),
    [("network", "multicast"), ("host", "shared memory")],
    indirect=["ranks"],
)
@pytest.mark.parametrize("world", [16, pytest.param(32, marks=pytest.mark.all_tier)])
def test_every_operation_of_many_ranks(ranks, world, path):
    """The silence of ranks is not measured here: so many ranks share the CPUs of one machine."""
    env = {"MCAST_LIVENESS_LIMIT": "60000"}
    results = ranks(world, every_operation, env=env, timeout_s=200, limit_s=260)
    for found, called in results:
        assert found == path and called >= CALLED, (found, CALLED - called)
