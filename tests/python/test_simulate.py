"""`torch-mcast simulate`: its options, tables, JSON, plots and figures; the program behind it."""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess

import pytest

from torch_mcast import cli as commands
from torch_mcast.bench.formulas import receive_bytes
from torch_mcast.simulate import analytic, cli, figures, helper, tables, validate

FAST = ["--size", "1M", "--algorithm", "ring-schedule,direct"]


def program(
    *arguments: str, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helper.find_program(), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def run(*experiments: str, **options: bool) -> list[dict]:
    with helper.Runs(2, **options) as runs:
        return runs.run(experiments)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [("8", [8]), ("2..16", [2, 4, 8, 16]), ("2..24", [2, 4, 8, 16, 24]), ("2,188", [2, 188])],
)
def test_hosts(text, hosts):
    assert cli.parse_hosts(text) == hosts


def test_experiments_of_a_command_line():
    args = cli._parser().parse_args(
        shlex.split("--hosts 2,4 --algorithm mcast,ring --block 64K --nic-queues 2 --set window=2M")
    )
    assert cli.experiments(args) == [
        f"hosts={hosts} algorithm={name} block=64K nic_queues=2 window=2M"
        for hosts in (2, 4)
        for name in ("mcast", "ring")
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--hosts", "x"], "--hosts x: write 8, 2,8,188 or 2..1024"),
        (["--hosts", "9..2"], "is not a range"),
        (["--hosts", "1"], '"hosts=1": allowed: 2 to 16384'),
        (["--op", "gathers"], '"op=gathers": allowed: broadcast'),
        (["--op", "all_to_all", "--algorithm", "direct"], "has no schedule for all_to_all"),
        (["--op", "broadcast", "--algorithm", "chain,direct"], "has no schedule for broadcast"),
        (["--set", "colour=red"], "neither an option of an experiment nor a setting"),
        (["--set", "window=wide"], '"wide"'),
        (["--seed", "1 2"], "a value without blanks is needed"),
        (["--topology", "mesh"], "is not one of star, leafspine, fattree"),
        (["--topology", "fattree:radix=131072"], "a number is above 65536"),
        (["--set", "hosts=4"], "that is the option --hosts"),
        (["--aggregators", "2", "--algorithm", "mcast"], "mcast uses none"),
        (
            ["--aggregators", "2", "--op", "all_reduce+all_gather"],
            '"op=all_gather+all_reduce": with aggregators, op must be one reduction, or all_gather+reduce_scatter',
        ),
        (["--root", "1", "--op", "all_gather"], "--root: all_gather has no root"),
        (["--root", "0", "--op", "reduce_scatter+all_gather"], "--root: reduce_scatter+all_gather"),
        (["--type", "int32", "--op", "all_gather"], "--type: nothing is reduced by the engine"),
        (["--set", "type=int32", "--op", "broadcast"], "--type: nothing is reduced"),
        (["--type", "int32", "--op", "all_reduce", "--algorithm", "ring"], "--type: nothing is"),
        (["--fold", "turn"], "--fold: nothing is reduced by the engine"),
        (["--aggregator-rate", "10gbit"], "there are no --aggregators"),
        (["--burst", "3"], "there is no --loss"),
        (["--set", "burst=3"], "there is no --loss"),
        (["--set", "size=4M"], "that is the option --size"),
        (["--nic-queues", "2", "--set", "nic_queues=4"], "that is the option --nic-queues"),
        (["--warmup", "1", "--algorithm", "chain", "--op", "broadcast"], "chain is a schedule"),
        (["--warmup", "1", "--algorithm", "ring", "--op", "all_reduce"], "ring is a schedule"),
        (["--jobs", "0"], "--jobs 0: must be 1 or more"),
        (["--inner-rate", "10gbit"], "a star has no links between switches"),
        (["--plot-parts", "time"], "--plot-parts: there is no --plot"),
        (["--plot", "a.png", "--plot-parts", "time,heat"], "parts are time, traffic, links, use"),
        (["--json", "/"], "/ cannot be written"),
        (["--json", "/proc/a.json"], "/proc/a.json cannot be written"),
        (["--plot", "/dev/null/a.png"], "/dev/null/a.png cannot be written"),
        (["validate", "--from", "/proc"], "/proc"),
        (["validate", "--json", "/proc/a.json"], "/proc/a.json cannot be written"),
        (["swarm", "--out", "/dev/null"], "/dev/null is no folder to write to"),
        (["swarm", "--print", "-1"], "--print must be 0 to 2^63 - 1"),
        (["figures", "--out", "/proc/none", "--which", "model", "--most-hosts", "2"], "/proc/none"),
        (["figures", "--which", "ours"], "figures are model, paper, constant"),
    ],
)
def test_impossible_options_are_reported_in_one_line(arguments, reason, capsys):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and reason in err
    assert err.startswith("torch-mcast simulate: ") and err.count("\n") == 1


