"""Reductions of FSDP and DDP through aggregators: every type, operator and way to call gives the
same bits as the fold on the ranks."""

import aggregated
import fake_device
import programs
import pytest
import torch

from torch_mcast.lab.pool import Pool

all_tier = pytest.mark.all_tier
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FLOAT_OPS = ("SUM", "AVG", "PREMUL_SUM", "MIN", "MAX")
# The most common ones, and a type or operator of each kind.
CASES = [
    *((torch.float32, op) for op in FLOAT_OPS),
    (torch.bfloat16, "AVG"),
    (torch.bfloat16, "MAX"),
    (torch.float16, "PREMUL_SUM"),
    (torch.float64, "SUM"),
    (torch.int64, "SUM"),
    (torch.int32, "MIN"),
]
ALL_CASES = [
    *((dtype, op) for dtype in FLOATS for op in FLOAT_OPS),
    *((dtype, op) for dtype in (torch.int32, torch.int64) for op in ("SUM", "MIN", "MAX")),
    (torch.uint8, "SUM"),
]
FAULTS = ("agg_diverted", "agg_lost", "agg_declined", "agg_malformed", "agg_repeated", "ops_failed")


def check_folded_by_all(rows, large):
    """Checks that stations had a part in all of the `large` reductions, without an error."""
    assert {row["state"] for row in rows[0]["aggregators"]} == {"admitted"}
    for row in rows:
        assert not row["failure"]
        assert row["counters"]["agg_operations"] == large
        assert row["counters"]["agg_results"] > 0 and row["counters"]["agg_bytes_sent"] > 0
        assert {name: row["counters"][name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
        assert {name for name, calls in row["calls"].items() if calls["fallback"]} == set()


def check_every_case(rows, order):
    check_folded_by_all([found for found, _, _ in rows], rows[0][2])
    for found, plain, _ in rows:
        assert found["fold"] == plain["fold"] == order
        assert plain["counters"]["agg_operations"] == plain["counters"]["agg_bytes_sent"] == 0


@pytest.mark.parametrize("order", ["rank", "turn"])
@pytest.mark.parametrize(
    "cases", [pytest.param(CASES, id="most"), pytest.param(ALL_CASES, id="all", marks=all_tier)]
)
def test_every_case_gives_the_same_bits(served, cases, order):
    rows = served(4, 2).run(aggregated.every_case, cases, order, timeout_s=300)
    check_every_case(rows, order)


@pytest.mark.parametrize("order", [pytest.param("rank", marks=all_tier), "turn"])
def test_several_ranks_on_a_host_give_the_same_bits(served, order):
    cases = [(torch.float32, "SUM"), (torch.bfloat16, "AVG"), (torch.float16, "PREMUL_SUM")]
    rows = served(4, 2, 2).run(aggregated.every_case, [*cases, (torch.int64, "MAX")], order)
    assert {found["contributions"] for found, _, _ in rows} == {"one per host (4)"}
    check_every_case(rows, order)


@pytest.mark.parametrize(
    "gate", [pytest.param(True, id="gate"), pytest.param(False, id="host", marks=all_tier)]
)
@pytest.mark.parametrize("per_host", [1, pytest.param(2, marks=all_tier)])
def test_device_tensors(served, per_host, gate):
    """Separate processes: one with an accelerator behaves differently in all later tests."""
    lab, library = served(4, 2, per_host).lab, fake_device.library()
    cases = [(torch.int64, "MAX"), (torch.int32, "SUM")]
    if per_host == 1:  # else floats are folded on their hosts first, in another order
        cases += [(torch.float32, "SUM"), (torch.bfloat16, "AVG"), (torch.float16, "PREMUL_SUM")]
    with Pool.in_lab(lab, programs.PRELOAD) as pool:
        rows = pool.run(aggregated.on_a_device, library, gate, cases)
    check_folded_by_all([found for found, _ in rows], rows[0][1])
