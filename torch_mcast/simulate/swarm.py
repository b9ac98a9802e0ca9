"""`torch-mcast simulate swarm`: random plans of faults, settings and calls, carried out by the real engine on
a simulated network and held against laws (docs/simulator.md). What breaks one is made smaller and kept as a
plan; a seed means another plan after a change of the generator, a plan stays."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from torch_mcast.simulate import helper

_FAR = 1 << 32  # between the seeds of processes that run for some time


_UNMET = {
    "missing_pairs": "kinds that never happened in one plan",
    "silent_counters": "counters that stayed at 0",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch-mcast simulate swarm", description=__doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=int, default=1000, metavar="N", help="plans; default 1000")
    what.add_argument("--minutes", type=float, help="plans for so long instead")
    what.add_argument("--plan", type=Path, metavar="FILE", help="this plan and no other")
    what.add_argument("--shrink", type=Path, metavar="FILE", help="the same, made smaller")
    what.add_argument("--print", type=int, metavar="SEED", help="show the plan of a seed")
    add("--first", type=int, metavar="SEED", help="from this seed on; default: a random one, shown")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: cores")
    add("--out", type=Path, default=Path("."), metavar="DIR", help="where plans are written")
    return parser


def _one(words: list[str], file: Path, shrink: bool, out: Path) -> int:
    command = [*words, "--plan", str(file), "--out", str(out)] + ["--shrink"] * shrink
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    findings = list(_findings(done.stdout.splitlines()))
    print("\n".join(findings) if findings or done.returncode else f"{file}: no law is broken")
    return done.returncode if done.returncode in (0, 1, 2) else 1


def _findings(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        said = json.loads(line)
        if "law" in said:
            where = f"; {said['file']}" if "file" in said else ""
            yield f"{said['plan']}: {said['law']}: {said.get('text', '')}{where}"


def main(argv: list[str]) -> int:
    """Runs `torch-mcast simulate swarm ARGV`; 0 if no law is broken, 1 if one is, 2 for wrong options."""
    args = _parser().parse_args(argv)
    words = [str(helper.find_program()), "swarm"]
    if args.print is not None:
        return subprocess.run([*words, "--print", str(args.print)], check=False).returncode
    if args.jobs < 1 or args.seeds < 1 or (args.minutes is not None and args.minutes <= 0):
        raise ValueError("--jobs, --seeds and --minutes are above 0")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.plan or args.shrink:
        return _one(words, args.plan or args.shrink, bool(args.shrink), args.out)
    first = secrets.randbelow(1 << 40) if args.first is None else args.first
    print(f"seeds from {first} on", flush=True)
    jobs = args.jobs if args.minutes else min(args.jobs, args.seeds)
    running = []
    for job in range(jobs):
        if args.minutes:
            share = ["--first", first + job * _FAR, "--seconds", max(1, round(args.minutes * 60))]
        else:
            begin, end = args.seeds * job // jobs, args.seeds * (job + 1) // jobs
            share = ["--first", first + begin, "--count", end - begin]
        command = [*words, *map(str, share), "--out", str(args.out)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    plans, broken = 0, False
    unmet: dict[str, set[str]] = {}  # by all processes
    for process in running:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            for text in _findings([line]):
                print(text, flush=True)
        broken = process.wait() != 0 or broken
        last = json.loads(lines[-1]) if lines else {}
        plans += last.get("plans", 0)
        for name in _UNMET:
            unmet[name] = unmet.get(name, set(last.get(name, ()))) & set(last.get(name, ()))
    print(f"{plans} plans, " + ("laws were broken" if broken else "no law was broken"))
    for name, what in _UNMET.items():
        if unmet.get(name):
            print(f"{what}: {', '.join(sorted(unmet[name]))}")
    if broken:
        print("torch-mcast simulate swarm --plan FILE repeats one", file=sys.stderr)
    return 1 if broken else 0
