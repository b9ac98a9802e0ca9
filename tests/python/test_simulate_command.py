"""`torch-mcast simulate` with errors, its progress bars, and the contents of its plots."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from test_simulate import LAB

from torch_mcast.simulate import cli, figures, helper, plot, swarm, tables, validate

SMALL = ["--size", "64K", "--algorithm", "direct", "--hosts", "2"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Replaces the program by a script."""

    def put(script: str) -> None:
        path = tmp_path / "program"
        path.write_text("#!/bin/bash\n" + script + "\n")
        path.chmod(0o755)
        monkeypatch.setattr(helper, "find_program", lambda: path)

    return put


def test_a_document_instead_of_the_table(capsys):
    assert cli.main([*SMALL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["hosts"] == 2


def test_results_are_kept_where_they_cannot_be_shown(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise ValueError("no table")

    monkeypatch.setattr(tables, "show", fail)
    file = tmp_path / "a.json"
    assert cli.main([*SMALL, "--json", str(file)]) == 2
    assert json.loads(file.read_text())["rows"][0]["hosts"] == 2


@pytest.mark.parametrize(
    "arguments",
    [[*SMALL, "--plot", "a.png"], ["figures", "--which", "model,constant", "--out", "o"]],
)
def test_without_matplotlib_nothing_is_run(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for module in (cli, figures):
        monkeypatch.setattr(module, "compute", lambda *_: pytest.fail("was run"))
    assert cli.main(arguments) == 2
    assert "needs matplotlib" in capsys.readouterr().err


def test_looking_whether_a_file_can_be_written_leaves_none(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for file in (new, old):
        assert cli.main([*SMALL, "--limit", "1x", "--json", str(file)]) == 2
    assert not new.exists() and old.read_text() == "kept"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "one rank per host and a rate"),
        ("[1]", "no results of torch-mcast bench"),
        ("nothing", "Expecting value"),
        (json.dumps({"lab": LAB["lab"]}), "there is no 'rows'"),
        (json.dumps({**LAB, "rows": [{"op": "broadcast"}]}), "no operation of the lab"),
        (json.dumps({**LAB, "rows": [{**LAB["rows"][0], "lab": None}]}), "not subscriptable"),
    ],
)
def test_files_that_hold_something_else(text, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(validate, "compute", lambda *_, **__: pytest.fail("was run"))
    file = tmp_path / "lab.json"
    file.write_text(text)
    assert cli.main(["validate", "--from", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo '{}'; kill -FPE $$", "^second: mcast-simulate was killed by SIGFPE"),
        ("echo '{}'; echo -n '{'; kill -FPE $$", "^second: mcast-simulate was killed by SIGFPE"),
        ("echo '{}'; echo '{}'; exit 3", "mcast-simulate ended with exit code 3 after 2 answers"),
        ("echo '{}'", "^second: mcast-simulate ended with exit code 0"),
    ],
)
def test_a_checker_that_dies(script, reason, program):
    program(f"cat > /dev/null; {script}")
    with pytest.raises(ValueError, match=reason):
        helper.check(["first", "second"])


def test_a_run_that_is_killed(program):
    program("kill -FPE $$")
    with helper.Runs(1) as runs:
        assert runs.run(["a=1"])[0]["error"] == "mcast-simulate was killed by SIGFPE"
    assert helper.how_it_ended(-signal.SIGKILL) == "was killed by SIGKILL"


@pytest.mark.parametrize("schema", [helper.SCHEMA - 1, helper.SCHEMA + 1])
def test_a_program_of_another_version_is_named(schema, program):
    program(f"echo '{{\"schema\": {schema}}}'")
    with (
        helper.Runs(1) as runs,
        pytest.raises(ValueError, match=f"uses schema {schema}, not {helper.SCHEMA}"),
    ):
        runs.run(["a=1"])


def test_wrong_options_of_one_process_end_the_swarm(program, tmp_path, capfd):
    # The second process starts before the first ends, and would take ten minutes.
    pid = tmp_path / "pid"
    program(
        f'[ "$5" = 7 ] || {{ echo $$ > "{pid}"; exec sleep 600; }}\n'
        f'until [ -s "{pid}" ]; do sleep 0.02; done; echo "no such option" >&2; exit 2'
    )
    arguments = ["swarm", "--first", "7", "--seeds", "2", "--jobs", "2", "--out", str(tmp_path)]
    assert cli.main(arguments) == 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    out, err = capfd.readouterr()
    assert err == "no such option\n" and "plans," not in out


def test_a_killed_process_of_the_swarm_is_reported(program, tmp_path, capfd):
    program("kill -FPE $$")
    assert cli.main(["swarm", "--first", "7", "--seeds", "1", "--out", str(tmp_path)]) == 1
    assert "--first 7 --count 1: was killed by SIGFPE" in capfd.readouterr().err


def test_a_plan_that_ends_a_process_is_kept_and_the_others_go_on(program, tmp_path, capfd):
    # The second plan of `swarm --out DIR --first 7 --count 3` ends the process; its output is not a
    # plan.
    ends = 'echo \'{"plan": "8", "law": "ended the process"}\'; kill -SEGV $$'
    program(
        f'case "$4" in\n--print) echo "plan $5";;\n'
        f'--plan) echo \'{{"plan": "8-small", "law": "ended the process"}}\';;\n'
        f'*) [ "$5" != 7 ] || {{ {ends}; }}; echo "{{\\"plans\\": $7}}";;\nesac'
    )
    assert (
        cli.main(["swarm", "--first", "7", "--seeds", "3", "--jobs", "1", "--out", str(tmp_path)])
        == 1
    )
    out, err = capfd.readouterr()
    assert (tmp_path / "swarm-8.plan").read_text() == "# ended the process\nplan 8\n"
    assert "8-small: ended the process" in out and "\n1 plans, invariants were broken" in out
    assert "--first 7 --count 3: was killed by SIGSEGV" in err


def test_the_rest_of_a_share_follows_its_last_seed():
    assert swarm._behind(9, ["--first", "7", "--count", "5"], 100) == [
        "--first",
        "10",
        "--count",
        "2",
    ]
    assert swarm._behind(11, ["--first", "7", "--count", "5"], 0) is None
    assert swarm._behind(9, ["--first", "7", "--seconds", "60"], 20.5) == [
        *("--first", "10"), *("--seconds", "39"),
    ]  # fmt: skip
    assert swarm._behind(9, ["--first", "7", "--seconds", "60"], 60) is None


def test_reach_is_counted_over_all_processes(program, tmp_path, capsys):
    def says(what: str) -> None:
        program('echo \'{"plans": 1, ' + what + "}'")

    arguments = ["swarm", "--first", "7", "--seeds", "2", "--jobs", "2", "--out", str(tmp_path)]
    # Either plan reaches what the other does not, and both miss one thing.
    says('"silent_counters": ["gaps", "stale\'$5\'"]')
    assert cli.main(arguments) == 0
    assert "counters that stayed at 0: gaps\n" in capsys.readouterr().out
    assert cli.main([*arguments, "--require-reach"]) == 1
    says('"silent_counters": ["stale\'$5\'"], "silent_points": []')
    assert cli.main([*arguments, "--require-reach"]) == 0
    says('"refuted_exceptions": ["shm_wakes"]')
    assert cli.main([*arguments, "--require-reach"]) == 1
    assert (
        "unreachable (csrc/sim/swarm/coverage.cpp), but reached: shm_wakes"
        in capsys.readouterr().out
    )


def test_shares_are_all_seeds_once():
    parse = swarm._parser().parse_args
    shares = swarm._shares(parse(["--seeds", "101", "--jobs", "3"]), 10)
    seeds = [int(s[1]) + k for s in shares for k in range(int(s[3]))]
    assert seeds == list(range(10, 111))
    assert len(swarm._shares(parse(["--minutes", "1", "--jobs", "3"]), 10)) == 3


def test_progress_begins_and_ends():
    told: list[tuple[int, float]] = []
    seconds: list[float] = []

    def note(number: int, virtual: float, done: float) -> None:
        told.append((number, done))
        seconds.append(virtual)

    with helper.Runs(1, on_progress=note) as runs:
        results = runs.run(["hosts=32 size=64M op=all_gather algorithm=ring-schedule"] * 2)
    assert [t for t in told if t[1] in (0, 1)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert 0 < max(seconds) <= results[0]["time"] / 1e9 < 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["figures", "--which", "model", "--most-hosts", "16"], "6 of 6"),
        (["validate", "--from", "lab.json"], "2 of 2"),
        (["swarm", "--first", "5", "--seeds", "2"], "2 plans"),
    ],
)
def test_bars_on_a_terminal_alone(arguments, shown, tmp_path):
    (tmp_path / "lab.json").write_text(json.dumps({**LAB, "rows": LAB["rows"][:2]}))
    command = [sys.executable, "-m", "torch_mcast.simulate", *arguments]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    quiet = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert quiet.returncode == 0 and quiet.stderr == ""
    master, slave = pty.openpty()
    with open(slave, "wb") as terminal:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=terminal
        )
    seen = b""
    with open(master, "rb", buffering=0) as reader:
        try:
            while piece := reader.read(4096):
                seen += piece
        except OSError:  # the terminal's other end is closed
            pass
    assert process.wait() == 0
    assert shown.encode() in seen


