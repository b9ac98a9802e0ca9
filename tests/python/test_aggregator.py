"""`torch-mcast aggregator`: the program, its status, its end; the unit file; its docs page."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import unit_files
from waiting import until

import torch_mcast
from torch_mcast.aggregator import NoAggregator, find_program, read, socket_paths
from torch_mcast.aggregator.cli import main
from torch_mcast.aggregator.table import job_rows, show, station_rows, summary
from torch_mcast.aggregator.units import amount, duration
from torch_mcast.lab import Lab

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "aggregators.md"
UNIT = ROOT / "tools" / "torch-mcast-aggregator.service"
# This command imports torch, then becomes the program.
COMMAND = [sys.executable, "-m", "torch_mcast", "aggregator"]


def run(*arguments: str, command: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Runs the program itself, or `command`."""
    return subprocess.run(
        [*(command or [find_program()]), *arguments], capture_output=True, text=True, timeout=60
    )


def start(
    path: Path, env: dict[str, str] | None = None, lab: Lab | None = None
) -> subprocess.Popen[str]:
    """Starts an aggregator that listens on loopback, or in the last host of a lab, and reports its
    status there."""
    listen = f"{lab.workers[-1].address if lab else '127.0.0.1'}:0"
    command = [find_program(), "--listen", listen, "--status", str(path), "--quota", "64M"]
    process = subprocess.Popen(
        lab.inside(lab.workers[-1].name, command) if lab else command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )

    def answers() -> bool:
        try:
            read(path)
        except NoAggregator:
            return False
        return True

    until(answers, "an answer of the aggregator", process=process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stderr.close()


@pytest.fixture
def aggregator(tmp_path):
    """Returns a running aggregator, and the path of its status."""
    path = tmp_path / "a.sock"
    process = start(path)
    yield process, path
    end(process)


def ask(
    address: str, while_open: Callable[[], None] = lambda: None, **fields: object
) -> dict[str, str]:
    """Returns the aggregator's reply to an ask, as a map."""
    record = {
        "record": "ask", "version": "0.0.0", "protocol": 1, "transport": "udp", "tag": 1, "name": "g",
        "uids": "1 2", "host_of": "0 1", "chunk": 1408, "incast": 1 << 20, "fold": "rank",
        "aggregate": "careful", "roster": 1, "memory": 0, "link_rate": 0, "rack": "", **fields,
    }  # fmt: skip
    text = "".join(f"{key}={value}\n" for key, value in record.items()).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(len(text).to_bytes(4, "little") + text)
        stream = connection.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4), "little")).decode()
        while_open()
    return dict(line.partition("=")[::2] for line in answer.splitlines())


def test_help_and_version_come_from_the_program():
    shown = run("--help", command=COMMAND)
    assert shown.returncode == 0
    assert "usage: torch-mcast aggregator" in shown.stdout and "--quota-per-job" in shown.stdout
    assert run("--version").stdout.startswith("torch-mcast aggregator ")
    assert "torch_mcast.aggregator" not in shown.stderr


def test_wrong_options_are_named_and_end_with_2():
    wrong = run("--quota", "much")
    assert wrong.returncode == 2
    assert 'option --quota: "much" is not valid; allowed: 1M to 16384G' in wrong.stderr


def test_an_address_that_is_not_ours_ends_with_1():
    wrong = run("--listen", "192.0.2.1:7117")
    assert wrong.returncode == 1
    assert "listen at 192.0.2.1:7117" in wrong.stderr


def test_an_interface_that_is_not_there_ends_with_1():
    """It ends at the start, not at the first group's request."""
    wrong = run("--listen", "127.0.0.1:0", "--interface", "=nosuch0")
    assert wrong.returncode == 1
    found = torch_mcast.read_error(wrong.stderr)
    assert (found["error"], found["fields"]["pattern"]) == ("no_interface", "=nosuch0"), (
        wrong.stderr
    )


@pytest.mark.parametrize("level, told", [(None, True), ("", True), ("warn", False)])
def test_the_log_level_follows_the_setting(tmp_path, monkeypatch, level, told):
    """A service logs its state unless the user reduces the level."""
    monkeypatch.delenv("MCAST_DEBUG", raising=False)
    if level is not None:
        monkeypatch.setenv("MCAST_DEBUG", level)
    process = start(tmp_path / "a.sock")
    process.terminate()
    assert process.wait(20) == 0
    assert ("listens at" in process.stderr.read()) == told
    end(process)


def test_status_as_json_and_as_tables(aggregator, capsys):
    _, path = aggregator
    asked = run("status", "--json", "--socket", str(path), command=COMMAND)
    assert asked.returncode == 0, asked.stderr
    status = json.loads(asked.stdout)
    assert status["limits"]["quota"] == 64 << 20 and status["limits"]["quota_per_job"] == 16 << 20
    assert status["jobs"] == [] and set(status["refused"].values()) == {0}
    other = str(os.geteuid() + 7)
    refused = run("status", "--socket", str(path), "--user", other, command=COMMAND)
    assert refused.returncode == 1 and f"expected user {other}" in refused.stderr
    assert main(["status", "--socket", str(path), "--user", str(os.geteuid())]) == 0
    shown = capsys.readouterr().out
    assert f"at {status['address']}" in shown and "0 of 16 jobs" in shown