def test_table_json_and_plot(tmp_path, capsys):
    where = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "p" / "a.png")]
    network = ["--topology", "leafspine:leaves=2,spines=2", "--hosts", "4..8"]
    assert commands.main(["simulate", *FAST, *network, *where, "--width", "190"]) == 0
    out = capsys.readouterr().out
    for word in (
        "ring-schedule",
        "direct",
        "leaf-spine",
        "x ring",
        "NIC up/host",
        "trace",
        "seed 1",
    ):
        assert word in out
    assert tables.CAPTION in out
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["schema"] == helper.SCHEMA
    assert [row["hosts"] for row in document["rows"]] == [4, 4, 8, 8]
    for row in document["rows"]:
        assert row["ring_ratio"] == 1 or row["algorithm"] == "direct"
        assert len(row["ops"][0]["per_rank"]) == row["hosts"]
        assert max(row["ops"][0]["per_rank"]) == row["time"] >= row["ops"][0]["bound"]
        assert len(row["links"]["host-leaf up"]["each"]) == row["hosts"]
        assert (
            sum(row["timeline"]["bytes"]["host-leaf up"]) == row["links"]["host-leaf up"]["bytes"]
        )
    assert (tmp_path / "p" / "a.png").stat().st_size > 10_000


def test_a_root_and_a_type_where_they_mean_something():
    parse = cli._parser().parse_args
    for line in (
        "--root 3 --op broadcast --algorithm mcast,binomial",
        "--root 3 --op broadcast+all_gather",
        "--type int32 --fold turn --op all_reduce",
        "--type int32 --op all_reduce --algorithm mcast,direct",
    ):
        assert cli.experiments(parse(line.split()))


def test_bounds_are_those_of_the_benchmark():
    for text in (
        "hosts=4 size=1M algorithm=ring op=all_reduce",
        "hosts=3 size=1M algorithm=chain op=broadcast rate=10gbit mtu=1500",
        "hosts=4 block=64K algorithm=ring op=all_gather+reduce_scatter planes=2",
        "hosts=4 size=256K op=all_to_all+all_gather",
        "hosts=4 size=256K op=gather",
        "hosts=4 size=256K op=scatter",
    ):
        (result,) = run(text)
        need = sum(receive_bytes(o["op"], result["size"], result["hosts"]) for o in result["ops"])
        framing = result["framing"]
        wire = 1 + min(
            framing[f"{kind}_overhead"] / framing[f"{kind}_payload"]
            for kind in ("datagram", "stream")
        )
        planes = 2 if "planes=2" in text else 1
        least = need * wire / (result["rate"] / 8 * planes)
        assert tables.bound_s(result) == pytest.approx(least, abs=2e-9)


def test_an_experiment_that_cannot_be_run_does_not_keep_others(capsys):
    arguments = ["--algorithm", "mcast,ring", "--hosts", "64", "--size", "1G", "--op", "all_reduce"]
    assert cli.main([*arguments, "--ranks", "2", "--limit", "1us"]) == 1
    err = capsys.readouterr().err
    assert (
        "hosts=64 algorithm=mcast: exchanges, and reductions of hosts with several ranks, need real memory"
        in err
    )
    assert "hosts=64 algorithm=ring: not done after" in err


