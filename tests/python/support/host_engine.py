"""An engine of the host for tests: a separate process at a socket of the test."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from waiting import until

from torch_mcast import _program


class Engine(subprocess.Popen[str]):
    """Its log goes to a file: an unread pipe is full after a hundred groups, and the engine would
    block forever when it writes to it."""

    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        with tempfile.NamedTemporaryFile("w") as log:
            super().__init__(command, stderr=log, text=True, env={**os.environ, **(env or {})})
            self.stderr = open(log.name)  # noqa: SIM115 - open as long as the process

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        assert self.stderr is not None
        self.wait(timeout)
        return "", self.stderr.read()


def start(socket: Path, *options: str, env: dict[str, str] | None = None) -> Engine:
    program = _program.find_program("mcast-engine")
    process = Engine(program, "--socket", str(socket), *options, env=env)
    assert process.stderr is not None
    line = ""

    def said() -> bool:
        nonlocal line
        line += process.stderr.readline()
        return line.endswith("\n") or process.poll() is not None

    until(said, "a line of the engine")
    assert "listens at" in line, line + process.stderr.read()
    return process


def end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    return said
