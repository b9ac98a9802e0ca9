"""`torch-mcast estimate offload`: computes how many hardware threads (harts) of a SmartNIC a link needs, from
instructions per chunk.

Measured: instructions per chunk of this project's kernel (csrc/dpa), compiled by gcc for RV64
(benchmarks/dpa-counts.json, tools/dpa_count.py). From the paper: instructions and cycles of its kernels on a
BlueField-3 (UD 113 and 1084, UC 66 and 598), and the harts that carried 200 Gbit/s (UD 16, UC 4). The rest is
arithmetic. No BlueField was used; docs/offload.md says what only measurements on one can show.

- *Alone*: an undisturbed hart takes the paper's cycles per instruction, and the rates of harts add up.
- *Shared*: the harts of a core wait for each other and for memory. Each executes as many instructions per
  second as each of the harts that carried 200 Gbit/s in the paper. The truth lies between the two.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_mcast.cost_model import json_output

COUNTS = Path(__file__).resolve().parents[2] / "benchmarks" / "dpa-counts.json"

CLOCK = 1.8e9
HARTS = 256
CACHE = 1.5e6  # bytes, the DPA's last level
SLICE = 128  # bytes of struct dpa_slice
GBIT = (200, 400, 800, 1600)
CHUNKS = (4096, 1024, 64)
# The rate at which the paper says how many harts it took, with chunks of 4 KiB.
PROVEN = 200e9 / 8 / 4096


@dataclass(frozen=True)
class Kind:
    """The paper's figures of a way to receive: per chunk and hart, and harts at 200 Gbit/s."""

    name: str
    instructions: int
    cycles: int
    harts: int
    measured: float  # GiB/s of one hart, 4 KiB chunks

    @property
    def cycles_per_instruction(self) -> float:
        return self.cycles / self.instructions

    @property
    def shared(self) -> float:
        """Returns the instructions per second of a hart among the others."""
        return PROVEN * self.instructions / self.harts


UD = Kind("UD", 113, 1084, 16, 5.2)
UC = Kind("UC", 66, 598, 4, 11.9)

# Kernels of csrc/dpa that receive, and the paper's kind that is like each.
OURS = {"header": UD, "immediate": UD, "placed": UC}


@dataclass(frozen=True)
class Kernel:
    name: str
    kind: Kind
    instructions: float
    clock: float = CLOCK
    cycles_per_instruction: float | None = None  # None: the paper's of its kind

    @property
    def alone(self) -> float:
        """Returns the chunks per second of one hart."""
        cycles = self.cycles_per_instruction or self.kind.cycles_per_instruction
        return self.clock / (self.instructions * cycles)

    @property
    def shared(self) -> float:
        return self.kind.shared / self.instructions * self.clock / CLOCK

    def harts(self, gbit: float, chunk: int) -> tuple[int, int]:
        """Returns the harts for both cases: alone, shared."""
        needed = needed_rate(gbit, chunk)
        return _whole(needed / self.alone), _whole(needed / self.shared)


def needed_rate(gbit: float, chunk: int) -> float:
    """Returns the chunks per second of a link that carries only payload."""
    return gbit * 1e9 / 8 / chunk


def _whole(harts: float) -> int:
    return math.ceil(harts - 1e-9)