def results(*experiments: str) -> list[dict]:
    with helper.Runs(2, links=True) as runs:
        return runs.run(experiments)


SERVED = "algorithm=mcast-aggregators op=all_reduce size=1M fold=turn aggregators="


@pytest.mark.parametrize(("hosts", "lines"), [("4", 3), ("4,8", 3)])
def test_each_number_of_aggregators_is_an_algorithm_of_its_own(hosts, lines):
    from matplotlib import pyplot

    rows = results(
        *(
            f"hosts={h} {SERVED}{count} aggregator_rate=400gbit"
            for count in (1, 3)
            for h in hosts.split(",")
        ),
        *(f"hosts={h} algorithm=mcast op=all_reduce size=1M" for h in hosts.split(",")),
    )
    colours = {
        name: f"C{i}" for i, name in enumerate(dict.fromkeys(map(tables.algorithm_text, rows)))
    }
    assert len(colours) == lines
    figure, axis = pyplot.subplots()
    plot.times(axis, rows, colours)
    curves = [line for line in axis.lines if line.get_linestyle() == "-"]
    bounds = [line for line in axis.lines if line.get_linestyle() == "--"]
    if hosts == "4":
        assert len(axis.patches) == lines and not curves
        assert [sum(line.get_xdata()) / 2 for line in bounds] == [0, 1, 2]
    else:
        assert [list(line.get_xdata()) for line in curves] == [[4, 8]] * lines
    pyplot.close(figure)