def test_equal_experiments_are_equal_in_two_processes():
    texts = [
        "hosts=6 size=512K algorithm=mcast op=broadcast loss=1e-3",
        "hosts=6 size=512K algorithm=mcast op=all_gather loss=1e-3",
        "hosts=6 size=512K algorithm=direct loss=1e-3 background=load=0.2,size=64K",
    ]
    outputs = {
        program("--quiet-time", *texts, **env).stdout
        for env in ({"A": "1"}, {"A": "x" * 5000, "MCAST_WINDOW": "64K", "LC_ALL": "de_DE.UTF-8"})
    }
    assert len(outputs) == 1
    results = [json.loads(line) for line in outputs.pop().splitlines()]
    assert len({r["trace_hash"] for r in results}) == len(texts)
    assert all("wall" not in r and r["schema"] == helper.SCHEMA for r in results)
    *engine, direct = (r["state"] for r in results)
    assert all(10_000 < state["idle"] < state["peak"] < 10_000_000 for state in engine)
    assert direct == {"idle": 0, "peak": 0}  # only the engine has state
    for state in engine:
        assert (state["top"]["rank"], state["leaf"]["rank"]) == (0, 5) and "inner" not in state
        assert 10_000 < state["leaf"]["idle"] < state["leaf"]["peak"] <= state["peak"]
        assert state["top"]["idle"] > state["leaf"]["idle"]  # stores its children


@pytest.mark.alone  # takes up to 4 GiB
@pytest.mark.all_tier
@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("topology=fattree:radix=32 op=broadcast size=64M", 2_000_000),
        ("topology=leafspine:leaves=32,spines=8 op=all_gather block=64K", 10_000_000),
    ],
)
def test_a_thousand_hosts(text, events):
    """The simulation takes less than 4 GiB, and gives the same in two processes."""
    four_gib = (4 << 30, 4 << 30)
    results = []
    for _ in range(2):
        answer = subprocess.run(
            [helper.find_program(), "--quiet-time", f"hosts=1024 {text}"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=1800,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, four_gib),
        )
        results.append(json.loads(answer.stdout))
    first, second = results
    assert "error" not in first and first == second
    assert first["events"] > events
    assert len(first["ops"][0]["per_rank"]) == 1024


def test_a_group_learns_from_runs_before():
    """Windows begin at the queue's capacity and grow to the path's, which a group remembers."""
    fast = "hosts=8 op=all_gather size=64M rate=400gbit"
    first, later = run(fast, f"{fast} warmup=2")
    assert later["time"] < 0.85 * first["time"]
    data = [r["links"]["host-leaf down"]["by"]["data"] for r in (first, later)]
    assert data[0] == data[1]


def test_the_program_reads_lines_and_answers_each():
    answer = program(text="hosts=2 size=64K algorithm=direct\n\nhosts=0\n")
    first, second = map(json.loads, answer.stdout.splitlines())
    assert first["time"] > 0 and first["wall"] >= 0
    assert "allowed" in second["error"] and answer.returncode == 1
    assert program("--nonsense").returncode == 2
    assert "usage" in program("--help").stdout
    shown = program("--progress", "hosts=32 size=64M op=all_gather algorithm=ring-schedule")
    shares = [float(line.split()[2]) for line in shown.stderr.splitlines()]
    assert shares == sorted(shares) and 0 < shares[0] < 1


def test_runs_that_are_left_end():
    runs = helper.Runs(1)
    with runs:
        pass
    with pytest.raises(RuntimeError):
        runs.run(["hosts=2"])


def test_figures_at_few_hosts(tmp_path, capsys):
    where = ["--out", str(tmp_path), "--most-hosts", "32"]
    assert cli.main(["figures", "--which", "model,constant", *where]) == 0
    page = (tmp_path / "model.md").read_text()
    assert page.count("| ok |") == 8 and "OFF" not in page
    assert "1.938" in page and "2.294" in page
    assert "32 hosts: binomial" in (tmp_path / "constant.md").read_text()
    assert (tmp_path / "constant.png").stat().st_size > 5_000
    assert "multicast" in capsys.readouterr().out


def test_a_deviating_figure_is_reported():
    row = figures.near("a", 1.5, 2, 2.2, 0.05)
    assert row.off and row.verdict() == "OFF"
    assert not figures.near("a", None, 2, 2.05, 0.05).off
    assert not figures.near("a", None, 2, None, 0.05).off
    assert "| a | 1.500 | 2.000 | 2.200 | OFF |" in figures.markdown("model", [row])


def test_crossings_are_those_of_the_closed_form():
    shape = analytic.leaf_spine(12, 3)
    (result,) = run(
        "hosts=12 topology=leafspine:leaves=3,spines=1 block=8296 op=all_gather "
        "algorithm=ring-schedule"
    )
    assert tables.payload(result) == 8296 * analytic.ring_all_gather(shape)
    assert tables.wire(result) == result["fabric_bytes"]


