"""The measuring loop's arithmetic, on one of two ranks without the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from torch_mcast.bench.plan import Plan
from torch_mcast.bench.rank import _Bench


class First(_Bench):
    """Rank 0. `given` has the values of the other rank, one for each gather()."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)
        plan = Plan(("barrier",), (0,), ("openmpi",), repetitions=1, warmup=1, seed=1)
        super().__init__(plan, None)

    def gather(self, value: Any) -> list[Any]:
        return [value, self.given.pop(0)(value)]

    def _count(self, run: Any) -> list[tuple[int, int] | None]:
        return [None, None]


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


def of_the_other(*spans: tuple[float, float]) -> Any:
    return lambda _own: list(spans)


def test_on_one_clock_a_timing_begins_when_the_last_rank_has_begun():
    bench = First(lambda own: own, of_the_other((3.0, 5.5), (8.0, 9.0)))
    assert bench.one_clock
    # Rank 0 began first in one timing, last in the other.
    own = [(1.0, 5.0, 0.0, 0.0), (8.5, 9.5, 0.0, 0.0)]
    assert bench.seconds(own, 2) == [[1.0, 0.5], [1.25, 0.25]]


def test_rows_of_a_case_grow_by_repetitions():
    bench = First(lambda own: own)
    empty = {"inner": 2, "rank_times": [[], []], "rank_cpu": [[], []]}
    partial = {
        name: {key: [[], []] if key != "inner" else 2 for key in empty}
        for name in ("gloo", "openmpi")
    }
    program = {"s": 0.25, "cpu_s": None}
    last = [
        {"gloo": (1.0, 5.0, 3.0, 0.0), "openmpi": program},
        {"gloo": (3.0, 5.5, 1.0, 0.0), "openmpi": program},
    ]
    for _ in range(2):
        bench._add(partial, last)
    assert partial["gloo"]["rank_times"] == [[1.0, 1.0], [1.25, 1.25]]
    assert partial["gloo"]["rank_cpu"] == [[1.5, 1.5], [0.5, 0.5]]
    assert partial["openmpi"]["rank_times"] == [[0.25, 0.25]] * 2


def test_a_rank_that_ends_before_the_last_begins_takes_no_time():
    bench = First(lambda own: own, of_the_other((3.0, 5.0)))
    assert bench.seconds([(1.0, 2.0, 0.0, 0.0)], 1) == [[0.0], [2.0]]


def test_ranks_with_separate_clocks_are_timed_from_their_own_beginning():
    bench = First(lambda own: own + " of another machine", of_the_other((103.0, 105.5)))
    assert not bench.one_clock
    assert bench.seconds([(1.0, 5.0, 0.0, 0.0)], 2) == [[2.0], [1.25]]
