"""Formats amounts and times for people."""

from __future__ import annotations


def amount(value: float, step: int = 1024) -> str:
    """Formats a number with a prefix, such as 4.3M. `step` is 1024 or 1000."""
    for prefix in ("", "k" if step == 1000 else "K", "M", "G"):
        if value < step:
            return f"{value:.0f}{prefix}" if prefix == "" else f"{value:.1f}{prefix}"
        value /= step
    return f"{value:.1f}T"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
