"""Reductions of device tensors, on the devices of device_ranks.py: the bits equal those of folding
in rank order, whatever is late."""

from __future__ import annotations

import itertools
import os
from datetime import timedelta

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import AFTER, device, finish, flipped, ops, store, upload, upload_held
from fake_device import TO_DEVICE, TO_HOST
from ranks import RankError
from test_reduce import contribution, fold, reduce_op, same_bits
from waiting import until

import torch_mcast
from torch_mcast import _fallback

pytest_generate_tests = device_ranks.pytest_generate_tests
library, device_pools = device_ranks.library, device_ranks.device_pools
either = device_ranks.either
Op = dist.ReduceOp
SIZES = [0, 1, 1021, 50_001]
CASES = [
    (torch.float32, Op.SUM),
    (torch.bfloat16, Op.AVG),
    (torch.float16, Op.PREMUL_SUM),
    (torch.int64, Op.MAX),
    (torch.uint8, Op.BXOR),
    (torch.float64, Op.SUM),
]


def compare(there: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Checks that a kernel enqueued now sees `expected` (NaNs of any payload)."""
    if there.is_contiguous():
        ops().flip(there, AFTER)
        same_bits(flipped(there.cpu(), AFTER), expected, what)
    else:
        same_bits(there.cpu(), expected, what)


def every_reduction() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    salt = 0
    for (dtype, op), size in itertools.product(CASES, SIZES):
        salt += 1
        what = (dtype, op, size)
        asynchronous = bool(salt % 2)
        whole = [contribution(r, size * world, dtype, salt) for r in range(world)]
        expected = fold(whole, op)
        own = expected[rank * size : (rank + 1) * size]
        place = slice(rank * size, (rank + 1) * size)

        mine, output = upload(whole[rank]), torch.zeros(size, dtype=dtype).to(device())
        work = dist.reduce_scatter_tensor(output, mine, op=reduce_op(op), async_op=asynchronous)
        del mine
        finish(work, asynchronous)
        compare(output, own, ("reduce_scatter_tensor", *what))

        # The output is this rank's block of the input, or another rank's.
        for form, block in (("in place", rank), ("other block", (rank + 1) % world)):
            mine = upload(whole[rank])
            output = mine[block * size : (block + 1) * size]
            work = dist.reduce_scatter_tensor(output, mine, op=reduce_op(op), async_op=asynchronous)
            finish(work, asynchronous)
            compare(output, own, (form, *what))

        parts = [upload(whole[rank][r * size : (r + 1) * size]) for r in range(world)]
        output = torch.zeros(2 * size, dtype=dtype).to(device())[::2]
        finish(
            dist.reduce_scatter(output, parts, op=reduce_op(op), async_op=asynchronous),
            asynchronous,
        )
        compare(output, expected[place], ("reduce_scatter", *what))

        total = upload(whole[rank])
        finish(dist.all_reduce(total, op=reduce_op(op), async_op=asynchronous), asynchronous)
        compare(total, expected, ("all_reduce", *what))

        root = salt % world
        rooted = upload(whole[rank])
        finish(dist.reduce(rooted, root, op=reduce_op(op), async_op=asynchronous), asynchronous)
        compare(rooted, expected if rank == root else whole[rank], ("reduce", *what))
    calls = torch_mcast.stats()["calls"]
    assert calls["reduce_scatter_tensor"] == {"engine": 3 * salt, "fallback": 0}
    for name in ("reduce_scatter", "all_reduce", "reduce"):
        assert calls[name] == {"engine": salt, "fallback": 0}, name


all_tier = pytest.mark.all_tier


@pytest.mark.parametrize(
    "world", [pytest.param(1, marks=all_tier), pytest.param(2, marks=all_tier), 3]
)
def test_every_reduction(either, world):
    either(world, every_reduction)


def scaled_alone() -> None:
    whole = contribution(0, 1021, torch.float16, 1)
    total = upload(whole)
    dist.all_reduce(total, op=reduce_op(Op.PREMUL_SUM))
    compare(total, fold([whole], Op.PREMUL_SUM), "a factor")


def test_a_group_of_one_applies_the_factor(either):
    either(1, scaled_alone)


def odd_sizes() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in (1, 1021, 300_001):
        whole = [contribution(r, size, torch.float32, size) for r in range(world)]
        total = upload(whole[rank])
        dist.all_reduce(total)
        compare(total, fold(whole, Op.SUM), size)


def test_sizes_that_the_ranks_do_not_divide(either):
    either(3, odd_sizes)


def beside_gloo() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fallback, "kind", lambda backend, device: "gloo")
        group = dist.new_group()
        total = upload(torch.ones(5))
        dist.all_reduce(total, group=group)
        compare(total, torch.full((5,), float(dist.get_world_size())), "all_reduce")
        calls = torch_mcast.stats(group)["calls"]
        assert calls["all_reduce"] == {"engine": 1, "fallback": 0}


def test_the_engine_reduces_where_the_fallback_is_gloo(either):
    """Gloo would copy through the host itself."""
    either(2, beside_gloo)


def test_every_reduction_by_ring(either):
    either(3, every_reduction, options={"algorithm": "ring"})


def test_every_reduction_with_losses(either):
    either(2, every_reduction, options={"faults": "drop:rate=0.05,seed=1"})


def test_every_reduction_in_shared_memory(either):
    either(3, every_reduction, options={"shared_memory": "auto"})


def strided_and_coalesced() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1000, 1, 0, 77_777]
    wholes = [
        [contribution(r, world * size, torch.float32, i) for r in range(world)]
        for i, size in enumerate(sizes)
    ]
    inputs = [upload(whole[rank]) for whole in wholes]
    outputs = [torch.zeros(size).to(device()) for size in sizes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, mine)
    manager.wait()
    for i, size in enumerate(sizes):
        own = fold(wholes[i], Op.SUM)[rank * size : (rank + 1) * size]
        compare(outputs[i], own, ("reduce_scatter", i))
    with dist._coalescing_manager(async_ops=True) as manager:
        for mine in inputs:
            dist.all_reduce(mine)
    manager.wait()
    for i in range(len(sizes)):
        compare(inputs[i], fold(wholes[i], Op.SUM), ("all_reduce", i))

    room = torch.zeros(2 * world * 9000).to(device())
    whole = [contribution(r, world * 9000, torch.float32, 99) for r in range(world)]
    room[::2].copy_(upload(whole[rank]))
    dist.all_reduce(room[::2])
    compare(room[::2], fold(whole, Op.SUM), "strided")
    with pytest.raises(ValueError, match=f"must be on {device()}:0, got cpu"):
        dist.group.WORLD.allreduce_coalesced([room, torch.zeros(1)])


def test_strided_and_coalesced(either):
    either(2, strided_and_coalesced)


def many_in_flight() -> None:
    """Both lanes at once, on two streams of the caller; inputs are dropped at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kept = []
    for i in range(40):
        ops().use_stream(i % 2)
        size = i * 977 % 20_000
        whole = [contribution(r, world * size, torch.float32, i) for r in range(world)]
        mine, output = upload(whole[rank]), torch.zeros(size).to(device())
        work = dist.reduce_scatter_tensor(output, mine, async_op=True)
        del mine
        own = fold(whole, Op.SUM)[rank * size : (rank + 1) * size]
        kept.append((i, work, output, own))
        gathered = torch.zeros(world * size, dtype=torch.int32).to(device())
        shard = upload(content(rank, size, torch.int32, i))
        work = dist.all_gather_into_tensor(gathered, shard, async_op=True)
        del shard
        expected = torch.cat([content(r, size, torch.int32, i) for r in range(world)])
        kept.append((i, work, gathered, expected))
    for i, work, output, expected in reversed(kept):
        ops().use_stream(3 + i % 2)
        assert work.wait()
        compare(output, expected, i)
    ops().use_stream(0)
    dist.barrier()


def test_many_in_flight(either):
    either(3, many_in_flight)


def late_source(size: int) -> None:
    """Reductions wait for work that the caller's stream has not reached yet; the other rank's
    result, too."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = [contribution(r, size, torch.float32, 5) for r in range(world)]
    if rank == 0:
        ops().hold()
    total = upload_held(whole[rank]) if rank == 0 else upload(whole[rank])
    work = dist.all_reduce(total, async_op=True)
    if rank == 0:
        store().set("posted", "1")
        store().wait(["seen"])
        assert not work.is_completed()
        ops().release()
    else:
        store().wait(["posted"])
        assert not work.is_completed()
        store().set("seen", "1")
    work.wait()
    compare(total, fold(whole, Op.SUM), "all_reduce")


@pytest.mark.parametrize("size", [100, 200_000], ids=["one step", "two steps"])
@pytest.mark.parametrize("algorithm", ["multicast", "ring"])
def test_late_source(either, size, algorithm):
    either(2, late_source, size, options={"algorithm": algorithm})


def overlap() -> None:
    """Pieces of the result are on the device before the last piece of the input has left it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    piece = 240 << 10  # a multiple of the contribution frames of 60 KiB
    size = piece  # floats in a block: 4 pieces
    whole = [contribution(r, world * size, torch.float32, 3) for r in range(world)]
    expected = fold(whole, Op.SUM)[rank * size : (rank + 1) * size]
    mine, output = upload(whole[rank]), torch.zeros(size).to(device())
    ops().synchronize()
    before = ops().copies(TO_DEVICE)
    ops().allow(TO_HOST, 2 * world)
    work = dist.reduce_scatter_tensor(output, mine, async_op=True)
    until(lambda: ops().copies(TO_DEVICE) - before >= 2, "two copies to the device")
    assert ops().copies(TO_DEVICE) - before == 2
    known = 2 * piece
    same_bits(ops().peek(output, known).view(torch.float32), expected[: known // 4], "half")
    store().set(f"{rank} has seen half", "1")
    store().wait([f"{r} has seen half" for r in range(world)])
    ops().allow(TO_HOST, -1)
    work.wait()
    compare(output, expected, "whole")


@pytest.mark.fake_device("it counts copies and limits them")
def test_overlap(either):
    either(2, overlap, options={"segment": 240 << 10, "chunk": 1024})


def peer_dies() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = upload(content(rank, world << 18, torch.float32))
    output = torch.zeros(1 << 18).to(device())
    if rank == 1:
        ops().stall()
    work = dist.reduce_scatter_tensor(output, whole, async_op=True)
    if rank == 1:
        store().wait(["rank 0 waits"])
        os._exit(3)
    store().set("rank 0 waits", "1")
    with pytest.raises(dist.DistBackendError):
        work.wait(timedelta(seconds=50))
    ops().synchronize()  # every gate is open


def test_peer_dies(either):
    with pytest.raises(RankError) as caught:
        either(2, peer_dies)
    assert "died with 3" in str(caught.value) and "rank 0 of" not in str(caught.value)


def refused() -> None:
    tensor = upload(content(dist.get_rank(), 10, torch.float32))
    with pytest.raises(TypeError, match="no meaning"):
        dist.all_reduce(tensor, op=Op.BAND)
    with pytest.raises(ValueError, match="expected an input of"):
        dist.reduce_scatter_tensor(tensor[:3], tensor)
    dist.all_reduce(tensor)
    dist.barrier()


def test_refused_calls_change_nothing(either):
    either(2, refused)
