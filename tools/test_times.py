#!/usr/bin/env python3
"""Where the time of the Python tests went that ran side by side: `tools/test_times.py [build/timeline.tsv]`.

For each process when it ended and how long it was at tests, then the folders and files that took longest,
with the process that had most of each: what runs in one process and ends last is what the others wait for.
"""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/python/"


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "timeline.tsv"
    rows = [line.split("\t", 4) for line in file.read_text().splitlines()]
    begin = min(float(row[2]) for row in rows)
    ends: dict[str, float] = {}
    busy: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {}
    for process, _, start, stop, test in rows:
        seconds = float(stop) - float(start)
        ends[process] = max(ends.get(process, 0), float(stop) - begin)
        busy[process] += seconds
        name = test.removeprefix(TESTS).split("::")[0]
        for part in {name, name.split("/")[0]}:
            parts.setdefault(part, Counter())[process] += seconds
    for process in sorted(ends):
        print(f"{process:5} ended after {ends[process]:6.0f} s, {busy[process]:6.0f} s at tests")
    longest = sorted(parts.items(), key=lambda item: -item[1].total())[:40]
    for part, by in longest:
        most, seconds = by.most_common(1)[0]
        print(f"{by.total():7.0f} s  {part}  ({most}: {seconds:.0f} s)")


if __name__ == "__main__":
    main()