def test_use_is_relative_to_the_rate_of_each_link():
    from matplotlib import pyplot

    network = "hosts=4 topology=leafspine:leaves=2,spines=1,planes=2"
    text = f"{network} inner_rate=40gbit {SERVED}2 aggregator_rate=400gbit"
    served, plain = results(text, f"{network} algorithm=direct size=64K")
    worker, aggregator = 100e9, 400e9
    each = [worker, worker, aggregator]
    assert plot.link_rates(served, "host-leaf up") == each * 4  # two leaves, two planes
    assert plot.link_rates(served, "leaf-spine down") == [40e9] * 4
    assert plot.link_rates(plain, "leaf-spine up") == [100e9] * 4
    assert plot.link_rates(plain, "host-leaf down") == [100e9] * 8
    figure, axis = pyplot.subplots()
    plot.heat_map(axis, served)
    hottest = float(axis.images[0].get_array().max())
    assert hottest == pytest.approx(100 * served["hottest"]["use"], rel=0.01)
    pyplot.close(figure)


@pytest.fixture(scope="module")
def reported() -> dict:
    """Simulates 12 ranks below a control tree of arity 3; one is late for a small broadcast, and
    some packets are lost."""
    (row,) = results(
        "hosts=12 topology=leafspine:leaves=3,spines=2 op=broadcast size=16K root=4 late=7:2ms "
        "arity=3 loss=0.05 seed=1 algorithm=mcast"
    )
    assert "error" not in row, row
    return row


