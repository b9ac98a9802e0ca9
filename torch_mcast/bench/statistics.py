"""Medians, percentiles and paired ratios of small samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics (numpy's default); fraction in [0, 1]."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def slowest(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """Per repetition the time of the slowest rank. per_rank[rank][repetition], all equally long."""
    return [max(times) for times in zip(*per_rank, strict=True)]


@dataclass(frozen=True)
class Ratio:
    """How many times faster than a peer: median of the repetitions' ratios, and their quartiles."""

    median: float
    low: float
    high: float


def paired_ratio(times: Sequence[float], peer: Sequence[float]) -> Ratio:
    """peer / times, repetition by repetition: what both met in the same moment. > 1: faster."""
    ratios = [b / a for a, b in zip(times, peer, strict=True)]
    return Ratio(median(ratios), percentile(ratios, 0.25), percentile(ratios, 0.75))
