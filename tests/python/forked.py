"""`python ARGUMENTS` in a process that is forked from one that has imported torch, which takes seconds."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ranks


def body(arguments: list[str], variables: dict[str, str], folder: str) -> None:
    for name, target in (("out", 1), ("err", 2)):
        file = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


class Forked:
    """As subprocess.Popen with pipes."""

    def __init__(self, arguments: Sequence[str], variables: dict[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = ranks.forking().Process(
            target=body, args=(list(arguments), variables, self._folder.name)
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has written, once it has ended."""
        self._process.join(timeout)
        if self._process.is_alive():
            self._process.kill()
            raise AssertionError(f"not done after {timeout:g} s")
        out, err = ((Path(self._folder.name) / name).read_text() for name in ("out", "err"))
        self._folder.cleanup()
        return out, err
