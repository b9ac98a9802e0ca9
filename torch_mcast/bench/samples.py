"""Statistics of small samples: the slowest rank, percentiles, paired ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles


def percentile(values: Sequence[float], percent: int) -> float:
    """Interpolates linearly between order statistics (numpy's default); percent from 1 to 99."""
    if len(values) == 1:  # quantiles() accepts one value from Python 3.13 on
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def slowest(per_rank: Sequence[Sequence[float]]) -> list[float]:
    """Returns the time of the slowest rank in each repetition. per_rank[rank][repetition], all
    equally long."""
    return [max(times) for times in zip(*per_rank, strict=True)]


@dataclass(frozen=True)
class Ratio:
    """How many times faster than a peer: median of the repetitions' ratios, and their quartiles."""

    median: float
    low: float
    high: float


def paired_ratio(times: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Returns peer / times, repetition by repetition, since both ran at about the same moment.
    Above 1: faster."""
    ratios = [b / a for a, b in zip(times, peer, strict=True)]
    return Ratio(median(ratios), percentile(ratios, 25), percentile(ratios, 75))