# Measured in a lab of four hosts at 1 Gbit/s.
LAB = {
    "machine": {"cpus": 2},
    "lab": {"hosts": 4, "ranks_per_host": 1, "rate": 1e9, "mtu": 1500, "burst": 262144, "queue": 4194304, "faults": []},
    "rows": [
        {"op": op, "size": 8388608, "backend": "mcast", "times_s": [seconds], "median_s": seconds, "cpu_s": cpu,
         "bound_s": bound, "lab": {"sent_mean": sent, "fabric": fabric}}
        for op, seconds, cpu, bound, sent, fabric in (
            ("broadcast", 0.0708, 0.017, 0.0706, 2209364.5, 35333956),
            ("all_gather", 0.0528, 0.024, 0.0529, 2212029.0, 35358314),
            ("reduce_scatter", 0.0555, 0.042, 0.0529, 6590587.5, 52724592),
            ("all_reduce", 0.1097, 0.065, 0.1058, 8803460.0, 88089236),
        )
    ],
}  # fmt: skip


def test_a_lab_and_the_simulator_agree():
    cases = validate.compare(validate.measured(LAB))
    assert [case.op for case in cases] == list(validate.OPS)
    assert not [case for case in cases if case.off or not case.counts]
    assert all(abs(case.sent - 1) < 0.005 for case in cases)


@pytest.mark.parametrize(
    ("change", "counts", "off"),
    [
        ({"median_s": 0.09, "bound_s": 0.089}, True, True),
        ({"lab": {"sent_mean": 2.4e6, "fabric": 35333956}}, True, True),
        # A simulated time that is too long, and bytes of one direction only, either way.
        ({"median_s": 0.06, "bound_s": 0.06}, True, True),
        ({"lab": {"sent_mean": 2.1e6, "fabric": 34896500}}, True, True),
        ({"lab": {"sent_mean": 2209364.5, "fabric": 36658780}}, True, True),
        ({"lab": {"sent_mean": 2209364.5, "fabric": 34009130}}, True, True),
        # 90 % of the bound, less the 2.1 ms that 256 KiB would take: at most 76.1 ms.
        ({"median_s": 0.0759}, True, False),
        ({"median_s": 0.0763}, False, False),
        ({"median_s": 0.09}, False, False),
        # 80 % of two CPUs.
        ({"cpu_s": 0.112}, True, False),
        ({"cpu_s": 0.114}, False, False),
    ],
)
def test_what_does_not_agree_is_off_where_links_are_the_limit(change, counts, off):
    rows = validate.measured({**LAB, "rows": [{**LAB["rows"][0], **change}]})
    (case,) = validate.compare(rows)
    assert (case.counts, case.off) == (counts, off)


def test_results_that_can_not_be_compared():
    for lab in (None, {**LAB["lab"], "rate": None}, {**LAB["lab"], "ranks_per_host": 2}):
        with pytest.raises(ValueError, match="one rank per host"):
            validate.measured({**LAB, "lab": lab})


def test_only_whole_cases_of_mcast_are_compared():
    row = LAB["rows"][0]
    other = {**row, "median_s": 1.0}
    odd = [{"partial": True}, {"backend": "gloo"}, {"op": "barrier"}, {"times_s": []}]
    found = validate.measured({**LAB, "rows": [*({**other, **change} for change in odd), row]})
    assert [(of.op, of.seconds) for of in found] == [("broadcast", row["median_s"])]


def test_an_experiment_is_what_the_lab_was():
    assert [validate.rate_for(hosts) for hosts in (2, 4, 8, 16)] == [
        "1000mbit",
        "1000mbit",
        "500mbit",
        "250mbit",
    ]
    # Datagrams of 1440 bytes at 2272 each in twice 250000, twice 64 KiB and twice 1 MiB.
    assert [validate.send_queue(rate) for rate in (1e9, 1e6, 1e12)] == [316901, 83073, 1329180]
    text = validate.experiment(LAB["lab"], "broadcast", 4096, 7)
    assert text.startswith("hosts=4 op=broadcast size=4096 rate=1000mbit mtu=1500 ")
    for word in ("shaper=262144", "queue=4194304", "link_rate=1000mbit", "seed=7"):
        assert word in text.split()
    assert "loss" not in text
    faults = [("loss", 0.01), ("bits", 0.5), ("loss", 0.02)]
    lossy = {**LAB["lab"], "faults": [{"kind": kind, "probability": p} for kind, p in faults]}
    assert "loss=0.03@host-leaf-down" in validate.experiment(lossy, "broadcast", 4096, 7).split()


