"""`torch-mcast estimate`: its figures against those worked out by hand, and against the planner in C++."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from built import built
from seeds import seed_of

from torch_mcast import cli as commands
from torch_mcast.bench.report import bytes_text
from torch_mcast.cost_model import aggregation, cli
from torch_mcast.cost_model.aggregation import Case, Servers, Tree

ROOT = Path(__file__).parents[2]
WHOLE = 65536
OWN, MODES = ("sent", "kept", "either"), ("careful", "both", "off")


@pytest.mark.parametrize(
    "own, ratio, links, part, time",
    [
        ("sent", 1, 1, 0.200, 1.600),
        ("sent", 1, 4, 0.636, 1.273),
        ("sent", 1, 7, 0.857, 1.107),
        ("kept", 1, 2, 0.412, 1.441),
        ("kept", 1, 7, 1.000, 1.000),
        ("kept", 2, 4, 0.737, 1.289),
        ("either", 2, 7, 0.857, 1.107),
    ],
)
def test_the_plan_for_8_hosts(own, ratio, links, part, time):
    plan = aggregation.plan(
        Case(False, 64 << 20, 8, Servers(8, links, links), 60 << 10, ratio, own)
    )
    assert plan.reason == "placed"
    assert (plan.part, plan.planned) == pytest.approx((part, time), abs=6e-4)
    assert plan.workers == 1.75


def test_aggregators_with_multicast_results_gain_as_the_closed_form_says():
    for hosts in (4, 8, 16, 64):
        for count in range(1, hosts + 1):
            servers = Servers(hosts, count, count)
            part = aggregation.best_part(servers.by_server)
            gain = aggregation.ring("all_reduce", hosts).time / servers.by_server(part).time
            assert gain == pytest.approx(1 + count * (hosts - 2) / hosts**2)


def test_the_other_ways():
    assert aggregation.ring("all_reduce", 8).worker_out == 1.75
    assert aggregation.workers_only("all_reduce", 8).worker_out == 1
    servers = Servers(8, 4, 4)
    assert servers.unicast("all_reduce").aggregator_out == 2
    assert servers.unicast("all_reduce").time == 2
    assert servers.by_server(1).aggregator_out == 0.25
    assert Servers(8, 4, 8).unicast("all_reduce").time == 1  # links twice as fast
    for op in aggregation.OPS:
        assert aggregation.ideal_switch(op, 8).time == 1


def test_a_tree_spares_the_uplinks():
    tree = Tree((4, 4), (1, 1), 1)
    loads = tree.loads("all_reduce", 0.5)
    assert (loads.aggregator_in, loads.aggregator_out, loads.top_in, loads.top_out) == (
        2,
        0.5,
        1,
        0.5,
    )
    up, down = tree.uplink("all_reduce", 1, 0)
    assert (up, down) == (1 + 0.5, 0.5 + 0.5)
    assert tree.uplink("all_reduce", 1, 0, leaves=False) == (4 + 0.5, 1)
    assert tree.uplink("reduce_scatter", 0, 0) == (2, 2)
    assert Tree((4, 2), (1, 0), 1).loads("all_reduce", 1).top_in == 3  # a rack without leaves
    assert aggregation.grow_leaves((6, 2), 4) == (3, 1)
    with pytest.raises(ValueError, match="need a leaf each"):
        aggregation.grow_leaves((4, 4), 1)


def drawn_tree(rng: random.Random, hosts: int, ratio: int, tops: float) -> tuple[Tree, list[int]]:
    """Returns the tree, and per rack its hosts, its leaves and their total capacity."""
    ends = sorted(rng.sample(range(1, hosts), rng.randint(1, min(hosts - 1, 5))))
    racks = [b - a for a, b in zip([0, *ends], [*ends, hosts], strict=True)]
    rows = [(size, rng.randint(0, 3)) for size in racks]
    if not any(leaves for _, leaves in rows):
        rows[0] = (racks[0], 1)
    full = [(size, n, sum(1 + rng.randrange(2 * WHOLE) for _ in range(n))) for size, n in rows]
    links = tuple(capacity / WHOLE for _, _, capacity in full)
    return Tree(tuple(racks), links, tops, ratio), [field for row in full for field in row]


def drawn_case(rng: random.Random) -> tuple[Case, list[int], list[int]]:
    hosts = rng.randint(1, rng.choice((10, 200)))
    capacities = [
        rng.randrange(rng.choice((2, 8)) * WHOLE)
        for _ in range(rng.randint(0, rng.choice((8, hosts))))
    ]
    links = sum(capacities) / WHOLE
    case = Case(
        scatter=rng.random() < 0.5,
        size=rng.randrange(1 << rng.randint(12, 40)) + 1,
        members=hosts * rng.randint(1, 4),
        servers=Servers(hosts, len(capacities), links),
        segment=4096 * rng.randint(1, 15),
        ratio=rng.choice((1, 1, 2)),
        own=rng.choice(OWN),
        mode=rng.choice(("careful", "careful", "both", "off")),
    )
    if hosts < 3 or not links or rng.random() < 0.6:
        return case, capacities, []
    tree, racks = drawn_tree(rng, hosts, case.ratio, links)
    case = replace(case, own="sent", tree=tree, leaves=sum(racks[1::3]))
    return case, capacities, racks


def line_of(case: Case, capacities: list[int], racks: list[int]) -> str:
    fields = (
        int(case.scatter),
        case.size,
        case.members,
        case.servers.hosts,
        case.segment,
        case.ratio,
        OWN.index(case.own),
        MODES.index(case.mode),
        len(capacities),
        *capacities,
        len(racks) // 3,
        *racks,
    )
    return " ".join(map(str, fields))


def compare(case: Case, answer: str) -> None:
    """Compares both: fractions of C++ are in 1/65536 and its times are rounded up."""
    *figures, reason = answer.split(" ", 6)
    part, kept, planned, workers, alone, served = (int(figure) / WHOLE for figure in figures)
    plan = aggregation.plan(case)
    near = 3 / WHOLE
    assert workers == pytest.approx(plan.workers, abs=near)
    assert served == pytest.approx(plan.served, abs=near)
    if reason != plan.reason:  # at the edge: the gain equals the cost
        best = case.choose(case.own != "sent")[0]
        if case.own == "either":
            best = min(best, case.choose(False)[0])
        assert {reason, plan.reason} == {"placed", "the gain is less than the cost"}
        assert workers - best == pytest.approx(case.cost / case.size, abs=near)
        return
    assert planned == pytest.approx(plan.planned, abs=near)
    if bool(kept) == plan.kept:  # else both take the same time
        steep = 1.0  # at the stations
        if plan.part:
            steep += case.loads("reduce_scatter", 1.0, plan.kept).time
        assert alone == pytest.approx(plan.alone, abs=near * steep)
        assert part == pytest.approx(plan.part, abs=near)


def test_the_planner_in_cpp_agrees_on_10000_points():
    program = built(
        "placement_rows",
        "tests/python/support/placement_rows.cpp",
        "csrc/aggregation/plan/placement.*",
    )
    seed = seed_of(None)
    cases = []
    for rng in (random.Random(1), random.Random(seed)):
        cases += [drawn_case(rng) for _ in range(5000)]
    asked = "\n".join(line_of(*case) for case in cases)
    run = subprocess.run([program], input=asked, text=True, capture_output=True, timeout=120)
    answers = run.stdout.splitlines()
    assert len(answers) == len(cases)
    for (case, capacities, racks), answer in zip(cases, answers, strict=True):
        try:
            compare(case, answer)
        except AssertionError as error:
            raise AssertionError(f"{case}, {capacities}, {racks}: C++ says {answer}") from error


def run_model(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    return code, *capsys.readouterr()


def test_the_command_tells_bytes_and_times(capsys):
    code, out, _ = run_model(
        capsys, "--hosts", "8", "--aggregators", "4", "--rate", "300mbit", "--json"
    )
    assert code == 0
    rows = {row["way"]: row for row in json.loads(out)["rows"]}
    assert list(rows) == [
        "ring",
        "workers only, multicast",
        "aggregators, unicast results",
        "aggregators, O",
        "aggregators, R",
        "mixed, O",
        "mixed, R",
        "ideal switch",
    ]
    assert rows["ideal switch"]["bound_s"] == pytest.approx(1.88, abs=0.005)
    assert rows["mixed, O"]["gain"] == pytest.approx(1.375)
    assert rows["mixed, O"]["aggregator_in"] == pytest.approx(0.636 * 2 * 2**26, rel=1e-3)


@pytest.mark.parametrize(
    "hosts, size",
    # 43, 11 and 2 chunks: 60 KiB at most, half of 2 MiB shared by the others, 4 KiB at least.
    [(2, 60544), (8, 60544), (64, 15488), (1000, 2816)],
)
def test_frames_of_all_others_fill_half_of_the_incast(hosts, size):
    assert aggregation.segment_bytes(hosts) == size


@pytest.mark.parametrize(
    "dtype, fold, part, kept",
    [
        ("f32", "rank", 0.857, False),
        ("f32", "turn", 1.0, True),
        ("i32", "rank", 1.0, True),
        ("bf16", "turn", 0.857, False),
        ("f16", "turn", 0.857, False),
        ("f64", "turn", 1.0, True),
    ],
)
def test_an_owner_keeps_its_own_where_the_order_allows_it(capsys, dtype, fold, part, kept):
    """As in test_the_plan_for_8_hosts: an order of ranks is broken by it, and sums of halves are longer."""
    _, out, _ = run_model(
        capsys, "--hosts", "8", "--aggregators", "7", "--dtype", dtype, "--fold", fold, "--json"
    )
    plan = json.loads(out)["plan"]
    assert plan["part"] == pytest.approx(part, abs=6e-4) and plan["kept"] is kept


@pytest.mark.parametrize(
    "ranks, reason", [(1, "placed"), (8, "fewer than 4 segments for a station")]
)
def test_shards_are_those_of_all_ranks(capsys, ranks, reason):
    _, out, _ = run_model(
        capsys, "--hosts", "8", "--aggregators", "7", "--size", "8M", "--fold", "turn", "--json",
        "--ranks-per-host", str(ranks),
    )  # fmt: skip
    assert json.loads(out)["plan"]["reason"] == reason


def test_uplinks_are_told_up_and_down(capsys):
    _, out, _ = run_model(
        capsys, "--hosts", "8", "--aggregators", "3", "--racks", "6+2", "--size", "64M", "--json"
    )
    (row,) = (row for row in json.loads(out)["rows"] if row["way"] == "mixed, O, tree")
    tree = Tree((6, 2), (1, 1), 1)
    loads = [tree.uplink("all_reduce", row["part"], rack) for rack in range(2)]
    assert row["leaves"] == [1, 1]
    assert row["uplinks"] == [[pytest.approx(way * 2**26) for way in pair] for pair in loads]
    _, out, _ = run_model(capsys, "--hosts", "8", "--aggregators", "3", "--racks", "6+2")
    (line,) = (line for line in out.splitlines() if "mixed, O, tree" in line)
    assert bytes_text(max(map(max, row["uplinks"]))) in line


def test_without_options_a_network_has_no_aggregators(capsys):
    _, out, _ = run_model(capsys, "--json")
    document = json.loads(out)
    ways = [row["way"] for row in document["rows"]]
    assert ways == ["ring", "workers only, multicast", "ideal switch"]
    assert (document["hosts"], document["size"], document["speed"]) == (8, 64 << 20, 1.0)
    assert document["bytes_per_s"] == pytest.approx(118.9e6, rel=1e-3)
    _, out, _ = run_model(capsys, "--aggregators", "2", "--json")
    parts = {row["way"]: row["part"] for row in json.loads(out)["rows"]}
    whole = ("aggregators, unicast results", "aggregators, O", "aggregators, R")
    assert [parts[way] for way in whole] == [1, 1, 1] and parts["ring"] is None


def test_the_command_prints_a_table(capsys):
    code, out, _ = run_model(
        capsys, "--aggregators", "3", "--racks", "4+4", "--op", "reduce_scatter"
    )
    assert code == 0
    assert "mixed, O, tree" in out
    assert "alone it gains nothing" in out
    code, out, _ = run_model(capsys, "--aggregators", "1", "--size", "64k")
    assert code == 0
    assert "leaves all to the workers: less than 1 MiB" in out
    assert run_model(capsys, "--hosts", "4")[0] == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--hosts", "1"), "must be positive"),
        (("--rate", "1apple"), "unknown unit"),
        (("--racks", "4+3"), "does not add up to 8 hosts"),
        (("--racks", "4+4", "--aggregators", "2"), "need a leaf each"),
    ],
)
def test_questions_without_sense(capsys, arguments, said):
    code, _, err = run_model(capsys, *arguments)
    assert code == 2
    assert said in err


def test_json_goes_to_a_file_and_the_table_to_the_terminal(capsys, tmp_path):
    file = tmp_path / "new" / "estimate.json"
    code, out, _ = run_model(capsys, "--json", str(file))
    assert code == 0 and "workers only, multicast" in out
    assert json.loads(file.read_text())["rows"][0]["way"] == "ring"
    code, _, err = run_model(capsys, "--json", str(tmp_path))
    assert code == 2 and f"--json {tmp_path}: Is a directory" in err


def test_the_old_name_still_works_and_is_deprecated(capsys):
    assert commands.main(["model", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["hosts"] == 8
    assert err == (
        "torch-mcast model is deprecated and will be removed in the next release; "
        "use torch-mcast estimate\n"
    )
    assert commands.main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:2] == "  "]
    assert "estimate" in listed and "model" not in listed
    done = subprocess.run(
        [sys.executable, "-m", "torch_mcast.model", "offload", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout)["kernels"]
    assert "use torch_mcast.cost_model" in done.stderr
