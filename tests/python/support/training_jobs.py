"""Jobs of two ranks that run with mcast and with Gloo and must give the same bits.

With two ranks the order of a sum does not matter, so results can be compared exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from contents import assert_same
from torch.distributed import distributed_c10d

import torch_mcast

Tensors = dict[str, torch.Tensor]


def calls(way: str) -> Counter[str]:
    """Calls by operation ("engine" or "fallback"), summed over all mcast groups of this rank."""
    found: Counter[str] = Counter()
    for group, (backend, _) in distributed_c10d._world.pg_map.items():
        if "mcast" in backend:
            for name, counts in torch_mcast.stats(group)["calls"].items():
                found[name] += counts[way]
    return found


def counted(job: Callable[..., Tensors], *args: Any) -> tuple[Tensors, Counter[str], Counter[str]]:
    results = job(*args)
    return results, calls("engine"), calls("fallback")


def assert_equal(mine: Tensors, theirs: Tensors) -> None:
    assert mine.keys() == theirs.keys() and mine
    for name in mine:
        assert_same(mine[name], theirs[name], name)


def compare_with_gloo(
    ranks: Any, used: tuple[str, ...], job: Callable[..., Tensors], *args: Any, world: int = 2
) -> list[Tensors]:
    """Returns the results of `job` by rank: they equal Gloo's, every operation in `used` ran in the engine,
    and nothing ran in the fallback."""
    ours = ranks(world, counted, job, *args)
    theirs = ranks(world, counted, job, *args, backend="gloo")
    for (mine, engine, fallback), (its, _, _) in zip(ours, theirs, strict=True):
        assert_equal(mine, its)
        assert not fallback.total(), fallback
        assert all(engine[name] > 0 for name in used), engine
    return [mine for mine, _, _ in ours]
