#!/usr/bin/env python3
"""Runs the libFuzzer targets of a build one after the other; `make fuzz` calls it.

    tools/fuzz.py BUILD SECONDS [TARGET ...]

Each runs for SECONDS from its corpus in tests/fuzz/corpus/<target> alone: reading all that earlier
runs found could take all of the time. What is new is left in BUILD/corpus/<target> until the next
run; inputs that fail are left in BUILD/failures.
The exit status is 1 if there were any. To add to the committed corpus what reaches more code:

    BUILD/mcast_fuzz_<target> -merge=1 tests/fuzz/corpus/<target> BUILD/corpus/<target>
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = "mcast_fuzz_"
ROOT = Path(__file__).resolve().parent.parent
# Longest input, bytes. An attack on a group is a short script; what is long there is slow.
LONGEST = {"group": 400}
HANG_SECONDS = 30


def run(program: Path, seconds: int) -> tuple[bool, int]:
    """Whether nothing failed, and how many inputs were run."""
    build, target = program.parent, program.name.removeprefix(PREFIX)
    found = build / "corpus" / target
    failures = build / "failures"
    shutil.rmtree(found, ignore_errors=True)
    for folder in (found, failures):
        folder.mkdir(parents=True, exist_ok=True)
    log = build / f"{program.name}.log"
    command = [
        str(program),
        str(found),
        str(ROOT / "tests/fuzz/corpus" / target),
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST.get(target, 2048)}",
        f"-timeout={HANG_SECONDS}",
        f"-artifact_prefix={failures}/{target}-",
        "-print_final_stats=1",
        "-print_funcs=0",  # naming each function reached takes seconds of a group's minute
    ]
    with log.open("w") as out:
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
    text = log.read_text(errors="replace")
    if status != 0:
        print("\n".join(text.splitlines()[-60:]))
        print(f"{target}: failed (exit status {status}), see {log} and {failures}")
    counted = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    return status == 0, int(counted[-1]) if counted else 0


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__)
        return 2
    build, seconds, names = Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:]
    programs = [p for p in sorted(build.glob(PREFIX + "*")) if not p.suffix]
    programs = [p for p in programs if not names or p.name.removeprefix(PREFIX) in names]
    if not programs:
        print(f"no fuzz targets in {build}")
        return 2
    results = {}
    for program in programs:
        results[program.name] = run(program, seconds)
        good, count = results[program.name]
        print(f"{program.name:24} {count:10} inputs  {'ok' if good else 'FAILED'}", flush=True)
    return 0 if all(good for good, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