def test_a_lab_that_failed_is_no_result(tmp_path, monkeypatch):
    bench = tmp_path / "python"
    monkeypatch.setattr(validate.sys, "executable", str(bench))
    args = validate._parser().parse_args(["--mtu", "9000", "--loss", "0.01"])
    for end, failed in (("exit 0", False), ("echo stopped >&2; exit 2", True)):
        write = f'while [ "$1" != --json ]; do shift; done; echo "$words" > "$2"; {end}'
        bench.write_text(f'#!/bin/sh\nwords="[\\"$*\\"]"; {write}\n')
        bench.chmod(0o755)
        if failed:
            with pytest.raises(ValueError, match="the lab of 16 hosts failed: stopped"):
                validate.measure(16, args)
        else:
            (words,) = validate.measure(16, args)
            for word in (
                "--hosts 16 --rate 250mbit --mtu 9000",
                "--backends mcast --repetitions 5 --warmup 1 --inner 1 --case-seconds 30",
                "--loss 0.01",
            ):
                assert word in words


def test_a_ratio_is_to_the_engine_s_ring_if_there_is_one():
    def ratios(*names: str) -> list[float]:
        sent = {"chain": 400, "ring-schedule": 200, "ring": 100, "mcast": 50}
        rows = [{"hosts": 4, "algorithm": name, "fabric_bytes": sent[name]} for name in names]
        return [
            row["ring_ratio"] for row in tables.document([*rows, {"error": "x"}], "")["rows"][:-1]
        ]

    assert ratios("mcast", "ring", "ring-schedule", "chain") == [0.5, 1, 2, 4]
    assert ratios("chain", "ring-schedule", "mcast") == [2, 1, 0.25]
    assert ratios("mcast", "chain") == [0.125, 1]
    other = {"hosts": 8, "algorithm": "ring", "fabric_bytes": 7}
    alone = {"hosts": 4, "algorithm": "mcast", "fabric_bytes": 50}
    assert "ring_ratio" not in tables.document([other, alone], "")["rows"][1]


def test_validate_from_files(tmp_path, capsys):
    file = tmp_path / "lab.json"
    file.write_text(json.dumps(LAB) + "\n" + json.dumps({**LAB, "rows": LAB["rows"][:1]}) + "\n")
    assert cli.main(["validate", "--from", str(file), "--width", "120"]) == 0
    assert "5 of 5 cases count, 0 are off" in capsys.readouterr().out
    wrong = {**LAB, "rows": [{**LAB["rows"][0], "median_s": 0.2, "bound_s": 0.2}]}
    file.write_text(json.dumps(wrong))
    assert cli.main(["validate", "--from", str(file)]) == 1


def test_a_swarm(tmp_path, capsys):
    assert cli.main(["swarm", "--seeds", "6", "--jobs", "2", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seeds from ") and "6 plans, no invariant was broken" in shown
    printed = program("swarm", "--print", "7").stdout
    assert printed.startswith("world ") and printed == program("swarm", "--print", "7").stdout
    plan = tmp_path / "seven.plan"
    plan.write_text(printed)
    assert cli.main(["swarm", "--plan", str(plan), "--out", str(tmp_path)]) == 0
    assert "no invariant is broken" in capsys.readouterr().out
    assert list(tmp_path.glob("swarm-*")) == []


def test_figures_of_which_none_was_run(capsys):
    assert cli.main(["figures", "--which", "model", "--most-hosts", "1"]) == 1
    assert "model: nothing was run" in capsys.readouterr().err


def test_a_plan_that_can_not_be(tmp_path, capfd):
    plan = tmp_path / "wrong.plan"
    plan.write_text("world hosts=0\n")
    assert cli.main(["swarm", "--plan", str(plan), "--out", str(tmp_path)]) == 2
    assert "wrong.plan: " in capfd.readouterr().err
    assert cli.main(["swarm", "--seeds", "0"]) == 2
    assert cli.main(["swarm", "--first", "-1"]) == 2
    assert program("swarm", "--first", "x").returncode == 2
