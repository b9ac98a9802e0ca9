"""An engine of the host for tests: a process of its own at a socket of the test's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from torch_mcast import _program


def start(socket: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [_program.find_program("mcast-engine"), "--socket", str(socket), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stderr.readline()
    assert "listens at" in line, line
    return process


def end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    return said
