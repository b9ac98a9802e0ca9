#!/usr/bin/env python3
"""Sums up the times of Python tests that ran side by side: `tools/test_times.py
[build/timeline.tsv]`.

For each process it prints when it ended and how long it ran tests, then the folders and files that
took longest, with the process that had most of each: the tests of one process that ends last delay
all others.
"""

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/python/"


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "timeline.tsv"
    rows = [line.split("\t", 4) for line in file.read_text().splitlines()]
    begin = min(float(row[2]) for row in rows)
    ends: dict[str, float] = {}
    busy: dict[str, float] = defaultdict(float)
    parts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for process, _, start, stop, test in rows:
        seconds = float(stop) - float(start)
        ends[process] = max(ends.get(process, 0), float(stop) - begin)
        busy[process] += seconds
        name = test.removeprefix(TESTS).split("::")[0]
        for part in {name, name.split("/")[0]}:
            parts[part][process] += seconds
    for process in sorted(ends):
        print(f"{process:5} ended after {ends[process]:6.0f} s, {busy[process]:6.0f} s at tests")
    longest = sorted(parts.items(), key=lambda item: -sum(item[1].values()))[:40]
    for part, by in longest:
        most = max(by, key=lambda process: by[process])
        print(f"{sum(by.values()):7.0f} s  {part}  ({most}: {by[most]:.0f} s)")


if __name__ == "__main__":
    main()
