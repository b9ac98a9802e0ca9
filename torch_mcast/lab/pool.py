"""Persistent workers in the hosts of a lab (or on loopback), and functions shipped to them.

    with Pool.in_lab(lab) as pool:
        values = pool.run(function, arg)          # one value per rank, WorkerFailure if any fails
        call = pool.start(function, arg)          # for tests that kill or stop ranks meanwhile
        call.wait("started"); pool.kill(2); outcomes = call.outcomes(timeout_s=30)

Each call has a rendezvous port of its own. A worker that died or was late is replaced at the next call.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch_mcast.lab import calls
from torch_mcast.lab.calls import Outcome, WorkerFailure
from torch_mcast.lab.launch import rank_env
from torch_mcast.lab.network import Lab, package_root

_LOG_TAIL = 4000


@dataclass(frozen=True)
class Place:
    """Where a rank runs: a function from argv to the command line there, and its environment."""

    name: str
    inside: Callable[[list[str]], list[str]]
    env: dict[str, str]


@dataclass
class Worker:
    process: subprocess.Popen[bytes]
    channel: Connection
    log: Path

    def log_tail(self) -> str:
        return self.log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")


class Pool:
    """Workers, one per rank. Not thread-safe; one call at a time. close() or a with block ends them."""

    def __init__(self, places: Sequence[Place], preload: Sequence[str] = (), base_port: int = 29500,
                 python: str | None = None) -> None:
        self.places = list(places)
        self._preload = tuple(preload)
        self._python = python or sys.executable
        self._ports = itertools.cycle(range(base_port, base_port + 2000))
        self._folder = tempfile.TemporaryDirectory(prefix="mcast-pool-")
        self._workers: list[Worker | None] = [None] * len(self.places)

    @classmethod
    def in_lab(cls, lab: Lab, preload: Sequence[str] = ()) -> Pool:
        """One worker per rank of the lab's worker hosts."""
        def place(host: Any, local: int) -> Place:
            env = {**lab.env(host), **rank_env(lab, host, local, 0)}
            return Place(f"{host.name}/{env['RANK']}", lambda argv: lab.inside(host, argv), env)

        return cls([place(host, local) for host in lab.workers
                    for local in range(lab.spec.ranks_per_host)], preload)

    @classmethod
    def on_loopback(cls, ranks: int, preload: Sequence[str] = ()) -> Pool:
        """Workers on this host that talk over lo."""
        places = [Place(f"rank {rank}", lambda argv: argv, {
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo", "MCAST_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1"}) for rank in range(ranks)]
        with socket.socket() as probe:  # other programs use ports of this host too
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

    def start(self, function: Callable[..., Any], *args: Any,
              env: dict[str, str] | None = None) -> Call:
        """Starts function(context, *args) on every rank."""
        port = str(next(self._ports))
        workers = [self._worker(rank) for rank in range(self.world_size)]
        for place, worker in zip(self.places, workers, strict=True):
            full = {**place.env, "MASTER_PORT": port, **(env or {})}
            calls.send(worker.channel, "call", function, args, full, self._preload)
        return Call(self, workers)

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0,
            env: dict[str, str] | None = None) -> list[Any]:
        """Values of function(context, *args), by rank. WorkerFailure if a rank fails."""
        return self.start(function, *args, env=env).results(timeout_s)

    def _worker(self, rank: int) -> Worker:
        worker = self._workers[rank]
        if worker and worker.process.poll() is None:
            return worker
        if worker:
            self._drop(rank)
        place = self.places[rank]
        here, there = socket.socketpair()
        log = Path(self._folder.name) / f"{rank}.log"
        path = os.pathsep.join(filter(None, [package_root(), *sys.path[1:]]))
        with log.open("ab") as out:
            process = subprocess.Popen(
                place.inside([self._python, "-c", "from torch_mcast.lab.worker import main; main()",
                              str(there.fileno())]),
                env={**os.environ, **place.env, "PYTHONPATH": path}, pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True)
        there.close()
        worker = Worker(process, Connection(here.detach()), log)
        self._workers[rank] = worker
        return worker

    # -- signals ----------------------------------------------------------------------------------

    def pid(self, rank: int) -> int:
        worker = self._workers[rank]
        if worker is None:
            raise ValueError(f"rank {rank} has no worker")
        return worker.process.pid

    def send_signal(self, rank: int, number: int) -> None:
        os.kill(self.pid(rank), number)

    def kill(self, rank: int) -> None:
        """SIGKILL: the kernel closes its sockets at once."""
        self.send_signal(rank, signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """SIGSTOP: its sockets stay open and nobody reads them."""
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
        self._folder.cleanup()


class Call:
    """A function that runs on all ranks. Ends with results() or outcomes(), once."""

    def __init__(self, pool: Pool, workers: list[Worker]) -> None:
        self._pool = pool
        self._workers = workers
        self._log_starts = [worker.log.stat().st_size for worker in workers]
        self._outcomes: dict[int, Outcome] = {}
        self._events: list[tuple[int, str, Any]] = []

    def _log(self, rank: int) -> str:
        data = self._workers[rank].log.read_bytes()[self._log_starts[rank]:]
        return data[-_LOG_TAIL:].decode(errors="replace")

    def _pump(self, end: float) -> bool:
        """Takes in what has come; waits for something until `end`. False: nothing came."""
        open_ranks = {self._workers[rank].channel: rank for rank in range(len(self._workers))
                      if rank not in self._outcomes}
        ready = wait(list(open_ranks), max(0.0, end - time.monotonic()))
        for channel in ready:
            rank = open_ranks[channel]  # type: ignore[index]
            try:
                kind, *rest = calls.receive(channel)  # type: ignore[arg-type]
            except (EOFError, OSError):
                process = self._workers[rank].process
                code = process.wait()
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                self._outcomes[rank] = Outcome(rank, "died", text=how, log=self._log(rank))
                continue
            if kind == "event":
                self._events.append((rank, *rest))  # type: ignore[arg-type]
            elif kind == "done":
                self._outcomes[rank] = Outcome(rank, "ok", rest[0], log=self._log(rank))
            else:
                self._outcomes[rank] = Outcome(rank, "error", error=rest[0], text=rest[1],
                                               log=self._log(rank))
        return bool(ready)

    def next_event(self, timeout_s: float) -> tuple[int, str, Any] | None:
        """(rank, tag, value) of the next event; None when all ranks have ended. TimeoutError."""
        end = time.monotonic() + timeout_s
        while not self._events:
            if len(self._outcomes) == len(self._workers):
                return None
            if not self._pump(end):
                raise TimeoutError(f"no event within {timeout_s:g} s")
        return self._events.pop(0)

    def wait(self, tag: str, ranks: Sequence[int] | None = None, timeout_s: float = 60.0) -> list[Any]:
        """Values of one event `tag` from each of these ranks (default all). TimeoutError if they do
        not come, WorkerFailure if such a rank ends without."""
        wanted = list(range(len(self._workers))) if ranks is None else list(ranks)
        found: dict[int, Any] = {}
        end = time.monotonic() + timeout_s
        while True:
            for event in list(self._events):
                if event[1] == tag and event[0] in wanted and event[0] not in found:
                    found[event[0]] = event[2]
                    self._events.remove(event)
            missing = [rank for rank in wanted if rank not in found]
            if not missing:
                return [found[rank] for rank in wanted]
            ended = [self._outcomes[rank] for rank in missing if rank in self._outcomes]
            if ended:
                raise WorkerFailure(f"ended before {tag!r}:\n{describe(ended)}", ended)
            if not self._pump(end):
                raise TimeoutError(f"no event {tag!r} from ranks {missing} within {timeout_s:g} s")

    def signal(self, tag: str, value: Any = None, ranks: Sequence[int] | None = None) -> None:
        """Answers Context.wait(tag) on these ranks (default all that still run)."""
        for rank in range(len(self._workers)) if ranks is None else ranks:
            if rank not in self._outcomes:
                with contextlib.suppress(OSError):  # it died: its outcome will say so
                    calls.send(self._workers[rank].channel, "signal", tag, value)

    def outcomes(self, timeout_s: float = 120.0) -> list[Outcome]:
        """How the call ended on every rank. Ranks without an answer in time are killed."""
        end = time.monotonic() + timeout_s
        while len(self._outcomes) < len(self._workers):
            if not self._pump(end):
                break
        for rank in range(len(self._workers)):
            if rank not in self._outcomes:
                self._outcomes[rank] = Outcome(
                    rank, "late", text=f"no answer within {timeout_s:g} s", log=self._log(rank))
                self._pool._drop(rank)
        return [self._outcomes[rank] for rank in range(len(self._workers))]

    def results(self, timeout_s: float = 120.0) -> list[Any]:
        """Values by rank; WorkerFailure with everything that went wrong."""
        all_outcomes = self.outcomes(timeout_s)
        bad = [outcome for outcome in all_outcomes if not outcome.ok]
        if bad:
            raise WorkerFailure(describe(bad), all_outcomes)
        return [outcome.value for outcome in all_outcomes]


def describe(outcomes: list[Outcome]) -> str:
    """Errors and the ends of the logs of ranks that failed."""
    parts = []
    for outcome in outcomes:
        log = f"\n  output:\n{outcome.log}" if outcome.log.strip() else ""
        parts.append(f"rank {outcome.rank} {outcome.state}: {outcome.text}{log}")
    return "\n".join(parts)
