"""Runs `python ARGUMENTS` in a process that is forked from one that has imported torch, which takes
seconds."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import launch
import own_network
from ranks import free_port

from torch_mcast.lab import zygote
from torch_mcast.lab.inside import Inside


def _redirect(folder: str) -> None:
    for name, target in (("in", 0), ("out", 1), ("err", 2)):
        path = Path(folder) / name
        file = os.open(path if name != "in" else os.devnull, os.O_RDWR | os.O_CREAT)
        os.dup2(file, target)
        os.close(file)
    if encoding := os.environ.get("PYTHONIOENCODING"):  # read by an interpreter at its start
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding=encoding)  # type: ignore[union-attr]


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def body(channel: Any, arguments: list[str], folder: str, cwd: str, new_network: bool) -> None:
    channel.close()
    _redirect(folder)
    os.chdir(cwd)
    if new_network:
        own_network.unshare()
    code = 0
    try:
        _run(arguments)
    except SystemExit as end:  # handled as the interpreter does
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - handled as the interpreter does
        traceback.print_exc()
        code = 1
    zygote.leave(code & 0xFF)


class Forked:
    """Like subprocess.Popen with pipes. `variables` is the whole environment. new_network: in its
    own network namespace, where not even loopback is up. inside: a lab's host."""

    def __init__(
        self,
        arguments: Sequence[str | os.PathLike[str]],
        variables: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        new_network: bool = False,
        inside: Inside | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._where = Path(self._folder.name)
        self.args = [os.fspath(word) for word in arguments]
        here, there = socket.socketpair()
        self._process = launch.fork(
            "forked:body", self.args, self._folder.name, os.fspath(cwd or os.getcwd()), new_network,
            channel=there.fileno(), log=self._where / "log", whole_env=dict(variables or os.environ),
            inside=inside,
        )  # fmt: skip
        here.close()
        there.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def text(self) -> tuple[str, str]:
        """Returns its output so far."""
        out, err = (
            file.read_text() if (file := self._where / name).exists() else ""
            for name in ("out", "err")
        )
        log = self._where / "log"  # output of a failed start
        return out, err + (log.read_text() if log.exists() else "")

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Returns its output once it has ended."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not done after {timeout:g} s: {self.text()}") from None
        out, err = self.text()
        self._folder.cleanup()
        return out, err


def run(
    arguments: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout: float = 120,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs like subprocess.run([sys.executable, *arguments], capture_output=True, text=True, ...)."""
    process = Forked(arguments, env, cwd)
    out, err = process.communicate(timeout)
    assert process.returncode is not None
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def ranks(
    world: int,
    arguments: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str],
    timeout: float = 150,
) -> subprocess.CompletedProcess[str]:
    """Runs a job on this host, with a launcher's variables. Returns the output of all ranks, and
    the first exit code that is not 0."""
    job = {
        **env, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    each = [
        Forked(arguments, {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    said = [rank.communicate(timeout) for rank in each]
    code = next((rank.returncode for rank in each if rank.returncode), 0)
    out, err = ("".join(parts) for parts in zip(*said, strict=True))
    return subprocess.CompletedProcess(each[0].args, code, out, err)
