"""The report as text: aligned columns whose cells wrap at word ends to fit the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from torch_mcast.doctor.findings import Finding, Verdict

_COLOURS = {Verdict.OK: "\033[32m", Verdict.WARN: "\033[33m", Verdict.FAIL: "\033[31m"}
_RESET = "\033[0m"
HEADER = ("check", "finding", "verdict", "fix")
_LEAST_FINDING = 16
_LEAST = 60  # lines are not wrapped for a narrower terminal


def _wrap(text: str, width: int) -> list[str]:
    # Commands must survive being copied: their words are never broken at hyphens.
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def column_widths(rows: Sequence[Sequence[str]], total: int) -> list[int]:
    """Returns the widths of the four columns: the first and third as needed, the rest shared by need."""
    check, verdict = (max(len(row[i]) for row in rows) for i in (0, 2))
    room = max(total, _LEAST) - check - verdict - 3 * 2
    finding, fix = (max(len(row[i]) for row in rows) for i in (1, 3))
    if finding + fix > room:
        # Leaves space for the longest word of a command, if enough remains for the findings.
        words = [len(word) for row in rows for word in row[3].split()]
        least = min(max(words, default=0), room - _LEAST_FINDING)
        share = min(max(min(room * 3 // 5, finding), room - fix), room - least)
        finding, fix = share, room - share
    return [check, finding, verdict, fix]


def table(findings: Sequence[Finding], width: int, colour: bool = False) -> str:
    rows = [HEADER, *((f.check, f.finding, f.verdict.value, f.fix) for f in findings)]
    widths = column_widths(rows, width)
    lines = []
    for number, row in enumerate(rows):
        cells = [_wrap(text, max(size, 1)) for text, size in zip(row, widths, strict=True)]
        for i in range(max(map(len, cells))):
            parts = [
                (cell[i] if i < len(cell) else "").ljust(size)
                for cell, size in zip(cells, widths, strict=True)
            ]
            if colour and number > 0 and i == 0:
                parts[2] = f"{_COLOURS[findings[number - 1].verdict]}{parts[2]}{_RESET}"
            lines.append("  ".join(parts).rstrip())
        if number == 0:
            lines.append("  ".join("-" * size for size in widths))
    return "\n".join(lines)


def summary(findings: Sequence[Finding]) -> str:
    counts = {v: sum(f.verdict is v for f in findings) for v in Verdict}
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items())
