#!/usr/bin/env python3
"""Runs a command and records what it took.

    timed.py FILE NAME COMMAND...   appends a line to FILE: the name, wall seconds and CPU seconds
                                    (user and system, of all processes that the command has started
                                    and that have ended); exits with the command's status
    timed.py --table FILE           prints the lines as a table with their sum

`make test` times its steps this way, since CPU seconds depend less than wall seconds on what else the
machine does. They still depend on the machine, and on others who share its cores: the table ends with the
CPU seconds of a fixed loop, by which runs can be compared.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
ADDITIONS = 5_000_000  # of the fixed loop
PATIENCE_S = 2  # for processes that end because the command has ended


def ended(command: list[str]) -> int:
    """Runs it and returns its status. Waits for its orphans too, whose time would be lost to init."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = subprocess.Popen(command)
    pid, status = os.wait()
    while pid != started.pid:
        pid, status = os.wait()
    started.returncode = os.waitstatus_to_exitcode(status)
    end = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
    except ChildProcessError:
        pass
    return started.returncode


def run(file: Path, name: str, command: list[str]) -> int:
    start = time.monotonic()
    status = ended(command)
    wall = time.monotonic() - start
    used = os.times()
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:  # one write per line: steps run side by side
        out.write(f"{name}\t{wall:.1f}\t{used.children_user + used.children_system:.1f}\n")
    return status if status >= 0 else 128 - status


def loop_s() -> float:
    """Returns the CPU seconds of the fixed loop."""
    start = time.process_time()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - start


def table(file: Path) -> None:
    rows = [line.split("\t") for line in file.read_text().splitlines()] if file.is_file() else []
    print(f"{'step':24}{'wall s':>8}{'CPU s':>8}")
    for name, wall, cpu in rows:
        print(f"{name:24}{float(wall):8.0f}{float(cpu):8.0f}")
    print(f"{'sum of CPU seconds':24}{'':8}{sum(float(row[2]) for row in rows):8.0f}")
    print(f"{ADDITIONS:,} additions in Python: {loop_s():.2f} CPU s")


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "--table":
        table(Path(sys.argv[2]))
        return 0
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    return run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
