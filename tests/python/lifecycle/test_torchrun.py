"""torchrun: a restart with the same store, then Ctrl-C of the whole job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torchrun import torchrun
from waiting import GUARD_S, until

SCRIPT = Path(__file__).with_name("restarted.py")


def alive(session: int) -> list[str]:
    """Returns the processes of a session, zombies included."""
    rows = subprocess.run(
        ["ps", "-e", "-o", "pid=,sid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [row for row in rows if row.split()[1] == str(session)]


@pytest.mark.parametrize(
    ("shared_memory", "path"),
    [
        ("off", "multicast"),
        pytest.param("auto", "shared memory", marks=pytest.mark.all_tier),
    ],
)
def test_restart_then_interrupt(tmp_path, shared_memory, path):
    folder = str(tmp_path)
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [*torchrun(2), "--max-restarts", "1", "--monitor-interval", "0.1", "--redirects", "3",
             "--log-dir", str(tmp_path / "ranks"), str(SCRIPT), folder, path],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
                 "OMP_NUM_THREADS": "1", "MCAST_SHARED_MEMORY": shared_memory,
                 "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def said() -> str:
        """Returns what the ranks have written."""
        return "".join(file.read_text() for file in (tmp_path / "ranks").rglob("std*.log"))

    def text() -> str:
        return said() + (tmp_path / "log").read_text()

    try:
        good = [tmp_path / f"good{rank}" for rank in (0, 1)]
        until(lambda: all(file.exists() for file in good), text, process=process)
        assert "deliberate, in the first attempt" in text()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(GUARD_S) != 0
        assert alive(process.pid) == [], text()
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(GUARD_S)
    # (torchrun itself, which does not load the extension, may abort when it is interrupted.)
    assert "terminate called" not in said() and "Segmentation" not in text(), text()
