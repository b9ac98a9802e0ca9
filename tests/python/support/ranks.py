"""Worker processes that stay alive between tests, because importing torch takes seconds; they are
forked from one process that has imported it.

Pool.run() sends a module-level function to `world` workers; each creates a process group, calls the
function and destroys the group. It returns the results by rank. A deadline is hard: workers that
miss it are killed (after printing their stacks) and replaced, and so is every worker whose call
failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import launch
from waiting import GUARD_S

# The network path, on loopback; tests of shared memory set another one.
_LOOPBACK = {
    "MCAST_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "MCAST_SHARED_MEMORY": "off",
    "OMP_NUM_THREADS": "1",
}


@dataclass
class Call:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    rank: int
    world: int
    init: str  # "file:..." or "tcp:port", "" for no process group
    backend: str
    options: dict[str, Any] | None
    timeout_s: float
    env: dict[str, str] = field(default_factory=dict)


class RankError(AssertionError):
    """A rank's call failed: its traceback is the message."""


def _store(call: Call) -> Any:
    import torch.distributed as dist

    kind, _, where = call.init.partition(":")
    limit = timedelta(seconds=call.timeout_s)
    if kind == "file":
        store = dist.FileStore(where, call.world)
        store.set_timeout(limit)
        return store
    return dist.TCPStore("127.0.0.1", int(where), call.world, call.rank == 0, timeout=limit)


