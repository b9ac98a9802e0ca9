#!/usr/bin/env python3
"""Runs the libFuzzer targets of a build one after the other; `make fuzz` calls it.

    tools/fuzz.py BUILD SECONDS|COUNTx [--again SANITIZED_BUILD] [TARGET ...]

Each runs for SECONDS, or COUNT inputs (10000000x), from its corpus in tests/fuzz/corpus/<target>, if it
has one, alone: reading all that earlier runs found could take all of the time. What is new is left in
BUILD/corpus/<target> until the next run; inputs that fail are left in BUILD/failures.
With --again the programs of another build, one with sanitizers, read what this one found: a build with
-DMCAST_SANITIZE=fuzzer-no-link runs many more inputs (`make fuzz-long`), and most of them say nothing new.
The exit status is 1 if there were any. To add to the committed corpus what reaches more code:

    mkdir -p tests/fuzz/corpus/<target>
    BUILD/mcast_fuzz_<target> -merge=1 tests/fuzz/corpus/<target> BUILD/corpus/<target>
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = "mcast_fuzz_"
ROOT = Path(__file__).resolve().parent.parent
# Scripts, of which a short one says as much; what is long there is slow. An input of theirs is many
# messages: those are counted too.
LENGTHS = {"group": 400, "guarded_admission": 256, "member": 512, "station": 512}
# What an input allocates is used again while it is in the cache, and has short traces.
ASAN = "malloc_context_size=4:quarantine_size_mb=4:max_malloc_fill_size=64"
HANG_SECONDS = 30


def run(program: Path, amount: str) -> tuple[bool, str]:
    """Whether nothing failed, and how many inputs were run, and messages if these are scripts."""
    build, target = program.parent, program.name.removeprefix(PREFIX)
    found = build / "corpus" / target
    failures = build / "failures"
    committed = ROOT / "tests/fuzz/corpus" / target  # a new target has none yet
    shutil.rmtree(found, ignore_errors=True)
    for folder in (found, failures):
        folder.mkdir(parents=True, exist_ok=True)
    log = build / f"{program.name}.log"
    command = [
        str(program),
        *(str(folder) for folder in (found, committed) if folder.is_dir()),
        f"-runs={amount[:-1]}" if amount.endswith("x") else f"-max_total_time={amount}",
        f"-max_len={LENGTHS.get(target, 2048)}",
        "-entropic=0",  # weighing inputs by how rare is what they reach takes half of the time
        f"-timeout={HANG_SECONDS}",
        f"-artifact_prefix={failures}/{target}-",
        "-print_final_stats=1",
        "-print_funcs=0",  # naming each function reached takes seconds of a group's minute
    ]
    environment = {"ASAN_OPTIONS": ASAN, **os.environ}
    with log.open("w") as out:
        status = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment
        ).returncode
    text = log.read_text(errors="replace")
    if status != 0:
        print("\n".join(text.splitlines()[-60:]))
        print(f"{target}: failed (exit status {status}), see {log} and {failures}")
    inputs = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    messages = re.findall(r"^messages: (\d+)", text, re.MULTILINE)
    said = f"{inputs[-1] if inputs else 0:>10} inputs"
    return status == 0, said + (f", {messages[-1]} messages" if messages else "")


def again(program: Path, found: Path) -> tuple[bool, str]:
    """Whether `program`, of a build with sanitizers, reads all of a folder without a word."""
    files = sum(1 for _ in found.iterdir())
    failures = program.parent / "failures"
    failures.mkdir(exist_ok=True)
    done = subprocess.run(
        [
            str(program), "-runs=0", f"-timeout={HANG_SECONDS}", str(found),
            f"-artifact_prefix={failures}/{program.name.removeprefix(PREFIX)}-",
        ],
        capture_output=True, text=True, errors="replace", env={"ASAN_OPTIONS": ASAN, **os.environ},
    )  # fmt: skip
    if done.returncode != 0:
        print("\n".join(done.stderr.splitlines()[-60:]))
    return done.returncode == 0, f"{files:>10} of them with sanitizers"


def main() -> int:
    arguments = sys.argv[1:]
    sanitized = None
    if "--again" in arguments[:-1]:
        at = arguments.index("--again")
        sanitized = Path(arguments[at + 1]).resolve()
        del arguments[at : at + 2]
    if len(arguments) < 2 or not re.fullmatch(r"\d+x?", arguments[1]):
        print(__doc__)
        return 2
    build, amount, names = Path(arguments[0]).resolve(), arguments[1], arguments[2:]
    programs = [p for p in sorted(build.glob(PREFIX + "*")) if not p.suffix]
    programs = [p for p in programs if not names or p.name.removeprefix(PREFIX) in names]
    if not programs:
        print(f"no fuzz targets in {build}")
        return 2
    results = {}
    for program in programs:
        results[program.name] = run(program, amount)
        good, count = results[program.name]
        print(f"{program.name:24} {count}  {'ok' if good else 'FAILED'}", flush=True)
        if sanitized and good:
            found = build / "corpus" / program.name.removeprefix(PREFIX)
            good, count = results[program.name] = again(sanitized / program.name, found)
            print(f"{'':24} {count}  {'ok' if good else 'FAILED'}", flush=True)
    return 0 if all(good for good, _ in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
