"""`torch-mcast simulate swarm`: runs random plans of faults, settings and calls with the real engine on a
simulated network, and checks invariants (docs/simulator.md). A plan that breaks one is reduced and kept as a
file: after a change of the generator a seed gives another plan, a file does not."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from torch_mcast.simulate import helper, outputs
from torch_mcast.simulate.progress import Bar

_FAR = 1 << 32  # between the seeds of processes that run for a time
_AT_ONCE = 25  # seeds per process if they are counted: about a second

_UNMET = {
    "missing_pairs": "kinds that never happened in one plan",
    "silent_counters": "counters that stayed at 0",
    "silent_points": "branches (csrc/core/base/coverage.h) that were never taken",
}
_REFUTED = "refuted_exceptions"
_DEADLY = "ended the process"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch-mcast simulate swarm", description=__doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=int, default=1000, metavar="N", help="number of plans [1000]")
    what.add_argument("--minutes", type=float, help="run plans for this time instead")
    what.add_argument("--plan", type=Path, metavar="FILE", help="run only this plan")
    what.add_argument(
        "--shrink",
        type=Path,
        metavar="FILE",
        help="run only this plan, and reduce it to a smaller one",
    )
    what.add_argument("--print", type=int, metavar="SEED", help="print the plan of a seed")
    add("--first", type=int, metavar="SEED", help="first seed [random, printed]")
    add(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes [number of cores]",
    )
    add(
        "--require-reach",
        action="store_true",
        help="also exit with code 1 if no plan reached some point of base/coverage.h",
    )
    add("--out", type=Path, default=Path("."), metavar="DIR", help="folder for plans [.]")
    return parser


def _one(words: list[str], file: Path, shrink: bool, out: Path) -> int:
    command = [*words, "--plan", str(file), "--out", str(out)] + ["--shrink"] * shrink
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    findings = list(_findings(done.stdout.splitlines()))
    print("\n".join(findings) if findings or done.returncode else f"{file}: no invariant is broken")
    return done.returncode if done.returncode in (0, 1, 2) else 1


def _findings(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        said = json.loads(line)
        if "law" in said:
            where = f"; {said['file']}" if "file" in said else ""
            if "unwritten" in said:
                where = f"; {said['unwritten']} could not be written"
            yield f"{said['plan']}: {said['law']}: {said.get('text', '')}{where}"


class _Swarm:
    """Processes over shares of the seeds, and all their reports."""

    def __init__(self, command: Sequence[str], out: Path) -> None:
        self._command = [*command, "--out", str(out)]
        self._out = out
        self._lock = threading.Lock()
        self.processes = helper.Processes()
        self.wrong = False  # a process was started with wrong options, and has reported it
        self.broken = False
        self.plans = 0
        self.unmet: dict[str, set[str]] = {}  # by any process
        self.refuted: set[str] = set()  # met, though listed as unreachable by plans

    def carry_out(self, share: Sequence[str]) -> None:
        """Runs all of a share. A plan that ends the process is stored, and another process
        continues after it."""
        begun = time.monotonic()
        rest: Sequence[str] | None = share
        while rest is not None:
            said = self._one_process(rest)
            last = json.loads(said[-1]) if said else {}
            deadly = last.get("plan") if last.get("law") == _DEADLY else None
            if deadly is None:
                return
            self._keep(int(deadly))
            rest = _behind(int(deadly), share, time.monotonic() - begun)

    def _keep(self, seed: int) -> None:
        """Stores a plan that has ended a process, and runs another process that reduces it."""
        printed = self._run(["--print", str(seed)])
        if not printed:
            return
        file = self._out / f"swarm-{seed}.plan"
        file.write_text(f"# {_DEADLY}\n{printed}")
        smaller = self._run(["--plan", str(file), "--shrink"])
        again = list(_findings(smaller.splitlines()))
        if not self.processes.over:
            print(
                "\n".join(again) if again else f"{file}: this plan alone does not end the process",
                flush=True,
            )

    def _run(self, options: Sequence[str]) -> str:
        process = self.processes.begin([*self._command, *options], stdout=subprocess.PIPE)
        if process is None:
            return ""
        said, _ = process.communicate()
        self.processes.wait(process)
        return said

    def _one_process(self, share: Sequence[str]) -> list[str]:
        """Runs one process to its end. Returns its output lines."""
        process = self.processes.begin([*self._command, *share], stdout=subprocess.PIPE)
        if process is None:
            return []
        assert process.stdout is not None
        said = []
        with process.stdout:
            for line in process.stdout:
                said.append(line)
                for text in _findings([line]):
                    print(text, flush=True)
        status = self.processes.wait(process)
        with self._lock:
            if not self.processes.over:
                self._count(share, status, said)
                return said
        return []

    def _count(self, share: Sequence[str], status: int, said: Sequence[str]) -> None:
        if status == 2:
            self.wrong = True
            self.processes.end()
            return
        if status not in (0, 1):
            ended = helper.how_it_ended(status)
            print(f"torch-mcast simulate swarm: {' '.join(share)}: {ended}", file=sys.stderr)
        self.broken = self.broken or status != 0
        last = json.loads(said[-1]) if said else {}
        if "plans" not in last:  # it did not run to its end
            return
        self.plans += last["plans"]
        for name in _UNMET:
            found = set(last.get(name, ()))
            self.unmet[name] = self.unmet.get(name, found) & found
        self.refuted.update(last.get(_REFUTED, ()))


def _behind(seed: int, share: Sequence[str], elapsed: float) -> list[str] | None:
    """Returns the rest of a share after this seed; `elapsed` is the time in seconds already used."""
    first, kind, amount = int(share[1]), share[2], int(share[3])
    left = amount - (seed + 1 - first) if kind == "--count" else int(amount - elapsed)
    return ["--first", str(seed + 1), kind, str(left)] if left > 0 else None


def _shares(args: argparse.Namespace, first: int) -> list[list[str]]:
    """Returns options of the processes: one for each job, or one for every few seeds."""
    if args.minutes:
        seconds = str(max(1, round(args.minutes * 60)))
        firsts = range(first, first + args.jobs * _FAR, _FAR)
        return [["--first", str(seed), "--seconds", seconds] for seed in firsts]
    step = min(_AT_ONCE, -(-args.seeds // args.jobs))
    end = first + args.seeds
    return [
        ["--first", str(seed), "--count", str(min(step, end - seed))]
        for seed in range(first, end, step)
    ]


def _carry_out(swarm: _Swarm, args: argparse.Namespace, first: int) -> None:
    """Runs all shares, with a progress bar: of the seeds, or of the time."""
    shares = _shares(args, first)
    start = time.monotonic()
    with Bar(["swarm"]) as bar, ThreadPoolExecutor(args.jobs) as pool, swarm.processes:
        bar.move(0, 0)
        left = {pool.submit(swarm.carry_out, share) for share in shares}
        while left and not swarm.processes.over:
            ended, left = wait(left, timeout=0.2)
            for one in ended:
                one.result()
            if args.minutes:
                done = (time.monotonic() - start) / (args.minutes * 60)
            else:
                done = 1 - len(left) / len(shares)
            bar.move(0, min(done, 0.999), f"{swarm.plans} plans" if swarm.plans else "")


def _tell_reach(swarm: _Swarm) -> bool:
    """Returns whether the plans together have reached everything that plans can reach; prints what
    is missing."""
    texts = {what: swarm.unmet.get(name, set()) for name, what in _UNMET.items()}
    texts["listed as unreachable (csrc/sim/swarm/coverage.cpp), but reached"] = swarm.refuted
    for what, names in texts.items():
        if names:
            print(f"{what}: {', '.join(sorted(names))}")
    return not any(texts.values())


def main(argv: list[str]) -> int:
    """Runs `torch-mcast simulate swarm ARGV`. Returns 0 if all invariants hold, 1 if one is broken,
    2 for wrong options."""
    args = _parser().parse_args(argv)
    words = [str(helper.find_program()), "swarm"]
    for option, seed in (("--first", args.first), ("--print", args.print)):
        if seed is not None and not 0 <= seed < 1 << 63:
            raise ValueError(f"{option} must be 0 to 2^63 - 1")
    if args.print is not None:
        return subprocess.run([*words, "--print", str(args.print)], check=False).returncode
    if args.jobs < 1 or args.seeds < 1 or (args.minutes is not None and args.minutes <= 0):
        raise ValueError("--jobs, --seeds and --minutes must be above 0")
    outputs.check_folder(args.out)
    if args.plan or args.shrink:
        return _one(words, args.plan or args.shrink, bool(args.shrink), args.out)
    first = secrets.randbelow(1 << 40) if args.first is None else args.first
    print(f"seeds from {first} on", flush=True)
    swarm = _Swarm(words, args.out)
    _carry_out(swarm, args, first)
    if swarm.wrong:
        return 2
    print(
        f"{swarm.plans} plans, "
        + ("invariants were broken" if swarm.broken else "no invariant was broken")
    )
    complete = _tell_reach(swarm)
    if swarm.broken:
        print("torch-mcast simulate swarm --plan FILE repeats a stored plan", file=sys.stderr)
    return 1 if swarm.broken or (args.require_reach and not complete) else 0