def _execute(call: Call) -> Any:
    if not call.init:
        return call.function(*call.args)
    import torch.distributed as dist

    import torch_mcast

    options = None if call.options is None else torch_mcast.Options(**call.options)
    dist.init_process_group(
        call.backend,
        store=_store(call),
        rank=call.rank,
        world_size=call.world,
        timeout=timedelta(seconds=call.timeout_s),
        pg_options=options,
    )
    try:
        return call.function(*call.args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        forget_meshes()


def forget_meshes() -> None:
    """Forgets the meshes that DTensor caches: for an equal mesh it would use the groups of the old
    one, even if destroyed."""
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is None:
        return
    import torch

    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is None:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        return _clear_sharding_prop_cache()
    # What that function does; its import also brings torch._dynamo, 0.6 s in every worker.
    tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    clear()


@contextlib.contextmanager
def _environment(extra: dict[str, str]):
    before = {name: os.environ.get(name) for name in extra}
    os.environ.update(extra)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve(connection: Any, stacks: str, pool_env: dict[str, str]) -> None:
    """Body of a worker process."""
    gc.freeze()  # the garbage collector skips everything imported before the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(_LOOPBACK, **pool_env)
    with open(stacks, "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        faulthandler.enable(file=file)
        while True:
            try:
                call = pickle.loads(connection.recv_bytes())
            except EOFError:
                return
            try:
                with _environment(call.env):
                    answer = (True, _execute(call))
                payload = pickle.dumps(answer)
            except BaseException:  # noqa: BLE001 - every error is reported to the test
                payload = pickle.dumps((False, traceback.format_exc()))
            connection.send_bytes(payload)


# Below the range from which the kernel takes ports of outgoing connections, so that none of them
# takes a port between its probe and its use. Each number is given out once per round: two users in
# one process, whose network is its own (own_network), never get the same. Without root all workers
# share one loopback, and start at different numbers.
_FIRST_PORT, _LAST_PORT = 20000, 32767
_ports = itertools.cycle(range(_FIRST_PORT, _LAST_PORT + 1))
for _ in range(os.getpid() % 100 * 127):
    next(_ports)


def free_port() -> int:
    """Returns a TCP port without a listener on any address of this process's network."""
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise AssertionError("unreachable: the ports repeat")


class Worker:
    def __init__(self, folder: Path, number: int, env: dict[str, str]) -> None:
        self.stacks, self._log = folder / f"stacks{number}", folder / f"log{number}"
        here, there = socket.socketpair()
        # Imports read other variables than those of the fake device: then the process does them itself.
        late = all(name.startswith("FAKE_") for name in env)
        self.process = launch.fork(
            "ranks:serve", str(self.stacks), env,
            channel=there.fileno(), log=self._log, env=env, preload=launch.MODULES if late else (),
        )  # fmt: skip
        there.close()
        self.connection = Connection(here.detach())

    def kill(self) -> None:
        self.connection.close()
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def describe(self) -> str:
        """Returns its Python stacks, if it still runs, and its output."""
        said = self._log.read_text(errors="replace")
        code = self.process.poll()
        if code is not None:
            stacks = self.stacks.read_text() if self.stacks.exists() else ""
            return f"died with {code}\n{stacks}{said}"
        os.kill(self.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            text = self.stacks.read_text()
            if "most recent call first" in text:
                return text + said
            time.sleep(0.05)
        return f"no stack available\n{said}"


# Workers that wait for another call. A pytest process has several pools, and one worker holds up to
# 300 MB that the others do not share.
KEPT_WORKERS = 8


class Pool:
    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._env = dict(env or {})
        self._folder = Path(tempfile.mkdtemp(prefix="mcast_ranks_"))
        self._workers: dict[int, Worker] = {}
        self._numbers = itertools.count()

    def worker(self, rank: int) -> Worker:
        if rank not in self._workers or self._workers[rank].process.poll() is not None:
            self._workers[rank] = Worker(self._folder, next(self._numbers), self._env)
        return self._workers[rank]

    def _init(self, store: str) -> str:
        if store == "none":
            return ""
        if store == "tcp":
            return f"tcp:{free_port()}"
        return f"file:{self._folder / f'store{next(self._numbers)}'}"

    def run(
        self,
        world: int,
        function: Callable[..., Any],
        *args: Any,
        backend: str = "mcast",
        options: dict[str, Any] | None = None,
        timeout_s: float = GUARD_S,
        limit_s: float = GUARD_S + 20,
        store: str = "file",
        env: dict[str, str] | None = None,
    ) -> list[Any]:
        """Returns the results of function(*args) on ranks 0..world-1. Raises RankError with all
        tracebacks if one fails.

        `timeout_s` is the process group's timeout, `limit_s` that of the whole call. store: "file",
        "tcp", or "none" for a call without a process group.
        """
        init = self._init(store)
        workers = [self.worker(rank) for rank in range(world)]
        for rank, worker in enumerate(workers):
            call = Call(
                function, args, rank, world, init, backend, options, timeout_s, dict(env or {})
            )
            with contextlib.suppress(OSError):  # it has died, which _collect reports
                worker.connection.send_bytes(pickle.dumps(call))
        answers = self._collect(workers, limit_s)
        failed = {rank: text for rank, (good, text) in answers.items() if not good}
        if failed:
            # Replaces all of them: one that waited for the failed rank may send more messages than
            # expected.
            for rank in range(world):
                self._workers.pop(rank).kill()
            raise RankError(
                "\n".join(f"--- rank {rank} of {world}\n{text}" for rank, text in failed.items())
            )
        for rank in range(KEPT_WORKERS, world):
            self._workers.pop(rank).kill()
        return [answers[rank][1] for rank in range(world)]

    def _collect(self, workers: list[Worker], limit_s: float) -> dict[int, tuple[bool, Any]]:
        deadline = time.monotonic() + limit_s
        waiting = {worker.connection: rank for rank, worker in enumerate(workers)}
        answers: dict[int, tuple[bool, Any]] = {}
        while waiting and time.monotonic() < deadline:
            ready = multiprocessing.connection.wait(
                list(waiting), max(0.0, deadline - time.monotonic())
            )
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    answers[rank] = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    workers[rank].process.wait()
                    answers[rank] = (False, workers[rank].describe())
        for rank in waiting.values():
            answers[rank] = (False, f"no answer in {limit_s} s\n{workers[rank].describe()}")
        return answers

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
