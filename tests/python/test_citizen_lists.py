"""Averages of integers, lists of different sizes, and the lanes of calls."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from contents import assert_same, close
from torch.distributed import ReduceOp

import torch_mcast
from torch_mcast._load import extension

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def numbers(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns small numbers, some of them negative if the type has them."""
    values = (torch.arange(size) * 7 + rank * 3) % 11
    return (values - (4 if dtype.is_signed else 0)).to(dtype)


# Averages of integers, lists of different sizes


def quotient(total: torch.Tensor, world: int, dtype: torch.dtype) -> torch.Tensor:
    return total.to(dtype).div(world, rounding_mode="trunc")


def integer_averages() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in INTEGERS:
        for size in (0, 1, 1000, 70_000):
            total = sum(
                numbers(r, size, torch.int64) if dtype.is_signed else numbers(r, size, dtype).long()
                for r in range(world)
            )
            expected = quotient(total, world, dtype)
            tensor = numbers(rank, size, dtype)
            dist.all_reduce(tensor, ReduceOp.AVG)
            assert_same(tensor, expected, (dtype, size, "all_reduce"))
            root = numbers(rank, size, dtype)
            dist.reduce(root, 1, ReduceOp.AVG)
            assert_same(root, expected if rank == 1 else numbers(rank, size, dtype), "reduce")
            whole = torch.cat([numbers(rank, size, dtype)] * world)
            part = torch.zeros(size, dtype=dtype)
            dist.reduce_scatter_tensor(part, whole, ReduceOp.AVG)
            assert_same(part, expected, (dtype, size, "reduce_scatter_tensor"))
            part.zero_()
            dist.reduce_scatter(
                part, list(whole.chunk(world)) if size else [part.clone()] * world, ReduceOp.AVG
            )
            assert_same(part, expected, (dtype, size, "reduce_scatter"))
    room = torch.zeros(40, 2, dtype=torch.int32)[:, 0]  # every other number
    room.copy_(numbers(rank, 40, torch.int32))
    work = dist.all_reduce(room, ReduceOp.AVG, async_op=True)
    (value,) = work.get_future().wait()
    total = sum(numbers(r, 40, torch.int32) for r in range(world))
    assert_same(value.clone(), quotient(total, world, torch.int32), "strided")
    with pytest.raises(TypeError, match="AVG of"):
        dist.all_reduce(torch.zeros(3, dtype=torch.bool), ReduceOp.AVG)


@pytest.mark.parametrize("world", [2, 3])
def test_averages_of_integers(ranks, world):
    ranks(world, integer_averages)


SIZES = {"small": [3, 0, 70], "large": [90_000, 1, 300_000]}


