"""Reductions of which aggregators fold a part: exact bytes, and the loss of an aggregator only
costs time."""

import torch
import torch.distributed as dist
from aggregated import rounds_once_served, rounds_until_a_loss

WORDS = 1 << 20


def contribution(rank: int, salt: int) -> torch.Tensor:
    return torch.arange(WORDS, dtype=torch.int32) * (rank + 1) + salt


def check(salt: int) -> None:
    """Checks sums that every rank can compute by itself, in place and not."""
    rank, world = dist.get_rank(), dist.get_world_size()
    want = sum(contribution(r, salt) for r in range(world))
    mine = contribution(rank, salt)
    dist.all_reduce(mine)
    assert torch.equal(mine, want)
    share = WORDS // world
    output = torch.empty(share, dtype=torch.int32)
    dist.reduce_scatter_tensor(output, contribution(rank, salt))
    assert torch.equal(output, want[rank * share : (rank + 1) * share])


def test_aggregators_fold_their_part(served):
    call = served(4, 2).start(rounds_once_served, check, 3)
    call.wait("served")
    call.signal("go")
    rows = call.results()
    assert [row["state"] for row in rows[0]["aggregators"]] == ["admitted", "admitted"]
    for row in rows:
        # One before "served"; so small a reduce_scatter gains nothing.
        assert row["counters"]["agg_operations"] >= 1 + 3
        assert row["counters"]["agg_bytes_sent"] > 0
        assert row["counters"]["agg_diverted"] == row["counters"]["agg_lost"] == 0
    assert sum(row["counters"]["agg_results"] for row in rows) > 0


def test_one_that_is_killed_costs_no_bytes(served):
    cluster = served(4, 2)
    call = cluster.start(rounds_until_a_loss, check, 2000)
    call.wait("aggregated")
    cluster.lab.aggregation.kill("a1")  # usually while it runs
    for row in call.results():
        assert not row["failure"]
        assert row["counters"]["agg_lost"] == 1
