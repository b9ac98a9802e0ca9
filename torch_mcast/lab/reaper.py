"""Removes a lab as soon as its owner has ended, for whatever reason.

`main()` with the lab's id as argument waits for the end of its standard input, a pipe whose other
end only the owner holds: the kernel closes it even on SIGKILL. Then it removes the lab if it still
exists. Signals of the owner's terminal do not reach it, since it has its own session."""

from __future__ import annotations

import subprocess
import sys

from torch_mcast.lab import state, system


def start(lab: str) -> subprocess.Popen[bytes]:
    """Starts the reaper of a lab owned by this process; closing its stdin triggers the removal."""
    return subprocess.Popen(
        system.python_argv("reaper", lab),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def main() -> None:
    sys.stdin.buffer.read()
    if state.path_of(sys.argv[1]).exists():
        state.destroy(sys.argv[1])
