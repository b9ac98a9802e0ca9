"""Simulations with fresh seeds for as long as told: `make soak MINUTES=60`.

Runs the seeded C++ tests again and again, each time from another base. A run that fails, by whatever end,
leaves its output in build/soak; the seeds in it, or else the one that was under way, are printed with the
command that repeats one alone.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Program and tests: what takes its seeds from tests/cpp/support/seeds.h and runs in virtual time.
SUITES = [
    ("collective", "*Schedules*"),
    ("collective", "*Failures*"),
    ("collective", "Hosts*:LateRank*:Clocks*:*PathFlaps*:Stations.LostAtEveryFrame"),
    ("host", "*HostSchedules*:HostFailures*:HostRounds*:HostThreads*"),
    ("wire", "Attack*:ForgedAnswer*"),
    ("aggregation", "*Schedules*:BlockTable*"),
    ("protocol", "*"),
]
LIMIT_S = 1800  # of one run: a hang
SEED = "MCAST_TEST_SEED="


def run(
    folder: Path, program: str, tests: str, base: int, limit_s: float
) -> tuple[str, str, int, str]:
    """Program, tests, base, and "" or the output of a run that failed."""
    with tempfile.TemporaryDirectory(prefix="mcast-soak-") as place:
        note = Path(place) / "note"
        environment = {**os.environ, "MCAST_TEST_BASE": str(base), "MCAST_TEST_NOTE": str(note)}
        environment.pop("MCAST_TEST_SEED", None)
        try:
            done = subprocess.run(
                [str(folder / f"mcast_test_{program}"), f"--gtest_filter={tests}", "--gtest_brief=1"],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=limit_s, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                return program, tests, base, ""
            end, output = f"exit status {done.returncode}", done.stdout
        except subprocess.TimeoutExpired as late:
            end, output = f"no end after {limit_s:g} s", late.output
        said = f"{(output or b'').decode(errors='replace')}\n{end}\n"
        if SEED not in said and note.exists():  # it had no time to say which one it was
            said += f"under way: {note.read_text() or 'no seed'}"
        return program, tests, base, said


def report(folder: Path, program: str, tests: str, base: int, output: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{program}-{base}.log"
    file.write_text(
        f"MCAST_TEST_BASE={base} mcast_test_{program} --gtest_filter='{tests}'\n{output}"
    )
    print(f"FAILED: {program} {tests} from base {base}: {file}", flush=True)
    for seed in sorted(set(re.findall(rf"{SEED}(\d+)", output))):
        print(f"  {SEED}{seed} mcast_test_{program} --gtest_filter='{tests}'", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cpp")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of a run that hangs")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    work = itertools.cycle(SUITES)
    runs, failures = 0, 0
    pending: set[concurrent.futures.Future] = set()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while pending or time.monotonic() < end:
            while len(pending) < args.jobs and time.monotonic() < end:
                program, tests = next(work)
                base = random.SystemRandom().randrange(10**9, 10**13)
                pending.add(pool.submit(run, args.build, program, tests, base, args.limit))
            over, pending = concurrent.futures.wait(
                pending, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in over:
                program, tests, base, output = future.result()
                runs += 1
                if output:
                    failures += 1
                    report(args.out, program, tests, base, output)
    print(f"{runs} runs of seeded suites in {args.minutes:g} minutes, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