def test_the_bytes_of_ranks_are_reported_by_class(reported):
    sent = reported["ranks_sent"]
    assert set(sent) == set(reported["sent"]) >= {"data", "control", "repair", "ack"}
    for name, of in sent.items():
        assert of["mean"]["bytes"] * 12 == pytest.approx(reported["sent"][name]["bytes"], abs=0.1)
        assert of["mean"]["packets"] * 12 == pytest.approx(
            reported["sent"][name]["packets"], abs=0.1
        )
        assert of["mean"]["bytes"] <= of["most"]["bytes"] <= reported["sent"][name]["bytes"]
    assert sent["data"]["most"]["rank"] == 4  # its root
    frames = sum(of["mean"]["frames"] for of in sent.values())
    assert frames * 12 == pytest.approx(reported["frames"]["all"], abs=0.1)


def test_peaks_and_states_are_of_named_ranks(reported):
    peaks, state = reported["peaks"], reported["state"]
    assert peaks["staging"]["rank"] == 7 and peaks["staging"]["most"] >= 16384
    assert peaks["staging"]["mean"] == pytest.approx(peaks["staging"]["most"] / 12, abs=0.01)
    assert peaks["inbox"]["most"] >= peaks["inbox"]["mean"] > 0
    assert [state[place]["rank"] for place in ("top", "inner", "leaf")] == [0, 1, 11]
    assert all(state[place]["peak"] > state[place]["idle"] for place in ("top", "inner", "leaf"))


def test_lines_below_the_table_say_it_in_words(reported, capsys):
    document = tables.document([reported], "")
    sent, staging, memory, run = tables.details(document["rows"][0])
    control, repair = (reported["ranks_sent"][name] for name in ("control", "repair"))
    assert sent.startswith("12 mcast: a mean rank (the busiest) sent repair ")
    for of in (control, repair):
        assert f"(rank {of['most']['rank']}: {tables.bytes_text(of['most']['bytes'])} in " in sent
        assert f"{tables.bytes_text(of['mean']['bytes'])} in {of['mean']['frames']:.0f} fr" in sent
    assert f"(rank {reported['frames']['rank']}: {reported['frames']['most']})" in sent
    assert "staging" in staging and f"(rank 7: {tables.bytes_text(16384)[:2]}" in staging
    for place in ("top (rank 0)", "inner (rank 1)", "leaf (rank 11)"):
        assert place in memory
    assert f"trace {reported['trace_hash']}" in run
    tables.show(document, 200)
    shown = capsys.readouterr().out
    assert all(line in " ".join(shown.split()) for line in (sent, staging, memory))


def test_schedules_have_no_state_and_no_control_to_tell_of():
    (row,) = results("hosts=4 size=64K algorithm=direct")
    sent, peaks, run = tables.details(row)
    assert "control" not in sent and "inbox" not in peaks and "ack " in sent and "trace" in run


def test_details_report_the_part_that_aggregators_fold():
    text = "hosts=8 algorithm=mcast-aggregators op=all_reduce size=8M fold=turn aggregators=7"
    folded, none = results(text, f"hosts=4 {SERVED}1 aggregate=off")
    assert folded["aggregators"]["part"] > 0.5
    assert (
        f"aggregators fold {100 * folded['aggregators']['part']:.0f} %"
        in tables.details(folded)[-1]
    )
    assert "aggregators fold nothing: aggregate is off" in tables.details(none)[-1]


