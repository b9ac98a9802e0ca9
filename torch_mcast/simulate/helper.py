"""Runs the program `mcast-simulate`: one process per experiment, as many at once as there are cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch_mcast import _program

# Version of the program's JSON (csrc/sim/world/report.h).
SCHEMA = 2

# Number of the experiment, virtual seconds, share that is done: 0 when it begins, 1 when it has ended.
Progress = Callable[[int, float, float], None]


def parse_hosts(text: str) -> list[int]:
    """Parses 8; 2,8,188; 2..1024: doubling, with the last one always included."""
    hosts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        try:
            low, high = int(first), int(last if dots else first)
        except ValueError:
            raise ValueError(f"--hosts {text}: write 8, 2,8,188 or 2..1024") from None
        if not 1 <= low <= high:
            raise ValueError(f"--hosts {text}: {part} is not a range")
        while low < high:
            hosts.append(low)
            low *= 2
        hosts.append(high)
    return list(dict.fromkeys(hosts))


def find_program() -> Path:
    """Returns the path of the program, which the build puts next to the extension. Raises
    FileNotFoundError if there is none."""
    return _program.find_program("mcast-simulate")


def how_it_ended(status: int) -> str:
    """Describes a process's exit status."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def check(experiments: Sequence[str]) -> None:
    """Raises ValueError with the fault of the first invalid experiment; runs none."""
    answer = subprocess.run(
        [find_program(), "--check"],
        input="\n".join(experiments) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    # The last line may have been cut off; a whole result ends with a newline.
    answers = [line for line in answer.stdout.splitlines(keepends=True) if line.endswith("\n")]
    for line in answers:
        if reason := json.loads(line).get("error"):
            raise ValueError(reason)
    ended = how_it_ended(answer.returncode)
    if len(answers) < len(experiments):
        text = experiments[len(answers)]
        raise ValueError(f"{text}: mcast-simulate {ended} when it checked this experiment")
    if answer.returncode != 0 or len(answers) > len(experiments):
        raise ValueError(
            f"mcast-simulate {ended} after {len(answers)} answers to {len(experiments)}"
        )


# Memory of a large network (a gigabyte) is read at random: with small pages a fifth of the time
# goes into page table walks. (glibc 2.35; others ignore it.)
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Processes:
    """Processes that several threads start and wait for. A context: leaving it ends those that
    still run, and no more are started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.over = False

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> None:
        with self._lock:
            self.over = True
            for process in self._running:
                process.kill()

    def begin(self, command: Sequence[str | Path], **options: Any) -> subprocess.Popen[str] | None:
        """Starts a process, with options of Popen. Returns None if the context has ended."""
        with self._lock:
            if self.over:
                return None
            process = subprocess.Popen(command, text=True, **options)
            self._running.add(process)
            return process

    def wait(self, process: subprocess.Popen[str]) -> int:
        """Returns its exit status."""
        status = process.wait()
        with self._lock:
            self._running.discard(process)
        return status


class Runs:
    """Experiments that are being computed. A context: leaving it ends those that still run."""

    def __init__(
        self,
        jobs: int | None = None,
        links: bool = False,
        quiet_time: bool = False,
        on_progress: Progress | None = None,
    ) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"--jobs {jobs}: must be 1 or more")
        self._options = ["--links"] * links + ["--quiet-time"] * quiet_time
        self._on_progress = on_progress
        if on_progress:
            self._options.append("--progress")
        self._pool = ThreadPoolExecutor(jobs or os.cpu_count() or 1)
        self._processes = Processes()

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *exc: object) -> None:
        self._processes.end()
        self._pool.shutdown(cancel_futures=True)

    def run(self, experiments: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the program's result for each; {"error": why, "spec": ...} if there is no result."""
        return list(self._pool.map(self._one, range(len(experiments)), experiments))

    def _one(self, number: int, experiment: str) -> dict[str, Any]:
        # The result goes to a file, so that reading progress to its end does not wait until the
        # result is read.
        with tempfile.TemporaryFile("w+") as answer:
            process = self._processes.begin(
                [find_program(), *self._options, experiment],
                stdout=answer,
                stderr=subprocess.PIPE,
                env={**_HUGE_PAGES, **os.environ},
            )
            if process is None:
                return {"spec": experiment, "error": "not run"}
            if self._on_progress:
                self._on_progress(number, 0, 0)
            words, last = self._follow(number, process)
            if self._on_progress:
                self._on_progress(number, last, 1)
            answer.seek(0)
            line = answer.readline()
        if not line:
            why = words or f"mcast-simulate {how_it_ended(process.returncode)}"
            return {"spec": experiment, "error": why}
        result: dict[str, Any] = json.loads(line)
        if result["schema"] != SCHEMA:
            raise ValueError(f"mcast-simulate uses schema {result['schema']}, not {SCHEMA}")
        return result

    def _follow(self, number: int, process: subprocess.Popen[str]) -> tuple[str, float]:
        """Reads progress until the process ends. Returns its other output, and its last virtual time."""
        said, virtual = [], 0.0
        assert process.stderr
        with process.stderr:
            for line in process.stderr:
                words = line.split()
                if words[:1] == ["progress"] and self._on_progress:
                    virtual = float(words[1]) / 1e9
                    self._on_progress(number, virtual, float(words[2]))
                elif words:
                    said.append(line.strip().removeprefix("mcast-simulate: "))
        self._processes.wait(process)
        return "; ".join(said), virtual
