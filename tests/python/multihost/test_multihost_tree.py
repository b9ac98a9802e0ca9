"""A tree of aggregators: a leaf in each of two racks and one at the spine. Exact bytes, one sum per rack
through its uplink, and the loss of a leaf or of the top costs only time."""

import threading

import programs
import pytest
import torch
import torch.distributed as dist

import torch_mcast
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool

pytestmark = pytest.mark.usefixtures("lab_rights")
WORDS = 4 << 20  # so much that the tree pays
ROUNDS = 5


def contribution(rank: int, salt: int) -> torch.Tensor:
    """Floats whose sum is exact in any order."""
    return ((torch.arange(WORDS) + salt) % 1000 * (rank + 1)).to(torch.float32)


def check(salt: int) -> None:
    mine = contribution(dist.get_rank(), salt)
    want = sum(contribution(r, salt) for r in range(dist.get_world_size()))
    dist.all_reduce(mine)
    assert torch.equal(mine, want)


def reduces(ctx, count: int) -> dict:
    programs.join(ctx)
    for salt in range(count):
        check(salt)
    stats = torch_mcast.stats()
    dist.barrier()
    return stats


def reduces_until_a_loss(ctx, most: int) -> dict:
    programs.join(ctx)
    more = 3
    for salt in range(most):
        check(salt)
        lost = torch.tensor([torch_mcast.stats()["counters"]["agg_lost"]])
        dist.all_reduce(lost, dist.ReduceOp.MIN)
        more -= int(lost.item() > 0)
        if more == 0:
            break
    stats = torch_mcast.stats()
    dist.barrier()
    return stats


def tree(aggregator_racks: list[int]) -> LabSpec:
    return LabSpec(
        hosts=4,
        aggregators=len(aggregator_racks),
        racks=[2, 2],
        aggregator_racks=aggregator_racks,
        uplink_rate="1gbit",
    )


def uplink_bytes(lab: Lab) -> int:
    """That leave the racks, for ROUNDS operations."""
    with Pool.in_lab(lab, programs.PRELOAD) as pool:
        before = lab.counters()
        rows = pool.run(reduces, ROUNDS)
        moved = lab.counters() - before
    for row in rows:
        assert row["counters"]["agg_bytes_sent"] > 0
        assert row["counters"]["agg_diverted"] == row["counters"]["agg_lost"] == 0
    assert sum(row["counters"]["agg_results"] for row in rows) > 0
    return sum(moved.uplinks[name].wire_bytes for name in ("up1", "up2"))


def test_a_tree_spares_the_uplinks():
    with Lab(tree([1, 2, 0])) as lab:
        with_leaves = uplink_bytes(lab)
    with Lab(tree([0, 0, 0])) as lab:
        without = uplink_bytes(lab)
    assert with_leaves < 0.85 * without, (with_leaves, without)


@pytest.mark.parametrize("victim", ["a1", "a3"])  # a leaf, the top
def test_a_station_that_is_killed_costs_no_bytes(victim):
    with Lab(tree([1, 2, 0])) as lab, Pool.in_lab(lab, programs.PRELOAD) as pool:
        killer = threading.Timer(2.0, lab.aggregation.kill, [victim])
        killer.start()
        rows = pool.run(reduces_until_a_loss, 2000)
        killer.join()
    for row in rows:
        assert not row["failure"]
        assert row["counters"]["agg_lost"] >= 1
