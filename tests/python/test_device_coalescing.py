"""Batches of calls whose tensors are on a device that another backend serves, which defers its
calls while it coalesces: it gets a start at its first call of a batch, and an end at the end. It
replaces NCCL, whose sends and receives in a ring would otherwise wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import batching
import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import check, upload
from torch.distributed import ReduceOp

import torch_mcast
from torch_mcast import _fallback

pytestmark = pytest.mark.fake_device  # its fallback is made here
pytest_generate_tests = device_ranks.pytest_generate_tests
library, device_pools, hosted = device_ranks.library, device_ranks.device_pools, device_ranks.hosted

WORLD = 3


@contextmanager
def batches() -> Iterator[tuple[dist.ProcessGroup, Callable[[], list[str]]]]:
    """Yields a group whose device tensors another backend serves, and the log of that backend's calls."""
    module = batching.load()
    make, made = _fallback.make, []

    def stand_in(backend: Any, kind: str) -> Any:
        made.append(module.Batching(make(backend, "gloo")))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _fallback, "kind", lambda backend, device: "gloo" if device == "cpu" else "like NCCL"
        )
        patch.setattr(_fallback, "make", stand_in)
        group = dist.new_group()
        yield group, lambda: made[-1].log() if made else []
        assert len(made) <= 1


def device() -> torch.device:
    return torch.device("fake:0")


def around(group: dist.ProcessGroup, size: int, turn: int) -> tuple[list[dist.P2POp], Callable]:
    """Returns the operations that send to the next rank and receive from the previous one, and a
    check of their results."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    got = torch.zeros(size).to("fake")
    mine = upload(content(rank, size, torch.float32, turn))
    calls = [
        dist.P2POp(dist.isend, mine, ahead, group),
        dist.P2POp(dist.irecv, got, behind, group),
    ]
    return calls, lambda: check(got, content(behind, size, torch.float32, turn), (turn, "ring"))


def said() -> list[str]:
    rank, world = dist.get_rank(), dist.get_world_size()
    return [f"send to {(rank + 1) % world}", f"recv from {(rank - 1) % world}"]


def ring() -> None:
    with batches() as (group, log):
        for turn in range(3):
            calls, right = around(group, 5_000, turn)
            works = dist.batch_isend_irecv(calls)
            assert len(works) == 1 and not works[0].is_completed()
            works[0].wait()
            assert works[0].is_completed() and works[0].is_success()
            assert log() == ["start", *said(), "end"], turn
            right()
        calls = torch_mcast.stats(group)["calls"]
        assert calls["send"] == calls["recv"] == {"engine": 0, "fallback": 3}


def test_a_batch_of_messages_is_one_of_the_fallback(hosted):
    hosted(WORLD, ring)


def managed() -> None:
    """Calls of the engine and of the fallback alternate in one batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = (3, 5_000)
    with batches() as (group, log):
        spread = [upload(content(rank, n, torch.float32)) for n in sizes]
        sums = [upload(torch.full((n,), float(rank + 1))) for n in sizes]
        with dist._coalescing_manager(group, device(), async_ops=True) as manager:
            for root, (mine, total) in enumerate(zip(spread, sums, strict=True)):
                dist.broadcast(mine, root, group=group)
                dist.reduce(total, root, ReduceOp.SUM, group=group)
                assert log() == (["start", "reduce"] if root == 0 else ["reduce"])
        (work,) = manager.works
        assert not work.is_completed()
        manager.wait()
        assert work.is_completed() and work.is_success()
        assert log() == ["end"]
        for root, (mine, total) in enumerate(zip(spread, sums, strict=True)):
            check(mine, content(root, sizes[root], torch.float32), (root, "broadcast"))
            if rank == root:
                expected = torch.full((sizes[root],), world * (world + 1) / 2)
                check(total, expected, (root, "reduce"))


def test_a_batch_of_both_is_one_work(hosted):
    hosted(WORLD, managed)


def reduced() -> None:
    """All-reduces, which torch collects and passes on at the end of the batch, or at once without a
    device."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with batches() as (group, log):
        for where in (device(), None):
            tensors = [upload(torch.full((n,), float(rank))) for n in (7, 900)]
            with dist._coalescing_manager(group, where):
                for tensor in tensors:
                    dist.all_reduce(tensor, group=group)
                assert log() == []
            expected = ["all_reduce_coalesced"]
            assert log() == (expected if where is None else ["start", *expected, "end"])
            for tensor in tensors:
                check(tensor, torch.full((len(tensor),), world * (world - 1) / 2), where)


def test_a_batch_of_reductions(hosted):
    hosted(WORLD, reduced)


def without_it() -> None:
    """If a batch has no call for the fallback, the fallback is not notified of it; calls outside of
    a batch are not deferred."""
    rank = dist.get_rank()
    with batches() as (group, log):
        with dist._coalescing_manager(group, device()):
            pass
        mine = upload(content(rank, 300, torch.float32))
        with dist._coalescing_manager(group, device(), async_ops=True) as manager:
            dist.broadcast(mine, 1, group=group)
        manager.wait()
        check(mine, content(1, 300, torch.float32), "broadcast")
        assert log() == []
        total = upload(torch.ones(4))
        dist.all_reduce(total, group=group)
        check(total, torch.full((4,), float(dist.get_world_size())), "outside")
        assert log() == ["all_reduce"]
        calls, right = around(group, 50, 0)  # the fallback exists now
        with dist._coalescing_manager(group, device()):
            pass
        assert log() == []
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert log() == ["start", *said(), "end"]
        right()


def test_a_batch_without_a_call_of_the_fallback(hosted):
    hosted(WORLD, without_it)


def other_thread() -> None:
    """A concurrent call of another thread is not part of the batch."""
    world = dist.get_world_size()
    with batches() as (group, log):
        group._start_coalescing(device())
        total = upload(torch.ones(5))
        thread = threading.Thread(target=dist.all_reduce, args=(total,), kwargs={"group": group})
        thread.start()
        thread.join()
        assert log() == ["all_reduce"]  # at once
        group._end_coalescing(device())
        assert log() == []
        check(total, torch.full((5,), float(world)), "other thread")


def test_a_call_of_another_thread(hosted):
    hosted(WORLD, other_thread)
