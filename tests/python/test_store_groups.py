"""Groups that adapters of frameworks make from a store (torch_mcast.adapters). tests/python/frameworks has the
frameworks themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from named_errors import raises_error

import torch_mcast

WORLD = 2


def summed(group: Any, value: float) -> list[float]:
    tensor = torch.full((3,), value)
    group.allreduce([tensor]).wait()
    return tensor.tolist()


def two_groups_outlive_the_default_group(file: str):
    from torch_mcast.adapters._store_group import group_of_store

    rank = dist.get_rank()
    limit = timedelta(seconds=20)
    groups = []
    for name in ("first", "second"):
        store = dist.PrefixStore(name, dist.FileStore(file, WORLD))
        groups.append(group_of_store(store, rank, WORLD, name, limit))
    assert [summed(group, rank + 1.0) for group in groups] == [[3.0] * 3] * 2
    dist.destroy_process_group()
    assert [summed(group, rank + 2.0) for group in groups] == [[5.0] * 3] * 2
    calls = [torch_mcast.stats(group)["calls"]["all_reduce"] for group in groups]
    assert calls == [{"engine": 2, "fallback": 0}] * 2
    first, second = groups
    torch_mcast.abort(first)
    reasons = {f"abort() on rank {rank}" for rank in range(WORLD)}
    with raises_error(RuntimeError, "aborted", reason=reasons) as caught:
        summed(first, 1.0)
    assert "in group 'first': " in str(caught.value)
    assert summed(second, 1.0) == [2.0] * 3
    second.shutdown()


def test_groups_of_a_store_need_no_default_group(pool, tmp_path):
    pool.run(WORLD, two_groups_outlive_the_default_group, str(tmp_path / "store"))
