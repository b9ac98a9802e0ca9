"""Ranks that meet when a group is created: on a store with keys of earlier creations, and in groups
of one name with different members."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from passing_store import PassingStore
from ranks import free_port
from waiting import until

import torch_mcast
from torch_mcast._load import extension


def client(port: int) -> dist.Store:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))


def make(store: dist.Store, rank: int, world: int, limit_s: float = 60):
    options = torch_mcast.Options()
    options.timeout = timedelta(seconds=limit_s)
    return extension().ProcessGroupMcast(store, rank, world, options)


def exchange(port: int) -> list[float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = make(client(port), rank, world)
    output = torch.zeros(world)
    group._allgather_base(output, torch.tensor([float(rank)])).wait()
    group.shutdown()
    return output.tolist()


@pytest.fixture
def kept():
    """A store that lives longer than the ranks."""
    return dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)


def test_worlds_of_other_sizes_on_a_kept_store(pool, kept):
    for world in (3, 2, 3):
        assert pool.run(world, exchange, kept.port) == [[float(r) for r in range(world)]] * world


KEY = "mcast/1/rank/1"


def second_start(port: int, first: bytes) -> list[float]:
    """Rank 0 joins once the restarted process has replaced the record of the first one."""
    if dist.get_rank() == 0:
        store = client(port)
        until(lambda: store.get(KEY) != first, "the record of the second process")
    return exchange(port)


@contextlib.contextmanager
def started(port: int):
    """Starts rank 1 of 2, which is killed at the end."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_making as t; "
        f"t.make(t.client({port}), 1, 2)"
    )
    environment = {**os.environ, "MCAST_SOCKET_IFNAME": "lo", "MCAST_SHARED_MEMORY": "off"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_rank_that_was_started_again_joins_the_open_making(pool, kept):
    with started(kept.port):
        until(lambda: kept.check([KEY]), "the record of the first process")
    assert pool.run(2, second_start, kept.port, kept.get(KEY)) == [[0.0, 1.0]] * 2


class WithoutEnds(PassingStore):
    """Rank 0 has concluded the creation and not yet marked it as ended, as while it opens the group."""

    def check(self, keys: list[str]) -> bool:
        return not any("/over/" in key for key in keys) and self.real.check(keys)

    def add(self, key: str, value: int) -> int:
        return 0 if "/over" in key else self.real.add(key, value)


def too_late(port: int) -> str:
    with pytest.raises(dist.DistBackendError) as caught:
        make(WithoutEnds(client(port)), 1, 2)
    return str(caught.value)


def concluded(port: int) -> None:
    with pytest.raises(dist.DistBackendError):
        make(client(port), 0, 2, limit_s=3)


def test_a_rank_that_was_started_again_too_late_says_so(pool, kept):
    with started(kept.port):
        until(lambda: kept.check([KEY]), "the record of the first process")
    pool.run(1, concluded, kept.port)
    (text,) = pool.run(1, too_late, kept.port)
    assert "rank 1 was started again while the group was made" in text, text


class LateEnd(PassingStore):
    """Rank 0 ends the first making only after rank 1 has published its record for the second."""

    def add(self, key: str, value: int) -> int:
        if key.endswith("1/over/0"):
            until(lambda: self.real.check(["mcast/2/rank/1"]), "the record of the second making")
        return self.real.add(key, value)


def twice(port: int) -> list[float]:
    rank = dist.get_rank()
    kept = [make(client(port) if rank else LateEnd(client(port)), rank, 2) for _ in range(2)]
    output = torch.zeros(2)
    kept[1]._allgather_base(output, torch.tensor([float(rank)])).wait()
    for group in kept:
        group.shutdown()
    return output.tolist()


def test_a_rank_that_has_ended_a_making_joins_the_next_one(pool, kept):
    assert pool.run(2, twice, kept.port) == [[0.0, 1.0]] * 2


def halves() -> None:
    """Each half of the world names only its own ranks."""
    rank = dist.get_rank()
    mine = [0, 1] if rank < 2 else [2, 3]
    for _ in range(3):
        group = dist.new_group(mine, timeout=timedelta(seconds=60))
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(mine)
        outputs = [torch.zeros(1) for _ in mine]
        dist.all_gather(outputs, torch.tensor([float(rank)]), group=group)
        assert [t.item() for t in outputs] == mine
    dist.barrier()


def test_each_half_of_a_world_makes_its_own_group(ranks):
    ranks(4, halves)


def other_lists() -> str:
    lists = {0: [0, 1], 1: [0, 1, 2], 2: [0, 1, 2]}
    with pytest.raises(dist.DistBackendError) as caught:
        dist.new_group(lists[dist.get_rank()], timeout=timedelta(seconds=60))
    distributed = str(caught.value)
    assert "ranks differ in the members of the group" in distributed, distributed
    assert "[0, 1]" in distributed and "[0, 1, 2]" in distributed, distributed
    return distributed


def test_ranks_that_name_different_members_are_told(pool):
    pool.run(3, other_lists)
