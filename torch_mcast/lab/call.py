"""A call that runs on all workers of a pool: its events, signals and outcomes."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch_mcast.lab import calls
from torch_mcast.lab.calls import Outcome, WorkerFailure
from torch_mcast.lab.zygote import Forked

_LOG_TAIL = 4000


@dataclass
class Worker:
    process: Forked
    channel: Connection
    log: Path


class Call:
    """A function that runs on all ranks. Ends with results() or outcomes(), once."""

    def __init__(self, workers: list[Worker], drop: Callable[[int], None]) -> None:
        """drop(rank) kills a worker that missed the deadline."""
        self._workers = workers
        self._drop = drop
        self._log_starts = [worker.log.stat().st_size for worker in workers]
        self._outcomes: dict[int, Outcome] = {}
        self._events: list[tuple[int, str, Any]] = []

    def _log(self, rank: int) -> str:
        data = self._workers[rank].log.read_bytes()[self._log_starts[rank] :]
        return data[-_LOG_TAIL:].decode(errors="replace")

    def _pump(self, end: float) -> bool:
        """Reads the messages that have arrived; waits for one until `end`. Returns false if none
        arrived."""
        open_ranks = {
            self._workers[rank].channel: rank
            for rank in range(len(self._workers))
            if rank not in self._outcomes
        }
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
                self._events.append((rank, *rest))
            elif kind == "done":
                self._outcomes[rank] = Outcome(rank, "ok", rest[0], log=self._log(rank))
            else:
                self._outcomes[rank] = Outcome(
                    rank, "error", error=rest[0], text=rest[1], log=self._log(rank)
                )
        return bool(ready)

    def next_event(self, timeout_s: float) -> tuple[int, str, Any] | None:
        """Returns (rank, tag, value) of the next event; None when all ranks have ended. Raises
        TimeoutError."""
        end = time.monotonic() + timeout_s
        while not self._events:
            if len(self._outcomes) == len(self._workers):
                return None
            if not self._pump(end):
                raise TimeoutError(f"no event within {timeout_s:g} s")
        return self._events.pop(0)

    def wait(
        self, tag: str, ranks: Sequence[int] | None = None, timeout_s: float = 60.0
    ) -> list[Any]:
        """Returns the values of one event `tag` from each of these ranks (default all). Raises
        TimeoutError if they do not arrive, WorkerFailure if such a rank ends without sending it."""
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
        """Replies to Context.wait(tag) on these ranks (default all that still run)."""
        for rank in range(len(self._workers)) if ranks is None else ranks:
            if rank not in self._outcomes:
                with contextlib.suppress(OSError):  # it died, which its outcome will report
                    calls.send(self._workers[rank].channel, "signal", tag, value)

    def outcomes(self, timeout_s: float = 120.0) -> list[Outcome]:
        """Returns how the call ended on every rank. Ranks that do not reply in time are killed."""
        end = time.monotonic() + timeout_s
        while len(self._outcomes) < len(self._workers):
            if not self._pump(end):
                break
        for rank in range(len(self._workers)):
            if rank not in self._outcomes:
                self._outcomes[rank] = Outcome(
                    rank, "late", text=f"no answer within {timeout_s:g} s", log=self._log(rank)
                )
                self._drop(rank)
        return [self._outcomes[rank] for rank in range(len(self._workers))]

    def results(self, timeout_s: float = 120.0) -> list[Any]:
        """Returns the values by rank. Raises WorkerFailure with all errors."""
        all_outcomes = self.outcomes(timeout_s)
        bad = [outcome for outcome in all_outcomes if not outcome.ok]
        if bad:
            raise WorkerFailure(describe(bad), all_outcomes)
        return [outcome.value for outcome in all_outcomes]


def describe(outcomes: list[Outcome]) -> str:
    """Lists the errors and the ends of the logs of ranks that failed."""
    parts = []
    for outcome in outcomes:
        log = f"\n  output:\n{outcome.log}" if outcome.log.strip() else ""
        parts.append(f"rank {outcome.rank} {outcome.state}: {outcome.text}{log}")
    return "\n".join(parts)
