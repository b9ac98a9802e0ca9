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
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Environment = dict[str, str]
SEALED: Environment = {"MCAST_TEST_SECURITY": "sealed"}
AUTH: Environment = {"MCAST_TEST_SECURITY": "auth"}
SWARM: Environment = {"MCAST_SWARM_SECONDS": "60"}
# Program, tests, environment: all tests that take their seeds from tests/cpp/support/seeds.h or the
# swarm's generator, except those over sockets and between processes, which depend on the machine's
# load.
SUITES: list[tuple[str, str, Environment]] = [
    ("collective", "*Schedules*", {}),
    ("collective", "*Failures*", {}),
    ("collective", "Hosts*:LateRank*:Clocks*:*PathFlaps*", {}),
    ("sim", "Swarm.FreshSeedsBreakNoLaw:Swarm.TheSamePlan*", SWARM),
    ("collective", "*Schedules*:*Failures*", SEALED),
    ("collective", "*Schedules*:*Failures*", AUTH),
    ("offload", "Offload.*:*Schedules*:*Failures*", {}),
    ("dpa", "*DpaSchedules*:DpaSend*:DpaForEngine*", {}),
    ("shm", "*HostSchedules*:HostFailures*:HostRounds*:HostThreads*", {}),
    ("shm", "HostMessages*:*HostExchanges*:RingTest*", {}),
    ("wire", "Attack*:ForgedAnswer*", {}),
    ("aggregation", "*Schedules*:BlockTable*:Stations.LossAtAnyFrameIsSurvived:Placement.*", {}),
    ("protocol", "*", {}),
    ("host_engine", "Ring*:IpcControl*:IpcRecord*", {}),
    ("base", "Bitmap*", {}),
]
LIMIT_S = 1800  # of one run: longer is a hang
SEED = re.compile(r"MCAST_(?:TEST|SWARM)_SEED=\d+")


@dataclass
class Run:
    """One suite from one base; `said`: "", or the output of a failed run. `plans`: the swarm's, by
    file name, reduced as far as possible."""

    program: str
    tests: str
    base: int
    variables: Environment
    said: str = ""
    plans: dict[str, str] = field(default_factory=dict)

    def command(self, variables: Environment, tests: str) -> str:
        words = [f"{name}={value}" for name, value in variables.items()]
        return " ".join([*words, f"mcast_test_{self.program}", f"--gtest_filter='{tests}'"])


def run(folder: Path, suite: tuple[str, str, Environment], base: int, limit_s: float) -> Run:
    program, tests, more = suite
    name = "MCAST_SWARM_BASE" if more is SWARM else "MCAST_TEST_BASE"
    it = Run(program, tests, base, {name: str(base), **more})
    with tempfile.TemporaryDirectory(prefix="mcast-soak-") as place:
        note = Path(place) / "note"
        environment = {**os.environ, **it.variables, "MCAST_TEST_NOTE": str(note)}
        for name in ("MCAST_TEST_SEED", "MCAST_SWARM_SEED", "MCAST_SWARM_PLAN"):
            environment.pop(name, None)
        try:
            done = subprocess.run(
                [(folder / f"mcast_test_{program}").absolute(), f"--gtest_filter={tests}", "--gtest_brief=1"],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=limit_s, check=False, cwd=place,
            )  # fmt: skip
            if done.returncode == 0:
                return it
            end, output = f"exit status {done.returncode}", done.stdout
        except subprocess.TimeoutExpired as late:
            end, output = f"no end after {limit_s:g} s", late.output
        it.said = f"{(output or b'').decode(errors='replace')}\n{end}\n"
        if not SEED.search(it.said) and note.exists():  # it ended before it could print its seed
            it.said += f"under way: {note.read_text() or 'no seed'}"
        it.plans = {file.name: file.read_text() for file in Path(place).glob("*.plan")}
    return it


def report(folder: Path, failed: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{failed.program}-{failed.base}.log"
    file.write_text(f"{failed.command(failed.variables, failed.tests)}\n{failed.said}")
    print(f"FAILED: {failed.program} {failed.tests} from base {failed.base}: {file}", flush=True)
    kept = {k: v for k, v in failed.variables.items() if k == "MCAST_TEST_SECURITY"}
    for seed in sorted(set(SEED.findall(failed.said))):
        name, value = seed.split("=")
        print(f"  {failed.command({name: value, **kept}, failed.tests)}", flush=True)
    for name, text in failed.plans.items():
        (folder / name).write_text(text)
        plan = {"MCAST_SWARM_PLAN": str(folder / name)}
        print(f"  {failed.command(plan, 'Swarm.GivenPlanBreaksNoLaw')}", flush=True)


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
                base = random.SystemRandom().randrange(10**9, 10**13)
                pending.add(pool.submit(run, args.build, next(work), base, args.limit))
            over, pending = concurrent.futures.wait(
                pending, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in over:
                done = future.result()
                runs += 1
                if done.said:
                    failures += 1
                    report(args.out.absolute(), done)
    print(f"{runs} runs of seeded suites in {args.minutes:g} minutes, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
