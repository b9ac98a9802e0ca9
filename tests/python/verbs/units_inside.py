"""Runs under the systemd of systemd.sh, as root: starts and stops the units of engine and
aggregator as the comments in their first lines say, and prints the state after each step, as a line
RESULT and JSON."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, "/opt/mcast")

from torch_mcast.aggregator.status import NoAggregator
from torch_mcast.aggregator.status import read as read_aggregator
from torch_mcast.engine.status import NoEngine
from torch_mcast.engine.status import read as read_engine

A, B = "torch-mcast-engine@a.service", "torch-mcast-engine@b.service"
AGGREGATOR = "torch-mcast-aggregator.service"
FOLDERS = (Path("/run/torch-mcast"), Path("/run/torch-mcast-aggregator"))
SHOWN = (
    "ActiveState",
    "SubState",
    "MainPID",
    "MemoryMax",
    "OOMScoreAdjust",
    "LimitCORE",
    "NRestarts",
)


def until(done: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def systemctl(*arguments: str) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def show(unit: str) -> dict[str, str]:
    lines = systemctl("show", *(f"--property={name}" for name in SHOWN), unit).splitlines()
    return dict(line.split("=", 1) for line in lines)


def files() -> dict[str, dict[str, Any]]:
    """Returns both folders and their contents."""
    seen = {}
    for folder in FOLDERS:
        for path in [folder, *sorted(folder.iterdir())] if folder.exists() else []:
            status = path.lstat()
            seen[str(path)] = {
                "type": stat.filemode(status.st_mode)[0],
                "mode": f"{stat.S_IMODE(status.st_mode):o}",
                "uid": status.st_uid,
                "gid": status.st_gid,
                "inode": status.st_ino,
            }
    return seen


def engine_pid() -> int:
    """Returns the process that clients connect to; 0: none responds."""
    try:
        return read_engine()["pid"]
    except NoEngine:
        return 0


def aggregator() -> str:
    """Returns its address; "": none responds."""
    try:
        return read_aggregator()["address"]
    except NoAggregator:
        return ""


def processes(unit: str) -> list[dict[str, Any]]:
    """Returns the limits in force for each process of a unit, as the kernel reports them."""
    group = Path(
        "/sys/fs/cgroup" + systemctl("show", "--property=ControlGroup", "--value", unit).strip()
    )
    found = []
    for pid in (group / "cgroup.procs").read_text().split():
        process = Path("/proc", pid)
        limits = process.joinpath("limits").read_text().splitlines()
        core = next(line for line in limits if line.startswith("Max core file size"))
        uids = process.joinpath("status").read_text().partition("\nUid:")[2].split()
        found.append(
            {
                "pid": int(pid),
                "name": process.joinpath("comm").read_text().strip(),
                "uid": int(uids[0]),
                "oom_score_adj": int(process.joinpath("oom_score_adj").read_text()),
                "core": core.split()[4:6],
                "memory_max": int((group / "memory.max").read_text()),
            }
        )
    return found


def asked_by(user: int, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        ["/opt/mcast/bin/torch-mcast", *arguments],
        capture_output=True, text=True, user=user, group=user, extra_groups=[],
    )  # fmt: skip
    return {"code": done.returncode, "said": done.stdout + done.stderr}


def seen() -> dict[str, Any]:
    return {"files": files(), A: show(A), AGGREGATOR: show(AGGREGATOR)}


def main() -> dict[str, Any]:
    steps: dict[str, Any] = {"memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    systemctl("start", A, AGGREGATOR)
    until(engine_pid, "the engine answers")
    until(aggregator, "the aggregator answers")
    steps["both"] = seen()
    steps["processes"] = {A: processes(A), AGGREGATOR: processes(AGGREGATOR)}
    steps["pid"] = engine_pid()
    bob = 903
    steps["bob"] = {
        "engine": asked_by(bob, "engine", "status"),
        "by name": asked_by(bob, "engine", "status", "--user", "mcast"),
        "another": asked_by(bob, "engine", "status", "--user", "alice"),
        "aggregator": asked_by(bob, "aggregator", "status", "--json"),
    }

    systemctl("stop", AGGREGATOR)
    steps["without aggregator"] = seen()
    systemctl("start", AGGREGATOR)
    until(aggregator, "the aggregator answers again")
    steps["aggregator again"] = seen()

    systemctl("stop", A)
    steps["without engine"] = seen()
    systemctl("start", A)
    until(engine_pid, "the engine answers again")
    steps["engine again"] = seen()

    systemctl("restart", A, AGGREGATOR)
    until(engine_pid, "the engine answers after a restart")
    until(aggregator, "the aggregator answers after a restart")
    steps["restarted"] = seen()

    # Its guardian ends with a failure status, after which the unit starts another one.
    before = engine_pid()
    os.kill(before, signal.SIGKILL)
    until(
        lambda: engine_pid() not in (0, before),
        "another engine in the place of one that was killed",
    )
    steps["killed"] = seen()

    # An upgrade: the second instance takes the socket; the first one has no clients and ends.
    before = engine_pid()
    systemctl("start", B)
    until(lambda: engine_pid() not in (0, before), "the second instance answers")
    until(lambda: show(A)["ActiveState"] != "active", "the first instance ends")
    steps["upgraded"] = {**seen(), B: show(B), "pid": engine_pid(), B + " processes": processes(B)}
    return steps


print("RESULT", json.dumps(main()))
