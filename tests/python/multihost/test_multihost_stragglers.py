"""Late ranks with aggregators: the ranks that are waited for, the planner's decisions, results
without late ranks."""

import time

import programs
import pytest
import torch
import torch.distributed as dist
from conforming import conforms
from limits import limit
from named_errors import check_error

import torch_mcast
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool

pytestmark = pytest.mark.usefixtures("lab_rights")
ELEMENTS = 1 << 22  # fewer elements are not worth one aggregator
LATE = 2


@pytest.fixture(scope="module")
def lab():
    with Lab(LabSpec(hosts=4, aggregators=1, aggregator_options=("--deadline", "200"))) as it:
        yield it


@pytest.fixture
def ranks(lab):
    with Pool.in_lab(lab, programs.PRELOAD) as pool:
        yield pool
    lab.aggregation.restore()


def late(ctx, pause_s: float, options: dict) -> dict:
    """Runs an all_reduce for which one rank is late. Returns rank 0's view meanwhile."""
    programs.join(ctx, **options)
    rank = dist.get_rank()
    if rank == LATE:
        time.sleep(pause_s)
    tensor = torch.full((ELEMENTS,), float(2**rank))
    work = dist.all_reduce(tensor, async_op=True)
    seen = None
    while rank == 0 and not work.is_completed():
        seen = torch_mcast.stats()["waiting"] or seen
        time.sleep(0.05)
    work.wait()
    assert bool((tensor == tensor[0]).all())
    stats = torch_mcast.stats()
    conforms(stats, torch_mcast.Stats)
    dist.barrier()
    return {
        "sum": tensor[0].item(),
        "seen": seen,
        "contributors": torch_mcast.contributors(work),
        "plan": stats["aggregation"]["all_reduce"],
        "partial": stats["partial"],
        "waiting": stats["waiting"],
        "results": stats["counters"]["agg_results"],
    }


def test_the_plan_and_the_late_rank_are_told(ranks):
    rows = ranks.run(late, 1.5, {})
    assert rows[0]["seen"]["ranks"] == [LATE] and 200 <= rows[0]["seen"]["ms"] < 2500
    for row in rows:
        assert row["sum"] == 15 and row["contributors"] == 4 and row["waiting"] is None
        plan = row["plan"]
        assert plan["reason"] == "placed" and plan["bytes"] == 4 * ELEMENTS
        (station,) = plan["stations"]
        assert station["part"] == plan["part"] > 0 and station["address"] and not station["lost"]
        assert plan["ratio"] == plan["planned"] / plan["workers"] < 1


def test_the_result_is_without_the_late_rank(ranks):
    for row in ranks.run(late, 2.5, {"partial": 400}):
        assert row["sum"] == 11 and row["contributors"] == 3
        assert row["partial"]["last"]["ranks"] == [LATE]
    assert sum(row["results"] for row in ranks.run(late, 0, {"partial": 5000})) > 0


def times_out(ctx) -> str:
    programs.join(ctx)
    limit(2)
    if dist.get_rank() == LATE:
        time.sleep(5)
        return ""
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_reduce(torch.ones(ELEMENTS))
    return str(error.value)


def test_the_error_names_it(ranks):
    for rank, text in enumerate(ranks.run(times_out)):
        if rank != LATE:
            check_error(text, "ranks_late", ranks=LATE)
            assert f"; aggregators are waiting for rank(s) {LATE}: " in text, text


def test_the_plan_says_that_there_is_no_station(ranks):
    for row in ranks.run(late, 0, {"aggregators": ""}):
        plan = row["plan"]
        assert plan["reason"] == "no stations" and plan["part"] == 0 and plan["stations"] == []
