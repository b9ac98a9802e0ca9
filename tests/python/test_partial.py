"""The setting `partial`: reductions that end without late ranks, the same on all of them."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import torch_mcast

LATE = 2


def reduce_late(pause_s: float | None, elements: int) -> tuple:
    """Runs one all_reduce and one reduce_scatter for which rank LATE is late, then one in time.
    Without a pause the late rank comes when the others have both results."""
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("over", dist.distributed_c10d._get_default_store())
    if rank == LATE and pause_s is None:
        store.wait([str(other) for other in range(world) if other != LATE])
    elif rank == LATE:
        time.sleep(pause_s)
    tensor = torch.full((elements,), float(2**rank))
    average = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    average.wait()
    output = torch.empty(elements, dtype=torch.int64)
    scatter = dist.reduce_scatter_tensor(
        output, torch.full((elements * world,), 10**rank), async_op=True
    )
    scatter.wait()
    store.set(str(rank), "")
    counts = [torch_mcast.contributors(average), torch_mcast.contributors(scatter)]
    partial = torch_mcast.stats()["partial"]
    dist.barrier()
    whole = torch.ones(elements)
    work = dist.all_reduce(whole, async_op=True)
    work.wait()
    assert torch.equal(whole, torch.full((elements,), float(world)))
    assert torch_mcast.contributors(work) == world
    assert bool((tensor == tensor[0]).all() and (output == output[0]).all())
    return tensor[0].item(), output[0].item(), counts, partial


@pytest.mark.parametrize("algorithm", ["auto", "ring"])
def test_a_late_rank_is_left_out(ranks, algorithm):
    """No other rank is left out: this machine never delays a rank for 2 s between two calls.
    Virtual time shows that no more than the limit passes (tests/cpp/collective/partial_test.cpp).
    """
    options = {"partial": 2000, "algorithm": algorithm}
    rows = ranks(4, reduce_late, None, 1 << 18, options=options)
    for rank, (average, total, counts, partial) in enumerate(rows):
        assert (average, total) == (torch.tensor(11.0).div(3).item(), 1011), rank
        assert counts == [3, 3]
        assert partial["limit_ms"] == 2000 and partial["not_served"] == ""
        assert partial["operations"] == 2 and partial["excused"] == (2 if rank == LATE else 0)
        assert partial["last"]["ranks"] == [LATE] and partial["last"]["contributors"] == 3


def test_nobody_is_left_out_unless_asked_for(ranks):
    for average, total, counts, partial in ranks(4, reduce_late, 0.7, 1 << 18):
        assert (average, total, counts) == (15 / 4, 1111, [4, 4])
        assert partial == {
            "limit_ms": 0,
            "not_served": "off",
            "operations": 0,
            "excused": 0,
            "last": None,
        }


def test_ranks_that_share_memory_are_waited_for(pool):
    rows = pool.run(
        4, reduce_late, 0.7, 1 << 18, options={"partial": 100}, env={"MCAST_SHARED_MEMORY": "auto"}
    )
    for average, total, counts, partial in rows:
        assert (average, total, counts) == (15 / 4, 1111, [4, 4])
        assert partial["not_served"] == "all ranks are on one host"


def other_work() -> str:
    with pytest.raises(ValueError, match="not a work of mcast") as error:
        torch_mcast.contributors(dist.all_reduce(torch.ones(2).to_sparse(), async_op=True))
    return str(error.value)


def test_works_of_others_have_no_count(ranks):
    ranks(2, other_work)
