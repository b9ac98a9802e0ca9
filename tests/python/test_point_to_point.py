"""send, recv, isend, irecv and batches: by the engine over the network, also where that is an engine of the
host, by Gloo on one host; the same bytes."""

from __future__ import annotations

import random
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from contents import DTYPES, GLOO_DTYPES, assert_same, content

import torch_mcast

ENGINES = ["network", "engine-network", "engine-network-copy"]
NETWORK = pytest.mark.parametrize("ranks", ENGINES, indirect=True)
BOTH = pytest.mark.parametrize("ranks", [*ENGINES, "host"], indirect=True)


def by_engine() -> bool:
    return torch_mcast.stats()["path"] != "shared memory"


def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size * dtype.itemsize, dtype=torch.uint8).view(dtype)


def all_types() -> None:
    rank = dist.get_rank()
    kinds = DTYPES if by_engine() else GLOO_DTYPES
    for salt, (dtype, size) in enumerate((d, s) for d in kinds for s in (0, 1, 1021, 70_001)):
        mine, got = content(rank, size, dtype, salt), zeros(size, dtype)
        works = [dist.isend(mine, 1 - rank, tag=salt % 3), dist.irecv(got, 1 - rank, tag=salt % 3)]
        for work in works:
            assert work is not None and work.wait()
            assert work.is_completed() and work.is_success()
        assert_same(got, content(1 - rank, size, dtype, salt), (dtype, size))
    calls = torch_mcast.stats()["calls"]["send"]
    assert calls["engine" if by_engine() else "fallback"] == 4 * len(kinds)
    assert calls["fallback" if by_engine() else "engine"] == 0


@BOTH
def test_all_types(ranks):
    ranks(2, all_types)


def in_any_order(seed: int) -> None:
    """Sends in one order, receives in another: of one tag the first sent comes first."""
    rank, world = dist.get_rank(), dist.get_world_size()
    draw = random.Random(seed)
    plan = [(draw.randrange(3), draw.choice([3, 500, 90_000])) for _ in range(40)]
    works, expected = [], []
    for n, (tag, size) in enumerate(plan):
        for peer in set(range(world)) - {rank}:
            works.append(dist.isend(content(rank, size, torch.float32, n), peer, tag=tag))
    order = sorted(range(len(plan)), key=lambda n: (plan[n][0], n), reverse=rank % 2 == 1)
    if rank % 2 == 1:  # tags backwards, each of them forwards
        order = sorted(range(len(plan)), key=lambda n: (-plan[n][0], n))
    for n in order:
        for peer in set(range(world)) - {rank}:
            got = torch.zeros(plan[n][1])
            works.append(dist.irecv(got, peer, tag=plan[n][0]))
            expected.append((got, peer, n))
    for work in works:
        work.wait()
    for got, peer, n in expected:
        assert_same(got, content(peer, plan[n][1], torch.float32, n), (peer, n))


@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_in_any_order(ranks, seed):
    ranks(3, in_any_order, seed)


def any_source() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            got = torch.zeros(1000)
            source = dist.recv(got, tag=7)
            assert got.tolist() == [float(source)] * 1000
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        time.sleep(0.05 * (world - rank))
        dist.send(torch.full((1000,), float(rank)), 0, tag=7)
    works = []
    if rank == 0:
        results = [torch.zeros(3) for _ in range(world - 1)]
        works = [dist.irecv(got) for got in results]
        for work, got in zip(works, results, strict=True):
            work.wait()
            assert got[0] == float(work._source_rank())
    else:
        dist.send(torch.full((3,), float(rank)), 0)


@BOTH
def test_any_source(ranks):
    ranks(4, any_source)


def strided() -> None:
    rank = dist.get_rank()
    whole = torch.zeros(20, 30)
    if rank == 0:
        dist.send(torch.arange(600.0).view(30, 20).t(), 1)
    else:
        dist.recv(whole[:, ::1].t(), 0) if not by_engine() else dist.recv(whole, 0)
        assert_same(whole, torch.arange(600.0).view(30, 20).t().contiguous())


@NETWORK
def test_tensors_that_are_not_contiguous(ranks):
    ranks(2, strided)


def two_of_three() -> None:
    """Others are elsewhere: in a collective that these two have not called yet."""
    rank = dist.get_rank()
    work = dist.all_reduce(torch.ones(10), async_op=True) if rank == 2 else None
    mine, got = torch.full((200_000,), float(rank)), torch.zeros(200_000)
    if rank < 2:
        for each in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        ):
            each.wait()
        assert got[0] == got[-1] == float(1 - rank)
        work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()


@BOTH
def test_between_two_while_the_third_waits(ranks):
    ranks(3, two_of_three)


def another_length() -> None:
    rank = dist.get_rank()
    with pytest.raises(dist.DistBackendError, match="rank 0 has sent 12 bytes to recv of 16 bytes"):
        if rank == 0:
            dist.send(torch.ones(3), 1)
            dist.recv(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(4), 0)


@NETWORK
def test_another_length_is_an_error_on_both(ranks):
    ranks(2, another_length)


def too_late() -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="no such message has come"):
            dist.recv(torch.ones(4), 1, group=group, tag=5)
    dist.barrier()


@NETWORK
def test_a_receive_ends_by_its_limit(ranks):
    ranks(2, too_late)


def refused() -> None:
    with pytest.raises(ValueError, match="expected another rank"):
        dist.group.WORLD._get_backend(torch.device("cpu")).send([torch.ones(1)], dist.get_rank(), 0)


def test_what_is_refused(ranks):
    ranks(2, refused)
