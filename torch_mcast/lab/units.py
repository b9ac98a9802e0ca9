"""Parses and formats rates, sizes and probabilities as people write them.

Rates are bits per second with decimal prefixes (``1gbit``), sizes are bytes with binary prefixes
(``256kb`` = 262144, as ``tc`` reads it), probabilities are fractions (``0.01`` or ``1%``).
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z/%]*)\s*", re.IGNORECASE)
_RATE = {"": 1, "bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_SIZE = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _split(text: str, what: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise ValueError(f"{what} {text!r} is not a number with a unit")
    return float(match[1]), match[2].lower()


def parse_rate(value: str | int | float | None) -> int | None:
    """Returns bits per second, or None for no limit (``None``, ``"none"`` or ``"0"``)."""
    if value is None:
        return None
    if isinstance(value, int | float):
        return int(value) or None
    if value.strip().lower() in ("none", "unlimited", ""):
        return None
    number, unit = _split(value, "rate")
    unit = unit.removesuffix("/s").replace("bps", "bit")
    if unit not in _RATE:
        raise ValueError(f"rate {value!r}: unknown unit; use bit, kbit, mbit or gbit")
    return int(number * _RATE[unit]) or None


def parse_size(value: str | int) -> int:
    """Returns bytes: 4096, "4k", "4KiB", "256kb", "64M" (all prefixes are powers of 1024)."""
    if isinstance(value, int):
        return value
    number, unit = _split(value, "size")
    unit = unit.removesuffix("ib") if len(unit) == 3 else unit
    unit = unit[0] if len(unit) == 2 and unit[1] == "b" else unit
    if unit not in _SIZE:
        raise ValueError(f"size {value!r}: unknown unit; use k, M or G")
    return int(number * _SIZE[unit])


def parse_probability(value: str | float) -> float:
    """Returns a fraction in [0, 1]: 0.01 or "1%"."""
    if isinstance(value, str):
        number, unit = _split(value, "probability")
        if unit not in ("", "%"):
            raise ValueError(f"probability {value!r}: write 0.01 or 1%")
        value = number / 100 if unit == "%" else number
    if not 0 <= value <= 1:
        raise ValueError(f"probability {value} is outside [0, 1]")
    return float(value)


def format_size(size: int) -> str:
    """Returns the shortest exact form: 4 KiB, 64 MiB, 1000 B."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def format_rate(rate: int | None) -> str:
    """Returns 1 Gbit/s, 100 Mbit/s; "unlimited" for None."""
    if rate is None:
        return "unlimited"
    for factor, unit in ((10**9, "Gbit/s"), (10**6, "Mbit/s"), (10**3, "kbit/s")):
        if rate >= factor:
            return f"{rate / factor:g} {unit}"
    return f"{rate} bit/s"