def state_bytes(operation: int, chunk: int, roots: int = 1) -> int:
    """Returns the bytes that an operation of this size per root keeps on the DPA: slices, and
    bitmaps in whole words."""
    chunks = -(-operation // chunk)
    return roots * (SLICE + -(-chunks // 64) * 8)


def kernels(
    counts: dict[str, Any] | None, clock: float = CLOCK, cycles: float | None = None
) -> list[Kernel]:
    """Returns the paper's two kernels, then those of the file of counts."""
    found = [
        Kernel(f"paper {kind.name}", kind, kind.instructions, clock, cycles) for kind in (UD, UC)
    ]
    for variant, rows in (counts or {}).get("variants", {}).items():
        for name, kind in OURS.items():
            has_rev8 = "zbb" in variant
            label = f"ours {name}" if has_rev8 else f"ours {name}, no Zbb"
            found.append(Kernel(label, kind, rows[name]["each"], clock, cycles))
    return found


def document(found: list[Kernel], counts: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "measured": {key: counts[key] for key in ("compiler", "emulator", "flags")}
        if counts
        else None,
        "clock": found[0].clock,
        "needed": {
            str(chunk): {str(gbit): needed_rate(gbit, chunk) for gbit in GBIT} for chunk in CHUNKS
        },
        "kernels": [
            {
                "name": kernel.name,
                "like": kernel.kind.name,
                "instructions": kernel.instructions,
                "chunks_per_s": {"alone": kernel.alone, "shared": kernel.shared},
                "harts": {
                    str(chunk): {str(gbit): kernel.harts(gbit, chunk) for gbit in GBIT}
                    for chunk in CHUNKS
                },
            }
            for kernel in found
        ],
        "state_bytes": {str(chunk): state_bytes(64 << 20, chunk) for chunk in CHUNKS},
        "cache_bytes": CACHE,
    }


def _harts_text(harts: tuple[int, int]) -> str:
    return " / ".join(str(count) if count <= HARTS else f"> {HARTS}" for count in harts)


def notes(found: list[Kernel]) -> list[str]:
    lines = []
    for kernel in found:
        speed = f"{kernel.alone / 1e6:.2f} M chunks/s = {kernel.alone * 4096 / 2**30:.1f} GiB/s of 4 KiB"
        paper = (
            f"; the paper measured {kernel.kind.measured}"
            if kernel.name.startswith("paper")
            else ""
        )
        lines.append(f"one hart alone, {kernel.name}: {speed}{paper}")
    for chunk in CHUNKS[:2]:
        size = state_bytes(64 << 20, chunk)
        fit = int(CACHE // size)
        lines.append(
            f"64 MiB of one root in chunks of {chunk}: {size} bytes of slice and bitmap; "
            f"the cache of 1.5 MB has room for {fit}"
        )
    lines.append(
        "UD passes memory three times (into staging, out of it, into place): 75 GB/s at 200 Gbit/s. "
        "The model knows rates of harts, not PCIe or memory"
    )
    lines.append(
        "instructions of our code are counted (gcc, RV64, qemu); cycles, clock and sharing are the paper's"
    )
    return lines


def _show(found: list[Kernel]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="harts of a BlueField-3's DPA, alone / shared", header_style="bold")
    for heading in ("kernel", "instructions", "chunk", *(f"{gbit}G" for gbit in GBIT)):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for chunk in CHUNKS:
        rates = [f"{needed_rate(gbit, chunk) / 1e6:.1f}" for gbit in GBIT]
        table.add_row("needed, M chunks/s", "", str(chunk), *rates)
        for kernel in found:
            cells = [_harts_text(kernel.harts(gbit, chunk)) for gbit in GBIT]
            table.add_row(kernel.name, f"{kernel.instructions:g}", str(chunk), *cells)
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    for note in notes(found):
        console.print(f"note: {note}", highlight=False)


def main(argv: list[str]) -> int:
    """Runs `torch-mcast estimate offload ARGV`; the exit code (2: the question makes no sense)."""
    parser = argparse.ArgumentParser(
        prog="torch-mcast estimate offload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--clock", type=float, default=CLOCK / 1e9, metavar="GHZ", help="clock of a hart [1.8]"
    )
    parser.add_argument(
        "--counts",
        type=Path,
        default=None,
        metavar="FILE",
        help="instruction counts [benchmarks/dpa-counts.json]",
    )
    parser.add_argument(
        "--cycles-per-instruction",
        type=float,
        default=None,
        metavar="N",
        help="cycles per instruction [the paper's]",
    )
    json_output.add_option(parser)
    args = parser.parse_args(argv)
    cycles: float | None = args.cycles_per_instruction
    if args.clock <= 0 or (cycles is not None and cycles <= 0):
        print(
            "torch-mcast estimate offload: --clock and --cycles-per-instruction must be positive",
            file=sys.stderr,
        )
        return 2
    counts = None
    path: Path = args.counts or COUNTS
    try:
        counts = json.loads(path.read_text())
        found = kernels(counts, args.clock * 1e9, cycles)
    except FileNotFoundError:
        if args.counts:
            print(f"torch-mcast estimate offload: {path}: no such file", file=sys.stderr)
            return 2
        # Installed without the repository: only the paper's counts are available.
        found = kernels(None, args.clock * 1e9, cycles)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        print(
            f"torch-mcast estimate offload: {path} is not a file of counts: {error!r}",
            file=sys.stderr,
        )
        return 2
    try:
        if not json_output.write(args.json, document(found, counts)):
            _show(found)
    except ValueError as error:
        print(f"torch-mcast estimate offload: {error}", file=sys.stderr)
        return 2
    return 0
