"""A clock that a test moves: the added time counts for every limit of the ranks' engines as if it
had passed (csrc/core/base/test_clock.h). So limits of tens of seconds, which even a busy machine
does not exceed, pass in milliseconds."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from waiting import GUARD_S

VARIABLE = "MCAST_TEST_CLOCK"  # names the file to `use`; engines and aggregators read it themselves
# Not more than the engine counts per tick as silence of another rank in shared memory: 0.2 s.
STEP_S = 0.2
# Number of times that a thread sleeps in each step: a ping that is due is sent before the first
# sleep, and received data is read before the others.
NAPS = 4
LANES = re.compile(rb"mcast-(lane|red|host|agg\d+\.)\d+\n")


def use() -> None:
    """Uses the clock in a rank; call it before the first group is created."""
    if path := os.environ.get(VARIABLE):
        from torch_mcast import _C

        _C._use_test_clock(path)


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def threads(processes: Iterable[int]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            for task in os.listdir(f"/proc/{process}/task"):
                yield f"/proc/{process}/task/{task}"


def naps(tasks: Iterable[str]) -> dict[str, int]:
    """Returns by thread, of those that are a lane's or a station's, how often it has slept or been interrupted, plus
    how many hundredths of a second it has run. Reads the name each time: a new thread has its parent's for a moment."""
    found = {}
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if LANES.fullmatch(read(task + "/comm")):
                switches = re.findall(rb"ctxt_switches:\s+(\d+)", read(task + "/status"))
                run_ns = int(read(task + "/schedstat").split()[0])
                found[task] = sum(map(int, switches)) + run_ns // 10_000_000
    return found


class MovedClock:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "clock"
        self.path.write_bytes(bytes(mmap.PAGESIZE))
        self.env = {VARIABLE: str(self.path)}
        self.moved_s = 0.0
        with self.path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def jump(self, seconds: float) -> None:
        """Adds all of the time at once: running threads take it for time in which they were
        suspended themselves."""
        self.moved_s += seconds
        self._page[:8] = struct.pack("=q", int(1e9 * self.moved_s))

    def step(self, processes: Iterable[int]) -> None:
        """Adds STEP_S. All lanes of these processes see it, and have time to send pings and to
        reply to them, however busy the machine is."""
        before = naps(threads(processes))
        self.jump(STEP_S)
        deadline = time.monotonic() + GUARD_S
        late = list(before)
        while True:
            now = naps(late)
            late = [task for task in now if now[task] < before[task] + NAPS]
            if not late:
                return
            assert time.monotonic() < deadline, f"threads stand still: {late}"
            time.sleep(0.005)

    def run(self, seconds: float, processes: Iterable[int]) -> None:
        end = self.moved_s + seconds - STEP_S / 2
        while self.moved_s < end:
            self.step(processes)

    def run_until(self, condition: Callable[[], bool], what: str, processes: Iterable[int]) -> None:
        """Steps until the condition holds."""
        deadline = time.monotonic() + GUARD_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not after {self.moved_s:.0f} s"
            self.step(processes)
