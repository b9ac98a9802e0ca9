#!/usr/bin/env python3
"""Counts the instructions that the kernel of csrc/dpa takes per chunk, on RV64, exactly.

    tools/dpa_count.py            counts, and compares with benchmarks/dpa-counts.json
    tools/dpa_count.py --write    counts, and writes that file

QEMU's virt board runs the kernel under the tests' model of a NIC (tests/cpp/dpa/scenario.c), in machine
mode, without interrupts, one instruction per virtual nanosecond, so `minstret` is exact: loops of known
length must come out to the digit. The second way is the log of executed addresses, in which objdump says
what each instruction is: both sums must agree, and with 8 harts at once each hart must have executed what
one alone does. What the kernel leaves in memory must be the same for every hart and variant; the C++ test
DpaScenarios says that it is the same on this machine.

The same compiler and QEMU give the same file, byte for byte. With others the budgets are checked (the
paper's counts) and what differs is printed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "dpa-counts.json"
WORK = ROOT / "build" / "dpa"
PREFIX = "riscv64-unknown-elf-"
QEMU = "qemu-system-riscv64"
HARTS = 8
# Seconds: a run takes a few, on a busy machine a minute.
LIMIT = 550

KERNEL = ("csrc/dpa/receive.c", "csrc/dpa/send.c")
MODEL = tuple(f"tests/cpp/dpa/{name}.c" for name in ("nic_model", "rig", "send_rig", "scenario"))
DRIVER = ("csrc/dpa/rv64/driver.c", "csrc/dpa/rv64/start.S")
SCRIPT = "csrc/dpa/rv64/link.ld"
FLAGS = [
    *("-std=c11", "-ffreestanding", "-fno-stack-protector", "-O2"),
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
    *("-fno-tree-loop-distribute-patterns", "-fomit-frame-pointer"),
    *("-mabi=lp64", "-mcmodel=medany"),
]
# Bytes of stack: without byte swap instructions their constants take registers.
VARIANTS = {"rv64imac_zba_zbb_zbs": 128, "rv64imac_zba_zbs": 160}
# Instructions per chunk of the paper's kernels.
BUDGETS = {"placed": 66, "immediate": 113}

LOADS = {"lb", "lbu", "lh", "lhu", "lw", "lwu", "ld", "lwsp", "ldsp"}
STORES = {"sb", "sh", "sw", "sd", "swsp", "sdsp"}
BRANCHES = {"beq", "bne", "blt", "bge", "bltu", "bgeu", "beqz", "bnez"}
TRACE = re.compile(r"Trace (\d+): \S+ \[[0-9a-f]+/([0-9a-f]+)/")
# Another hart, or a timer, got its turn before the instruction of the previous line: it is logged
# again.
STOPPED = "Stopped execution"


class Wrong(Exception):
    """A count that cannot be trusted, or is too large."""


def call(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(variant: str, harts: int) -> Path:
    folder = WORK / f"{variant}-{harts}"
    folder.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in (*KERNEL, *MODEL, *DRIVER):
        target = folder / f"{Path(source).stem}.o"
        march = variant + ("_zicsr" if source.endswith(".S") else "")
        more = [f"-Wstack-usage={VARIANTS[variant]}"] if source in KERNEL else []
        paths = ["-Icsrc/dpa", "-Itests/cpp/dpa", f"-DHARTS={harts}"]
        call(PREFIX + "gcc", *FLAGS, *more, f"-march={march}", *paths, "-c", source, "-o", target)
        if source in KERNEL and " U " in call(PREFIX + "nm", "-u", target):
            raise Wrong(f"{source} calls something outside: {call(PREFIX + 'nm', '-u', target)}")
        objects.append(target)
    image = folder / "image.elf"
    linked = [f"-march={variant}", "-mabi=lp64", "-nostdlib", "-static", f"-Wl,-T,{SCRIPT}"]
    call(PREFIX + "gcc", *linked, *objects, "-o", image)
    return image


def run(image: Path, harts: int, *more: str | Path) -> list[list[str]]:
    """Returns the output of the driver, split into words."""
    machine = ["-M", "virt", "-bios", "none", "-smp", str(harts), "-icount", "shift=0"]
    quiet = ["-display", "none", "-monitor", "none", "-serial", "stdio"]
    text = call(QEMU, *machine, *quiet, *more, "-kernel", image)
    return [line.split(" ") for line in text.splitlines()]


def symbols(image: Path) -> dict[str, int]:
    rows = (line.split() for line in call(PREFIX + "nm", image).splitlines())
    return {row[2]: int(row[0], 16) for row in rows}


def class_of(mnemonic: str) -> str:
    name = mnemonic.removeprefix("c.")
    if name in LOADS:
        return "load"
    if name in STORES:
        return "store"
    if name.startswith(("amo", "lr.", "sc.")):
        return "atomic"
    if name.startswith("fence"):
        return "fence"
    if name.startswith("mul"):
        return "multiply"
    return "branch" if name in BRANCHES or name.startswith("j") else "other"


def classes(image: Path) -> dict[int, str]:
    """Returns the class of the instruction at each address of the kernel."""
    text = call(PREFIX + "objdump", "-d", "-M", "no-aliases", "-j", ".text.dpa", image)
    rows = re.findall(r"^\s*([0-9a-f]+):\t[0-9a-f ]+\t(\S+)", text, re.MULTILINE)
    return {int(at, 16): class_of(name) for at, name in rows}


def executed(log: Path) -> Iterator[tuple[int, int]]:
    """Yields hart and address of each instruction."""
    last: tuple[int, int] | None = None
    with log.open() as lines:
        for line in lines:
            match = TRACE.match(line)
            if match:
                if last:
                    yield last
                last = int(match[1]), int(match[2], 16)
            elif line.startswith(STOPPED):
                last = None
    if last:
        yield last


def windows(image: Path, harts: int) -> list[list[Counter[str]]]:
    """Returns by hart the instructions executed in each counted call, by class, from the log of
    addresses."""
    names, kinds = symbols(image), classes(image)
    log = image.with_suffix(".log")
    span = f"0x{names['dpa_begin']:x}..0x{names['dpa_end']:x}"
    run(image, harts, "-singlestep", "-d", "exec,nochain", "-dfilter", span, "-D", log)
    found: list[list[Counter[str]]] = [[] for _ in range(harts)]
    counting: list[Counter[str] | None] = [None] * harts
    begins, ends = names["count_begins"], names["count_ends"]
    for hart, at in executed(log):
        window = counting[hart]
        if at == begins:
            counting[hart] = Counter()
        elif at == ends and window is not None:
            window["branch"] -= 1  # the call, which belongs to the counting
            found[hart].append(window)
            counting[hart] = None
        elif window is not None:
            window[kinds[at]] += 1
    log.unlink()
    return found


def calibrate(rows: list[list[str]]) -> int:
    """Returns the instructions of a counted call that belong to the counting."""
    empty = next(int(row[1]) for row in rows if row[0] == "empty")
    for row in rows:
        if row[0] != "loop":
            continue
        turns, counted = int(row[1]), int(row[2])
        if counted - empty != 2 * turns + 1:
            raise Wrong(f"a loop of {2 * turns + 1} instructions counts {counted - empty}")
    return empty - 1


def scenarios(rows: list[list[str]]) -> dict[str, dict[str, Any]]:
    own = calibrate(rows)
    found = {}
    for row in rows:
        if row[0] in ("empty", "loop"):
            continue
        name, completions, calls, cost, memory = row[0], *map(int, row[1:5])
        if row[5:] != ["kept"]:
            raise Wrong(f"{name}: {' '.join(row[5:])}")
        found[name] = {
            "completions": completions,
            "calls": calls,
            "instructions": cost - own * calls,
            "each": round((cost - own * calls) / (completions or calls), 2),
            "memory": f"{memory:016x}",
        }
    return found


def compare(name: str, harts: list[list[Counter[str]]], found: dict[str, dict[str, Any]]) -> None:
    """Puts the classes into `found`. Raises if log and counter disagree, or one hart and another."""
    alone = len(harts) == 1
    for hart, calls in enumerate(harts):
        rest = calls[-sum(row["calls"] for row in found.values()) :]
        for scenario, row in found.items():
            mine, rest = rest[: row["calls"]], rest[row["calls"] :]
            kinds = sum(mine, Counter())
            if kinds.total() != row["instructions"]:
                raise Wrong(
                    f"{name}, {scenario}, hart {hart} of {len(harts)}: the log has {kinds.total()} "
                    f"instructions, the counter {row['instructions']}"
                )
            if alone:
                row["classes"] = dict(sorted(kinds.items()))
            elif dict(sorted(kinds.items())) != row["classes"]:
                raise Wrong(f"{name}, {scenario}: hart {hart} executed others")


def count(variant: str) -> dict[str, dict[str, Any]]:
    image = build(variant, 1)
    found = scenarios(run(image, 1))
    compare(variant, windows(image, 1), found)
    compare(variant, windows(build(variant, HARTS), HARTS), found)
    return found


def first_line(*command: str) -> str:
    try:
        return call(*command).splitlines()[0]
    except FileNotFoundError:
        sys.exit(f"{command[0]} is missing: tools/setup.sh dpa installs it")


def measure() -> dict[str, Any]:
    document: dict[str, Any] = {
        "compiler": first_line(PREFIX + "gcc", "--version"),
        "emulator": first_line(QEMU, "--version"),
        "flags": " ".join(FLAGS),
        "harts": HARTS,
        "variants": {variant: count(variant) for variant in VARIANTS},
    }
    first, *others = document["variants"].values()
    for other in others:
        for name, row in other.items():
            if row["memory"] != first[name]["memory"]:
                raise Wrong(f"{name}: the variants leave different memory")
    return document


def check_budgets(document: dict[str, Any]) -> None:
    best = document["variants"][next(iter(VARIANTS))]
    for name, budget in BUDGETS.items():
        if best[name]["each"] > budget:
            raise Wrong(
                f"{name}: {best[name]['each']} instructions per chunk, the paper's has {budget}"
            )


def show(document: dict[str, Any]) -> None:
    for variant, rows in document["variants"].items():
        print(variant)
        for name, row in rows.items():
            per = "chunk" if row["completions"] else "call"
            paper = f", the paper's {BUDGETS[name]}" if name in BUDGETS else ""
            kinds = ", ".join(f"{kind} {n}" for kind, n in row["classes"].items())
            print(f"  {name:17} {row['each']:7.2f} per {per}{paper}  ({kinds})")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    try:
        document = measure()
        check_budgets(document)
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        return 1
    show(document)
    text = json.dumps(document, indent=1) + "\n"
    if write:
        RECORD.write_text(text)
        return 0
    old = json.loads(RECORD.read_text())
    tools = ("compiler", "emulator")
    if any(old[tool] != document[tool] for tool in tools):
        print(f"counted with other tools than {RECORD.name}: {[old[tool] for tool in tools]}")
        return 0
    if text != RECORD.read_text():
        print(
            f"{RECORD.relative_to(ROOT)} says otherwise; --write, and look at git diff",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