@pytest.mark.parametrize(("ratio", "off"), [(2.0, 0), (1.94, 3), (2.06, 3)])
def test_the_ring_is_twice_multicast_from_256_kib_on(ratio, off, monkeypatch):
    """The paper has 188 hosts; with control and acknowledgements the ratio is within 1.95 and 2.05."""

    def compute(texts: list[str], jobs: int | None) -> list[dict]:
        return [
            {"links": {"host-leaf up": {"bytes": 1e9 * (ratio if "=ring" in text else 1)}}}
            if any(f"block={size} " in text for size in ("256K", "512K", "1M"))
            else {"error": "not asked"}
            for text in texts
        ]

    monkeypatch.setattr(figures, "compute", compute)
    batch = figures.Batch(1)
    ask = figures.paper(batch, 1024)
    batch.run()
    rows = [row for row in ask() if "with control" in row.name]
    assert [row.name.split()[5] for row in rows] == ["256KiB,", "512KiB,", "1MiB,"]
    assert [row.simulated for row in rows] == [pytest.approx(ratio)] * 3
    assert sum(row.off for row in rows) == off


@pytest.mark.parametrize(
    ("parts", "titles"),
    [
        ("traffic", ["traffic of the fabric"]),
        ("links", ["direct, 4 hosts: use of each link (%)"]),
        ("time,links,use", ["time, and the bound (dashed)", "direct, 4 hosts: use", ""]),
    ],
)
def test_parts_of_a_plot(parts, titles, tmp_path, monkeypatch):
    from matplotlib import figure

    drawn: list[str] = []

    def keep(self, path, **_):
        axes = [a for a in self.axes if a.get_visible() and a.get_label() != "<colorbar>"]
        drawn.extend(axis.get_title() for axis in axes)

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    plot.draw(
        tables.document(results("hosts=4 size=64K algorithm=direct"), ""),
        tmp_path / "a.png",
        plot.parts_of(parts),
    )
    assert len(drawn) == len(titles)
    assert all(has.startswith(title) for has, title in zip(drawn, titles, strict=True))


def test_the_traffic_added_by_security_is_reported(tmp_path, capsys):
    file, rows = tmp_path / "a.json", {}
    arguments = ["--hosts", "4", "--op", "all_reduce", "--size", "1M", "--algorithm", "mcast"]
    for mode in ("off", "auth", "sealed"):
        assert cli.main([*arguments, "--security", mode, "--json", str(file)]) == 0
        (rows[mode],) = json.loads(file.read_text())["rows"]
    shown = capsys.readouterr().out
    assert shown.count("guarded: ") == 2 == shown.count(" datagrams of 24 B and ")
    assert shown.count(" records of 20 B more; handshakes ") == 2
    assert "security" not in rows["off"]
    assert rows["auth"]["security"] == rows["sealed"]["security"]
    assert rows["auth"]["trace_hash"] == rows["sealed"]["trace_hash"] != rows["off"]["trace_hash"]
    cost = rows["sealed"]["security"]
    assert cost["datagram_bytes"] == 24 * cost["datagrams"] > 0
    assert cost["record_bytes"] == 20 * cost["records"] > 0
    assert cost["handshake_bytes"] > cost["handshakes"] > 0
    assert rows["sealed"]["fabric_bytes"] > rows["off"]["fabric_bytes"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--security", "auth"], "--security: direct is a schedule, and guards nothing"),
        (["--set", "security=auth", "--security", "auth"], "that is the option --security"),
        (["--security", "seal", "--algorithm", "mcast"], "security"),
    ],
)
def test_a_guard_without_effect_is_refused(more, reason, capsys):
    assert cli.main([*SMALL, *more]) == 2
    assert reason in capsys.readouterr().err
