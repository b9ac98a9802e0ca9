"""Removes a lab as soon as its owner is gone, however it went.

`main()` with the lab's id as argument waits for the end of its standard input, a pipe whose other
end only the owner holds: the kernel closes it even on SIGKILL. Then it removes the lab if it is
still there. Signals of the owner's terminal do not reach it (it has a session of its own)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_mcast.lab import state


def start(lab: str) -> subprocess.Popen[bytes]:
    """The reaper of a lab owned by this process; closing its stdin makes it do its work."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-c", "from torch_mcast.lab.reaper import main; main()", lab],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
    )


def main() -> None:
    sys.stdin.buffer.read()
    if state.path_of(sys.argv[1]).exists():
        state.destroy(sys.argv[1])
