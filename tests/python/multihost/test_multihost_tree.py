"""A tree of aggregators: a leaf in each of two racks and one at the spine. Results are exact, each
rack sends one sum through its uplink, and the loss of a leaf or of the top only costs time."""

import programs
import pytest
import torch
import torch.distributed as dist
from aggregated import rounds_once_served, rounds_until_a_loss
from wire import again, tcp_again

from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool

pytestmark = pytest.mark.usefixtures("lab_rights")
WORDS = 4 << 20  # large enough that the tree pays
ROUNDS = 5


def check(salt: int) -> None:
    """Rank r contributes r + 1 times the same floats: their sum is exact in any order."""
    floats = ((torch.arange(WORDS, dtype=torch.int32) + salt) % 1000).to(torch.float32)
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = floats * (rank + 1)
    dist.all_reduce(mine)
    assert torch.equal(mine, floats * (world * (world + 1) // 2))


def tree(aggregator_racks: list[int]) -> LabSpec:
    return LabSpec(
        hosts=4,
        aggregators=len(aggregator_racks),
        racks=[2, 2],
        aggregator_racks=aggregator_racks,
        uplink_rate="1gbit",
    )


def uplink_bytes(lab: Lab) -> tuple[int, float]:
    """Returns the bytes that leave the racks in ROUNDS operations, and the most that may have been
    sent again."""
    with Pool.in_lab(lab, programs.PRELOAD) as pool:
        options = {"aggregator_patience": 10_000}
        call = pool.start(rounds_once_served, check, ROUNDS, options)
        call.wait("served")
        tcp, before = sum(tcp_again(lab).values()), lab.counters()
        call.signal("go")
        rows = call.results()
        moved = lab.counters() - before
        tcp = sum(tcp_again(lab).values()) - tcp
    for row in rows:
        assert row["counters"]["agg_bytes_sent"] > 0
        assert row["counters"]["agg_diverted"] == row["counters"]["agg_lost"] == 0
    assert sum(row["counters"]["agg_results"] for row in rows) > 0
    resent = tcp + sum(again(row["counters"]) for row in rows)
    return sum(moved.uplinks[name].wire_bytes for name in ("up1", "up2")), resent


def test_a_tree_spares_the_uplinks():
    with Lab(tree([1, 2, 0])) as lab:
        with_leaves, resent = uplink_bytes(lab)
    with Lab(tree([0, 0, 0])) as lab:
        without, also_resent = uplink_bytes(lab)
    assert with_leaves - resent < 0.85 * (without - also_resent), (with_leaves, without, resent)


@pytest.mark.parametrize("victim", ["a1", "a3"])  # a leaf, the top
def test_a_station_that_is_killed_costs_no_bytes(victim):
    with Lab(tree([1, 2, 0])) as lab, Pool.in_lab(lab, programs.PRELOAD) as pool:
        call = pool.start(rounds_until_a_loss, check, 2000)
        call.wait("aggregated")
        lab.aggregation.kill(victim)  # usually while it runs
        rows = call.results()
    for row in rows:
        assert not row["failure"]
        assert row["counters"]["agg_lost"] >= 1