def test_a_refusal_is_counted_and_shown(aggregator):
    _, path = aggregator
    answer = ask(read(path)["address"])
    assert answer["record"] == "refuse" and answer["code"] == "version"
    assert "0.0.0" in answer["text"]
    assert read(path)["refused"]["version"] == 1
    assert "refused: 1 version" in summary(read(path))


def test_a_job_is_shown_while_it_lives(aggregator, capsys):
    _, path = aggregator
    status = read(path)
    seen = {}

    answer = ask(
        status["address"],
        lambda: seen.update(read(path)),
        version=status["version"],
        protocol=status["protocol"],
    )
    assert answer["record"] == "accept" and answer["station0"].endswith("127.0.0.1")
    (job,) = seen["jobs"]
    assert (job["name"], job["ranks"], job["asker_connected"]) == ("g", 2, True)
    assert 0 < job["quota_used"] <= job["quota"] == int(answer["quota"])
    assert len(job_rows(seen)) == 1 and station_rows(seen)[0][2] == "0 of 2"
    show(seen)
    assert "g" in capsys.readouterr().out


def test_a_job_s_row_has_bits_per_second_and_whom_it_waits_for():
    def station(**oldest):
        return {"oldest": oldest} if oldest else {}

    job = {
        "job": 3, "name": "g", "ranks": 4, "hosts": 2, "quota_used": 1 << 20, "quota": 4 << 20,
        "rate_in": 125e6, "rate_out": 250e6, "operations": 9,
        "stations": [
            station(operation=7, waits_for_ranks=[1], ms=10.0),
            station(operation=5, waits_for_ranks=[2, 3], ms=40.0),
            station(),
        ],
    }  # fmt: skip
    (row,) = job_rows({"jobs": [job]})
    assert row == (
        "3", "g", "4 on 2", "1.0MB of 4.0MB", "1.0Gbit/s", "2.0Gbit/s", "9", "op 5: rank 2,3, 40 ms"
    )  # fmt: skip
    (idle,) = job_rows({"jobs": [{**job, "stations": [station()]}]})
    assert idle[-1] == ""


def test_a_station_s_row_has_shares_and_odd_frames():
    station = {
        "address": "10.0.0.9:7118", "connected": 3, "cpu_share": 0.25, "folded_bytes": 3 << 20,
        "staged_share": 0.5, "blocks": 8, "declined": 1, "repeated": 2, "stale": 3, "malformed": 4,
    }  # fmt: skip
    (row,) = station_rows({"jobs": [{"job": 3, "ranks": 4, "stations": [station]}]})
    assert row == ("3", "10.0.0.9:7118", "3 of 4", "25 %", "3.0MB", "50 %", "8", "1", "9")


def test_sigterm_ends_it_in_order(aggregator):
    process, path = aggregator
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not path.exists()
    log = process.stderr.read()
    assert "listens at 127.0.0.1:" in log and "draining: 0 jobs" in log


def test_a_second_one_says_that_the_path_is_in_use(aggregator):
    _, path = aggregator
    second = run("--listen", "127.0.0.1:0", "--status", str(path))
    assert second.returncode == 1
    assert f"another aggregator answers at {path}" in second.stderr


def test_a_socket_that_was_left_behind_is_replaced(aggregator):
    process, path = aggregator
    process.kill()
    process.wait()
    assert path.exists()
    end(start(path))


def test_status_without_an_aggregator_is_an_error(tmp_path, monkeypatch, capsys):
    assert main(["status", "--socket", str(tmp_path / "none")]) == 1
    assert "no aggregator answers: " in capsys.readouterr().err
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_paths()[-1] == tmp_path / "torch-mcast-aggregator" / "aggregator.sock"


def test_without_the_program_the_command_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch_mcast._program.__file__", str(tmp_path / "b.py"))
    assert main(["--help"]) == 1
    assert "was built without it" in capsys.readouterr().err


def test_amounts_and_times():
    assert [amount(v) for v in (0, 1023, 1536, 4 << 20)] == ["0", "1023", "1.5K", "4.0M"]
    assert amount(1.5e9, 1000) == "1.5G" and amount(2e15, 1000) == "2000.0T"
    assert [duration(v) for v in (5, 600, 8000)] == ["5 s", "10 min", "2.2 h"]


def options() -> list[tuple[str, str, str, str]]:
    """Returns name, argument, help and default from --help."""
    text = subprocess.run(
        [find_program(), "--help"], capture_output=True, text=True, check=True
    ).stdout
    return re.findall(r"^  (--[a-z-]+) (\S+)\n      (.+)\n      default: (.+)$", text, re.M)


def test_the_page_has_the_table_of_options():
    page = PAGE.read_text()
    assert len(options()) >= 10
    for name, argument, meaning, default in options():
        assert f"| `{name}` | `{argument}` | {default} | {meaning} |" in page


def test_the_unit_is_one_that_systemd_takes():
    unit = UNIT.read_text()
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "Restart=always", "MemoryMax="):
        assert line in unit
    # Else systemd gives up after five starts in ten seconds, despite Restart=always.
    assert "\nStartLimitIntervalSec=0\n" in unit.partition("[Service]")[0]
    unit_files.verify(UNIT)
