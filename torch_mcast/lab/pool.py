"""Persistent workers in the hosts of a lab (or on loopback), and functions shipped to them.

    with Pool.in_lab(lab) as pool:
        values = pool.run(function, arg)          # one value per rank, WorkerFailure if any fails
        call = pool.start(function, arg)          # for tests that kill or stop ranks meanwhile
        call.wait("started"); pool.kill(2); outcomes = call.outcomes(timeout_s=30)

Each call has its own rendezvous port. A worker that died or missed the deadline is replaced at the
next call."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch_mcast.lab import calls
from torch_mcast.lab.call import Call, Worker
from torch_mcast.lab.inside import Inside
from torch_mcast.lab.launch import rank_env
from torch_mcast.lab.network import Lab
from torch_mcast.lab.system import package_root
from torch_mcast.lab.zygote import Forked, Order, shared


@dataclass(frozen=True)
class Place:
    """Describes where a rank runs, and its environment."""

    name: str
    env: dict[str, str]
    namespaces: Inside | None = None


class Pool:
    """Workers, one per rank. Not thread-safe; one call at a time. close() or a with block ends
    them."""

    def __init__(
        self,
        places: Sequence[Place],
        preload: Sequence[str] = (),
        base_port: int = 29500,
        python: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.places = list(places)
        self._preload = tuple(preload)
        self._python = python or sys.executable
        self._ports = itertools.cycle(range(base_port, base_port + 2000))
        self._folder = folder or Path(tempfile.mkdtemp(prefix="mcast-pool-"))
        self._workers: list[Worker | None] = [None] * len(self.places)

    @classmethod
    def in_lab(cls, lab: Lab, preload: Sequence[str] = ()) -> Pool:
        """Creates one worker per rank of the lab's worker hosts."""

        def place(host: Any, local: int) -> Place:
            env = {**lab.env(host), **rank_env(lab, host, local, 0)}
            return Place(
                f"{host.name}/{env['RANK']}",
                env,
                lab.namespaces(host),
            )

        return cls(
            [
                place(host, local)
                for host in lab.workers
                for local in range(lab.spec.ranks_per_host)
            ],
            preload,
            folder=lab.scratch("pool"),
        )

    @classmethod
    def on_loopback(cls, ranks: int, preload: Sequence[str] = ()) -> Pool:
        """Creates workers on this host that communicate over lo."""
        places = [
            Place(
                f"rank {rank}",
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "GROUP_RANK": "0",
                    "MASTER_ADDR": "127.0.0.1",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "MCAST_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                },
            )
            for rank in range(ranks)
        ]
        with socket.socket() as probe:  # other programs also use ports of this host
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return cls(places, preload, min(port, 60000))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def world_size(self) -> int:
        return len(self.places)

    # -- calls ------------------------------------------------------------------------------------

    def start(
        self, function: Callable[..., Any], *args: Any, env: dict[str, str] | None = None
    ) -> Call:
        """Starts function(context, *args) on every rank."""
        port = str(next(self._ports))
        workers = [self._worker(rank) for rank in range(self.world_size)]
        call = Call(workers, self._drop)  # before the functions start: it notes where the logs end
        for place, worker in zip(self.places, workers, strict=True):
            full = {**place.env, "MASTER_PORT": port, **(env or {})}
            calls.send(worker.channel, "call", function, args, full, self._preload)
        return call

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = 120.0,
        env: dict[str, str] | None = None,
    ) -> list[Any]:
        """Returns the values of function(context, *args), by rank. Raises WorkerFailure if a rank fails."""
        return self.start(function, *args, env=env).results(timeout_s)

    def _worker(self, rank: int) -> Worker:
        worker = self._workers[rank]
        if worker and worker.process.poll() is None:
            return worker
        if worker:
            self._drop(rank)
        place = self.places[rank]
        here, there = socket.socketpair()
        log = self._folder / f"{rank}.log"
        process = self._fork(place, there.fileno(), log)
        there.close()
        worker = Worker(process, Connection(here.detach()), log)
        self._workers[rank] = worker
        return worker

    def _fork(self, place: Place, channel: int, log: Path) -> Forked:
        path = [package_root(), *filter(None, sys.path)]
        # Variables that imports read.
        at_import = {name: place.env[name] for name in ("OMP_NUM_THREADS",) if name in place.env}
        at_import |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
        log.touch()
        order = Order({**os.environ, **place.env}, path, str(log), place.namespaces)
        return shared(self._preload, self._python, at_import).fork(order, channel)

    # -- signals ----------------------------------------------------------------------------------

    def pid(self, rank: int) -> int:
        worker = self._workers[rank]
        if worker is None:
            raise ValueError(f"rank {rank} has no worker")
        return worker.process.pid

    def send_signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def kill(self, rank: int) -> None:
        """Sends SIGKILL: the kernel closes its sockets at once."""
        self.send_signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Sends SIGSTOP: its sockets stay open and are not read."""
        self.send_signal(rank, signal.SIGSTOP)

    def resume(self, rank: int) -> None:
        self.send_signal(rank, signal.SIGCONT)

    # -- end --------------------------------------------------------------------------------------

    def _drop(self, rank: int) -> None:
        worker, self._workers[rank] = self._workers[rank], None
        if worker:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
            worker.channel.close()

    def close(self, grace_s: float = 5.0) -> None:
        """Lets idle workers end, kills the others."""
        for worker in self._workers:
            if worker and worker.process.poll() is None:
                with contextlib.suppress(OSError):
                    calls.send(worker.channel, "exit")
        end = time.monotonic() + grace_s
        for rank, worker in enumerate(self._workers):
            if worker:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.01, end - time.monotonic()))
                self._drop(rank)
        shutil.rmtree(self._folder, ignore_errors=True)
