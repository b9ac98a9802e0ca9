"""Forks workers from one process that has done the imports: torch alone costs seconds of CPU time,
which are spent once here instead of for every worker of every lab.

    zygote = Zygote(("torch",), python)
    process = zygote.fork(order, channel)      # has pid, poll(), wait(timeout) as a Popen

The process starts no threads, opens no device and only imports, so a forked worker starts like a
new interpreter. A forked worker enters its host's namespaces itself. Zygotes end with the process
that started them, and their workers with them."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from torch_mcast.lab import system, worker
from torch_mcast.lab.inside import Inside

_LONGEST = 1 << 20  # bytes of an order: an environment and a search path


@dataclass(frozen=True)
class Order:
    """Describes a forked worker. `env` replaces the environment; `path` is its sys.path. It calls
    `entry` ("module:function") with its channel and `arguments` (of JSON); by default it serves
    calls."""

    env: dict[str, str]
    path: list[str]
    log: str
    inside: Inside | None = None
    entry: str = "torch_mcast.lab.worker:serve"
    arguments: list[Any] = field(default_factory=list)

    def dump(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> Order:
        fields = json.loads(data)
        inside = fields.pop("inside")
        return cls(**fields, inside=Inside(**inside) if inside else None)


class Forked:
    """A worker that a zygote has forked: the part of subprocess.Popen that pools use."""

    def __init__(self, pid: int, ended: int) -> None:
        """ended: descriptor of the pipe through which the zygote reports the exit code."""
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, or minus the signal. Raises subprocess.TimeoutExpired after
        `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            text = os.read(self._ended, 16)
            os.close(self._ended)
            # No report: the zygote was killed, and its children with it.
            self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode


@dataclass
class Zygote:
    """One process with these modules imported. Not thread-safe."""

    preload: tuple[str, ...]
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._socket, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = system.python_argv("zygote", str(there.fileno()), *self.preload, python=self.python)
        self._process = subprocess.Popen(
            argv, env={**os.environ, **self.env}, pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        there.close()

    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, order: Order, channel: int) -> Forked:
        """Forks a worker that serves `channel` (a descriptor, which stays the caller's). Raises
        OSError if the zygote is gone."""
        ended, tell = os.pipe()
        try:
            socket.send_fds(self._socket, [order.dump()], [channel, tell])
        finally:
            os.close(tell)
        answer = self._socket.recv(64)
        if not answer:
            os.close(ended)
            raise system.LabError(
                f"the process that forks workers ended with {self._process.wait()}: can it import "
                f"{', '.join(self.preload)}?"
            )
        return Forked(int(answer), ended)


_zygotes: dict[tuple[object, ...], Zygote] = {}


def shared(preload: tuple[str, ...], python: str, env: dict[str, str]) -> Zygote:
    """Returns the zygote of this process for these modules, started at the first call. It ends with
    this process: its socket closes."""
    key = (os.getpid(), preload, python, *sorted(env.items()))
    if key not in _zygotes or not _zygotes[key].alive():
        _zygotes[key] = Zygote(preload, python, env)
    return _zygotes[key]


def _become(order: Order, channel: int) -> Callable[[], None]:
    """Runs in the child. Returns the function to run."""
    os.setsid()
    os.environ.clear()
    os.environ.update(order.env)
    sys.path[:] = order.path
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # shown if it is killed
    if order.inside:
        order.inside.enter()
    if order.entry == Order.entry:  # not by its name: sys.modules has it without its package
        return lambda: worker.serve(Connection(channel))
    module, _, function = order.entry.partition(":")
    entry = getattr(importlib.import_module(module), function)
    return lambda: entry(Connection(channel), *order.arguments)


def _serve(orders: socket.socket) -> Callable[[], None] | None:
    """Returns in the zygote when its driver is gone (None), and in every child (the function to run)."""
    poller = select.poll()
    poller.register(orders, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # pidfd: pid, pipe
    while True:
        for descriptor, _ in poller.poll():
            if descriptor != orders.fileno():
                poller.unregister(descriptor)
                pid, tell = children.pop(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # the waiting side is gone
                    os.write(tell, str(code).encode())
                os.close(tell)
                continue
            data, fds, _, _ = socket.recv_fds(orders, _LONGEST, 2)
            if not data:
                return None
            channel, tell = fds
            pid = os.fork()
            if pid == 0:
                for pidfd, (_, pipe) in children.items():
                    os.close(pidfd)
                    os.close(pipe)
                os.close(tell)
                orders.close()
                return _become(Order.load(data), channel)
            os.close(channel)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid, tell
            poller.register(pidfd, select.POLLIN)
            orders.send(str(pid).encode())


def leave(code: int = 0) -> NoReturn:
    """Ends a worker like the interpreter, but does not tear down the modules that were imported
    before the fork: that copies all of its pages, a third of a second of CPU time without a visible
    effect."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Runs the zygote. Arguments: the descriptor for orders, and the modules.

    It ends when the descriptor closes, not with the thread that started it, because other threads of
    the driver use it, too."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    modules = sys.argv[2:]
    with contextlib.suppress(ImportError):  # needed by workers that serve calls, which report it
        importlib.import_module("cloudpickle")
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception:
        if not modules:
            raise
        # Starts over without them: workers import them, and each reports the reason.
        os.execv(sys.executable, sys.orig_argv[: -len(modules)])
    gc.freeze()  # garbage collection in workers, also at their end, skips the imported objects
    run = _serve(orders)
    if run is not None:
        worker.die_with_parent()
        run()
        leave()
