#!/usr/bin/env python3
"""Shows that the C++ tests make every counted event happen, and that some test names each counter.

A counter stands for an event or a path through the core, a point (MCAST_COVER) for a branch that no
counter shows; one that is 0 after all tests belongs to code that no test has run. Run the tests
with MCAST_TEST_REACH=FOLDER (an empty folder, an absolute path), in as many programs and shards as
you like, then

    tools/reach.py FOLDER

Exit status 1: a counter or a point is 0 in all of them, or no test names a counter, or an exception
no longer applies.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "csrc" / "core" / "base" / "counters.h"
POINTS = ROOT / "csrc" / "core" / "base" / "coverage.h"

# Counters and points ("point.NAME") that these programs cannot raise, and the reason.
EXCEPTIONS: dict[str, str] = {}


def counters() -> list[str]:
    return re.findall(r"^  X\((\w+),", TABLE.read_text(), re.MULTILINE)


def points() -> list[str]:
    names = re.findall(r"^  X\((\w+),", POINTS.read_text(), re.MULTILINE)
    return [f"point.{name}" for name in names]


def read(folder: Path) -> tuple[Counter[str], dict[str, str]]:
    """Returns sums over all processes, and for each counter a test that raised it."""
    sums: Counter[str] = Counter()
    tests: dict[str, str] = {}
    files = sorted(folder.glob("*.txt"))
    if not files:
        sys.exit(f"{folder}: nothing there; were the tests run with MCAST_TEST_REACH={folder}?")
    names = counters() + points()
    for file in files:
        rows = [line.split(" ", 2) for line in file.read_text().splitlines()]
        if [row[0] for row in rows] != names:
            sys.exit(f"{file}: not what {TABLE.name} and {POINTS.name} name; an old run or build?")
        for name, count, test in rows:
            sums[name] += int(count)
            if int(count):
                tests.setdefault(name, test)
    return sums, tests


def unnamed(names: list[str]) -> list[str]:
    """Returns counters that no test names: a wrong value would go unnoticed."""
    text = ""
    for folder, kind in (("tests/cpp", "*.cpp"), ("tests/cpp", "*.h"), ("tests/python", "*.py")):
        text += "".join(path.read_text() for path in sorted((ROOT / folder).rglob(kind)))
    named = set(re.findall(r"Counter::(\w+)|[\"'](\w+)[\"']", text))
    words = {word for pair in named for word in pair}
    return [name for name in names if name not in words]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("folder", type=Path, help="what MCAST_TEST_REACH was")
    options.add_argument("--verbose", action="store_true", help="a line for every counter")
    given = options.parse_args()
    sums, tests = read(given.folder)
    wrong = []
    for name in counters() + points():
        if given.verbose:
            print(f"{name:36} {sums[name]:>14}  {tests.get(name, '-')}")
        if not sums[name] and name not in EXCEPTIONS:
            wrong.append(f"{name}: no C++ test makes it happen")
        elif sums[name] and name in EXCEPTIONS:
            wrong.append(f"{name}: is reached by {tests[name]}, so it is no exception any more")
    wrong += [f"{name}: no test names it" for name in unnamed(counters())]
    wrong += [
        f"{name}: an exception, but no counter or point" for name in EXCEPTIONS.keys() - sums.keys()
    ]
    good = f"all {len(counters())} counters and {len(points())} points are reached"
    print("\n".join(wrong) or f"{good} ({len(EXCEPTIONS)} exceptions)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
