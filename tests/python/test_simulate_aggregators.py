"""`torch-mcast simulate` with aggregators: the command line, and each NIC's bytes compared with the
model's."""

from __future__ import annotations

import shlex

import pytest
import served

from torch_mcast.simulate import cli, helper, tables


def run(*experiments: str) -> list[dict]:
    with helper.Runs(2) as runs:
        return runs.run(experiments)


def test_experiments_have_aggregators_where_they_are_asked_for():
    args = cli._parser().parse_args(
        shlex.split("--hosts 8 --op all_reduce --aggregators 2,7 --fold turn")
    )
    assert cli.experiments(args) == [
        "hosts=8 algorithm=mcast-aggregators aggregators=2 op=all_reduce fold=turn",
        "hosts=8 algorithm=mcast-aggregators aggregators=7 op=all_reduce fold=turn",
        "hosts=8 algorithm=mcast op=all_reduce fold=turn",
        "hosts=8 algorithm=ring op=all_reduce fold=turn",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--algorithm mcast-aggregators --op all_reduce", "needs aggregators=, their number"),
        ("--aggregators 2 --op broadcast", "aggregators fold reductions only"),
        ("--aggregators 65 --op all_reduce", "0 to 64"),
        ("--op all_reduce --type float63", "float32, bfloat16 or int32"),
    ],
)
def test_wrong_options_get_one_line(arguments, reason, capsys):
    assert cli.main(shlex.split(arguments)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


# Wire bytes are the model's payload plus 2.2 % of headers, and acknowledgements of 90 bytes for two
# packets of a stream; segments are assigned as a whole, and grants and credit are added.
@pytest.mark.parametrize("op", ["all_reduce", "all_gather+reduce_scatter", "reduce_scatter"])
@pytest.mark.parametrize("fold", ["rank", "turn"])
@pytest.mark.parametrize("aggregators", [2, 4, 7])
def test_each_nic_carries_what_the_model_says(op, fold, aggregators):
    text = f"hosts=8 algorithm=mcast-aggregators aggregators={aggregators} fold={fold} op={op}"
    size = "64M" if op == "reduce_scatter" else "16M"  # a worker receives little of it
    (row,) = run(f"{text} size={size} topology=leafspine:leaves=3,spines=2")
    assert "error" not in row, row
    loads = served.loads_of(row)
    plan = served.plan_of(row)
    assert plan.reason == row["aggregators"]["plan"] == "placed"
    assert row["aggregators"]["part"] == pytest.approx(plan.part, abs=1e-3)
    size = row["size"]
    carried = {
        "worker_in": row["host_down"],
        "worker_out": row["host_up"],
        "aggregator_in": row["aggregators"]["down"],
        "aggregator_out": row["aggregators"]["up"],
    }
    gathers = op != "reduce_scatter"  # by multicast, without acknowledgements
    stream_in = loads.worker_in - (7 / 8 if gathers else 0)
    stream_out = loads.worker_out - (1 / 8 if gathers else 0)
    acknowledged = {
        "worker_in": stream_out,
        "worker_out": stream_in,
        "aggregator_in": loads.aggregator_out,
        "aggregator_out": loads.aggregator_in,
    }
    for name, wire in carried.items():
        expected = getattr(loads, name) * (1 + 90 / 4148) + acknowledged[name] * 90 / (2 * 4148)
        assert wire == pytest.approx(expected * size, rel=0.06), name
    assert tables.bound_s(row) * 1e9 < row["time"]


# The program gets its bound from the product's planner, the model has its own.
@pytest.mark.parametrize(
    "more",
    [
        "op=all_reduce aggregators=2",
        "op=all_reduce aggregators=7 fold=turn",
        "op=all_reduce aggregators=7 type=int32",
        "op=all_reduce aggregators=3 type=bfloat16 fold=turn aggregator_rate=200gbit",
        "op=reduce_scatter aggregators=7",
        "op=reduce_scatter aggregators=7 aggregate=both",
        "op=all_gather+reduce_scatter aggregators=4 incast=64K",
        "op=all_reduce aggregators=2 aggregate=off",
        "op=all_reduce aggregators=2 ranks=2",
    ],
)
def test_the_bound_in_json_and_table_is_the_models(more, capsys):
    (row,) = run(f"hosts=8 algorithm=mcast-aggregators size=4M {more}")
    framing = row["framing"]
    wire = 1 + min(
        framing[f"{kind}_overhead"] / framing[f"{kind}_payload"] for kind in ("datagram", "stream")
    )
    expected = served.loads_of(row).time * row["size"] * wire / (row["rate"] / 8)
    assert row["ops"][0]["bound"] / 1e9 == pytest.approx(expected, rel=1e-4)
    assert row["aggregators"]["plan"] == served.plan_of(row).reason
    tables.show(tables.document([row], ""), 200)
    assert f" {tables.time_text(expected)} (" in capsys.readouterr().out


def test_speed_counts_as_more_aggregators():
    text = "hosts=8 algorithm=mcast-aggregators op=all_reduce size=16M fold=turn"
    fast, many = run(f"{text} aggregators=2 aggregator_rate=200gbit", f"{text} aggregators=4")
    assert served.plan_of(fast).part == pytest.approx(served.plan_of(many).part)
    assert fast["host_down"] == pytest.approx(many["host_down"], rel=0.02)
    assert fast["aggregators"]["down"] == pytest.approx(2 * many["aggregators"]["down"], rel=0.02)