def uneven_gather(kind: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = SIZES[kind]
    for dtype in (torch.float32, torch.int8):
        expected = [numbers(r, n, dtype) for r, n in enumerate(sizes)]
        outputs = [torch.zeros(n, dtype=dtype) for n in sizes]
        dist.all_gather(outputs, expected[rank])
        for r, out in enumerate(outputs):
            assert_same(out, expected[r], (kind, dtype, r))
        flat = torch.zeros(sum(sizes), dtype=dtype)  # in place, from one tensor
        views = list(flat.split(sizes))
        views[rank].copy_(expected[rank])
        work = dist.all_gather(views, views[rank], async_op=True)
        work.wait()
        assert_same(flat, torch.cat(expected), "in place")
        strided = [torch.zeros(n, 2, dtype=dtype)[:, 1] for n in sizes]
        dist.all_gather(strided, expected[rank])
        for r, out in enumerate(strided):
            assert_same(out.clone(), expected[r], "strided")
    assert torch_mcast.stats()["calls"]["all_gather"]["fallback"] == 0
    wrong = [torch.zeros(n + 1) for n in range(world)]
    with pytest.raises(ValueError, match=rf"all_gather: output {rank} must have shape"):
        dist.all_gather(wrong, torch.zeros(9))
    shared = torch.full((12,), float(rank))  # the input lies where others' blocks arrive
    dist.all_gather(
        [shared[0:2], shared[2:5], shared[5:9]][:world], shared[3 : 3 + 2 + rank].clone()
    )
    overlapping = torch.full((9,), float(rank))
    ends = [overlapping[:2], overlapping[2:5], overlapping[5:9]]
    dist.all_gather(ends, overlapping[3 : 5 + rank])
    assert overlapping.tolist() == [0.0] * 2 + [1.0] * 3 + [2.0] * 4


@pytest.mark.parametrize("kind", SIZES)
def test_all_gather_of_different_sizes(ranks, kind):
    ranks(3, uneven_gather, kind)


def uneven_scatter(kind: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = SIZES[kind]
    for dtype, op in (
        (torch.float32, ReduceOp.SUM),
        (torch.float32, ReduceOp.AVG),
        (torch.int32, ReduceOp.AVG),
        (torch.int64, ReduceOp.MAX),
    ):
        inputs = [numbers(rank + 10 * r, n, dtype) for r, n in enumerate(sizes)]
        mine = torch.stack([numbers(s + 10 * rank, sizes[rank], dtype) for s in range(world)])
        if op == ReduceOp.MAX:
            expected = mine.amax(0) if sizes[rank] else mine[0]
        else:
            expected = mine.sum(0, dtype=dtype)
            if op == ReduceOp.AVG:
                expected = (
                    expected / world
                    if dtype.is_floating_point
                    else quotient(expected, world, dtype)
                )
        output = torch.zeros(sizes[rank], dtype=dtype)
        before = [t.clone() for t in inputs]
        dist.reduce_scatter(output, inputs, op)
        close(output, expected, op, atol=1e-6)
        for tensor, was in zip(inputs, before, strict=True):
            assert_same(tensor, was, "input is not changed")
        dist.reduce_scatter(inputs[rank], inputs, op)  # the output is an input
        close(inputs[rank], expected, op, atol=1e-6)
    assert torch_mcast.stats()["calls"]["reduce_scatter"]["fallback"] == 0
    with pytest.raises(ValueError, match=rf"reduce_scatter: input {rank} must have shape"):
        dist.reduce_scatter(torch.zeros(9), [torch.zeros(n + 1) for n in range(world)])


@pytest.mark.parametrize("kind", SIZES)
def test_reduce_scatter_of_different_sizes(ranks, kind):
    ranks(3, uneven_scatter, kind)


# Lanes


def lanes_of_calls() -> None:
    """A thread that waits for an operation helps on the lane that the operation actually uses."""
    rank, world = dist.get_rank(), dist.get_world_size()
    group, part, whole = dist.group.WORLD, torch.ones(4), torch.ones(4 * world)
    dist.broadcast(part, 0)
    dist.all_gather([torch.zeros(4) for _ in range(world)], part)
    dist.all_gather_into_tensor(whole, part)
    group.allgather_into_tensor_coalesced([whole], [part]).wait()
    group.allgather_coalesced([[torch.zeros(4)] for _ in range(world)], [part]).wait()
    dist.barrier()
    dist.all_reduce(part)
    group.allreduce_coalesced([part]).wait()
    dist.reduce(part, 0)
    dist.reduce_scatter(part, list(whole.chunk(world)))
    dist.reduce_scatter_tensor(part, whole)
    group.reduce_scatter_tensor_coalesced([part], [whole]).wait()
    helped = extension().lanes()
    seen = {row["name"]: row["lane"] for row in torch_mcast.trace() if row["rank"] == rank}
    assert len(seen) >= 12, seen
    for name, lane in seen.items():
        assert helped[name] == lane, name


def test_a_waiting_thread_helps_on_the_lane_of_its_operation(ranks):
    ranks(2, lanes_of_calls)
