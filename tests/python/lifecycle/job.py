"""The test's end of the control channel: jobs of ranks that are meant to die, stop, or end in other
ways than by returning.

Every wait is bounded by a guard, which does not assert how long something takes: this machine may
be busy, and exceeding the guard means a hang. Durations of limits are asserted in virtual time
(tests/cpp/collective). When a job ends, its ranks' sessions must be empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import launch
from moved_clock import MovedClock
from waiting import GUARD_S, until

_PRELOAD = ("torch.distributed", "preloaded")
# Modules of scenarios whose ranks train; they are forked with what training imports.
_TRAIN = ("scenarios_long", "scenarios_notebook")
_ENV = {
    "MCAST_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "MCAST_SHARED_MEMORY": "off",
    "OMP_NUM_THREADS": "1",
}


class Rank:
    def __init__(self, job: Job, number: int, env: dict[str, str], netns: str) -> None:
        self.job, self.number = job, number
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.connection, there = socket.socketpair()
        preload = launch.MODULES if job.scenario.startswith(_TRAIN) else _PRELOAD
        with there:
            self._process = launch.fork(
                "rank_process:main", str(job.folder), number, job.world, job.scenario, job.args, job.limits,
                netns, channel=there.fileno(), log=job.folder / f"out{number}", env=env, preload=preload,
            )  # fmt: skip
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self.connection.makefile("r"):
                self.events.put(json.loads(line))
        self.events.put({"event": "end of the conversation"})

    def expect(self, event: str, guard_s: float = GUARD_S) -> dict[str, Any]:
        """Returns the next event, which must be this one."""
        try:
            row = self.events.get(timeout=guard_s)
        except queue.Empty:
            row = {"event": f"nothing in {guard_s} s"}
        assert row["event"] == event, (
            f"rank {self.number}: wanted {event}, got {row}\n{self.job.output()}"
        )
        return row

    def order(self, word: str) -> None:
        try:
            self.connection.sendall(f"{word}\n".encode())
        except OSError as error:
            raise AssertionError(f"rank {self.number}: {error}\n{self.job.output()}") from error

    def signal(self, number: int) -> float:
        os.kill(self.pid, number)
        return time.monotonic()

    def code(self, guard_s: float = GUARD_S) -> int:
        try:
            return self._process.wait(guard_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {self.number} still runs\n{self.job.output()}") from None

    def output(self) -> str:
        path = self.job.folder / f"out{self.number}"
        return path.read_text(errors="replace") if path.exists() else ""


class Job(contextlib.AbstractContextManager):
    """with Job(world, "module.function", *args) as job: job.ranks[0].expect(...)"""

    def __init__(
        self, world: int, scenario: str, *args: Any,
        env: dict[str, str] | None = None, limits: dict[str, int] | None = None,
        by_rank: dict[int, dict[str, str]] | None = None, netns: str | Sequence[str] = "",
    ) -> None:  # fmt: skip
        """`env` is for all ranks, `by_rank` adds to it for some. `limits`: {"RLIMIT_NOFILE": 40}.
        `netns`: path of a network namespace, or one for each rank."""
        self.folder = Path(tempfile.mkdtemp(prefix="mcast_life_"))
        self.world, self.scenario, self.args, self.limits = world, scenario, args, limits or {}
        self.ranks: list[Rank] = []
        for number in range(world):
            there = netns if isinstance(netns, str) else netns[number]
            own = {**_ENV, **(env or {}), **(by_rank or {}).get(number, {})}
            self.ranks.append(Rank(self, number, own, there))

    def others(self, *victims: int) -> list[Rank]:
        return [rank for rank in self.ranks if rank.number not in victims]

    def pass_time(self, clock: MovedClock, event: str, ranks: list[Rank], count: int = 1) -> None:
        """Moves the clock until each of `ranks` has sent as many events, of which the last is
        `event` (for a failure's text). Other ranks do not run."""
        pids = [rank.pid for rank in ranks]
        clock.run_until(lambda: all(rank.events.qsize() >= count for rank in ranks), event, pids)

    def order(self, word: str) -> None:
        for rank in self.ranks:
            rank.order(word)

    def expect(self, event: str, guard_s: float = GUARD_S) -> list[dict[str, Any]]:
        return [rank.expect(event, guard_s) for rank in self.ranks]

    def end(self, *codes: int) -> None:
        """Asserts that all ranks have ended, with these exit codes (one for all: 0), and left no
        process behind."""
        expected = codes if len(codes) == self.world else self.world * (codes or (0,))
        got = tuple(rank.code() for rank in self.ranks)
        assert got == tuple(expected), f"exit codes {got}\n{self.output()}"
        self.nothing_left()

    def nothing_left(self) -> None:
        """Waits, since signals take a moment."""
        until(lambda: not self.left(), lambda: f"{self.left()}\n{self.output()}", GUARD_S)

    def left(self) -> list[str]:
        """Returns the processes of the ranks' sessions that have not ended: "pid name state"."""
        sessions = {rank.pid for rank in self.ranks}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                name, _, rest = (entry / "stat").read_text().rpartition(") ")
                fields = rest.split()
                if int(fields[3]) in sessions and fields[0] != "Z":
                    found.append(f"{name}) {fields[0]}")
        return found

    def output(self) -> str:
        return "\n".join(f"--- rank {r.number} (pid {r.pid})\n{r.output()}" for r in self.ranks)

    def __exit__(self, *exc: object) -> None:
        for line in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        for rank in self.ranks:
            rank.code()
            rank.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)
