#!/usr/bin/env python3
"""Runs the libFuzzer targets of a build one after the other; `make fuzz` calls it.

    tools/fuzz.py BUILD SECONDS|COUNTx [--again SANITIZED_BUILD] [TARGET ...]
    tools/fuzz.py BUILD merge [TARGET ...]
    tools/fuzz.py add TARGET FILE [NAME]

Each runs for SECONDS, or COUNT inputs (10000000x), from its corpus in tests/fuzz/corpus/<target>.txt, if it
has one, alone: reading all that earlier runs found could take all of the time. What is new is left in
BUILD/corpus/<target> until the next run; inputs that fail are left in BUILD/failures.
With --again the programs of another build, one with sanitizers, read what this one found: a build with
-DMCAST_SANITIZE=fuzzer-no-link runs many more inputs (`make fuzz-long`), and most of them say nothing new.
The exit status is 1 if there were any.

A corpus is one text file: a line per input, its bytes in hexadecimal ("-": none), sorted by bytes; an input
with a meaning of its own has a name after a blank. `merge` adds to the committed corpora the inputs of
BUILD/corpus that reach more code; `add` adds one file, such as one of BUILD/failures once its fault is fixed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PREFIX = "mcast_fuzz_"
ROOT = Path(__file__).resolve().parent.parent
# Targets whose inputs are scripts: short ones reach as much, and long ones are slow. Each input is
# many messages, which are counted too.
LENGTHS = {"group": 400, "guarded_admission": 256, "member": 512, "station": 512}
# Memory that an input frees is reused while it is in the cache, and traces are short.
ASAN = "malloc_context_size=4:quarantine_size_mb=4:max_malloc_fill_size=64"
HANG_SECONDS = 30

Corpus = dict[bytes, str]  # an input and its name, mostly ""


def corpus_file(target: str) -> Path:
    return ROOT / "tests/fuzz/corpus" / f"{target}.txt"


def read_corpus(path: Path) -> Corpus:
    """Returns the inputs of a packed file; a new target has none yet."""
    found: Corpus = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        digits, _, name = line.partition(" ")
        try:
            found[b"" if digits == "-" else bytes.fromhex(digits)] = name
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return found


def write_corpus(path: Path, corpus: Corpus) -> None:
    lines = [f"{data.hex() or '-'} {name}".rstrip() for data, name in sorted(corpus.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def unpack(corpus: Corpus, folder: Path) -> None:
    """Writes one file per input into a new folder, as libFuzzer reads them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for data, name in corpus.items():
        (folder / (name or hashlib.sha1(data).hexdigest())).write_bytes(data)


def add(target: str, file: Path, name: str = "") -> None:
    corpus = read_corpus(corpus_file(target))
    corpus[file.read_bytes()] = name
    write_corpus(corpus_file(target), corpus)


def merge(program: Path) -> bool:
    """Adds the inputs of an earlier run that reach more code. Returns whether the program ended
    successfully."""
    build, target = program.parent, program.name.removeprefix(PREFIX)
    corpus = read_corpus(corpus_file(target))
    merged = build / "merged" / target
    unpack(corpus, merged)
    command = [str(program), "-merge=1", str(merged), str(build / "corpus" / target)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        print("\n".join(done.stderr.splitlines()[-60:]))
        return False
    found = {file.read_bytes(): "" for file in merged.iterdir()}
    write_corpus(corpus_file(target), found | corpus)
    print(f"{program.name:24} {len(found | corpus) - len(corpus):>10} inputs added")
    return True


def run(program: Path, amount: str) -> tuple[bool, str]:
    """Returns whether all inputs passed, how many were run, and how many messages if they are scripts."""
    build, target = program.parent, program.name.removeprefix(PREFIX)
    found = build / "corpus" / target
    failures = build / "failures"
    committed = build / "committed" / target
    unpack(read_corpus(corpus_file(target)), committed)
    shutil.rmtree(found, ignore_errors=True)
    for folder in (found, failures):
        folder.mkdir(parents=True, exist_ok=True)
    log = build / f"{program.name}.log"
    command = [
        str(program),
        str(found),
        str(committed),
        f"-runs={amount[:-1]}" if amount.endswith("x") else f"-max_total_time={amount}",
        f"-max_len={LENGTHS.get(target, 2048)}",
        "-entropic=0",  # weighing inputs by the rarity of their code takes half of the time
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
    """Returns whether `program`, of a build with sanitizers, reads all of a folder without output."""
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


def fuzz(programs: list[Path], amount: str, sanitized: Path | None) -> int:
    good_runs = True
    for program in programs:
        good, count = run(program, amount)
        print(f"{program.name:24} {count}  {'ok' if good else 'FAILED'}", flush=True)
        if sanitized and good:
            found = program.parent / "corpus" / program.name.removeprefix(PREFIX)
            good, count = again(sanitized / program.name, found)
            print(f"{'':24} {count}  {'ok' if good else 'FAILED'}", flush=True)
        good_runs = good_runs and good
    return 0 if good_runs else 1


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["add"] and len(arguments) in (3, 4):
        add(arguments[1], Path(arguments[2]), *arguments[3:])
        return 0
    sanitized = None
    if "--again" in arguments[:-1]:
        at = arguments.index("--again")
        sanitized = Path(arguments[at + 1]).resolve()
        del arguments[at : at + 2]
    if len(arguments) < 2 or not re.fullmatch(r"\d+x?|merge", arguments[1]):
        print(__doc__)
        return 2
    build, amount, names = Path(arguments[0]).resolve(), arguments[1], arguments[2:]
    programs = [p for p in sorted(build.glob(PREFIX + "*")) if not p.suffix]
    programs = [p for p in programs if not names or p.name.removeprefix(PREFIX) in names]
    if not programs:
        print(f"no fuzz targets in {build}")
        return 2
    if amount == "merge":
        return 0 if all([merge(program) for program in programs]) else 1
    return fuzz(programs, amount, sanitized)


if __name__ == "__main__":
    sys.exit(main())
