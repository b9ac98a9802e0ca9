"""Lists of ranks as people write them."""

from __future__ import annotations

from collections.abc import Iterable


def spans(ranks: Iterable[int]) -> str:
    """{0, 1, 2, 5} -> "0-2, 5"."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in parts)


def label(ranks: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0-2, 5"."""
    several = set(ranks)
    return f"rank{'s' if len(several) != 1 else ''} {spans(several)}"
