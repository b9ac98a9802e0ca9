"""Calls that the engine does not serve, compared with a Gloo group of the same ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from contents import assert_same
from torch.distributed import ReduceOp, _make_nccl_premul_sum

import torch_mcast


def values(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns small integers: sums are exact in every dtype."""
    return ((torch.arange(size) * 7 + rank * 3) % 11).to(dtype)


def reductions() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG):
            if op == ReduceOp.AVG and not dtype.is_floating_point:
                continue
            for size in (0, 1, 1000):
                mine, theirs = values(rank, size, dtype), values(rank, size, dtype)
                dist.all_reduce(mine, op)
                dist.all_reduce(theirs, op, group=gloo)
                assert_same(mine, theirs, (dtype, op, size, "all_reduce"))
                whole = values(rank, size * world, dtype)
                mine, theirs = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
                dist.reduce_scatter_tensor(mine, whole, op)
                dist.reduce_scatter_tensor(theirs, whole, op, group=gloo)
                assert_same(mine, theirs, (dtype, op, size, "reduce_scatter_tensor"))
                assert_same(whole, values(rank, size * world, dtype), "input is not changed")
                if size > 0:
                    mine = torch.zeros(size, dtype=dtype)
                    dist.reduce_scatter(mine, list(whole.chunk(world)), op)
                    assert_same(mine, theirs, (dtype, op, size, "reduce_scatter"))
    for root in range(world):
        mine, theirs = values(rank, 100, torch.float32), values(rank, 100, torch.float32)
        dist.reduce(mine, root)
        dist.reduce(theirs, root, group=gloo)
        if rank == root:
            assert_same(mine, theirs)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_reductions(ranks, world):
    ranks(world, reductions)


def premul_sum() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    total = sum(values(r, 12, torch.float32) for r in range(world)) * 0.5
    for factor in (0.5, torch.tensor([0.5])):
        op = _make_nccl_premul_sum(factor)
        tensor = values(rank, 12, torch.float32)
        dist.all_reduce(tensor, op)
        assert_same(tensor, total, "all_reduce")
        whole, output = values(rank, 12, torch.float32), torch.zeros(12 // world)
        dist.reduce_scatter_tensor(output, whole, op)
        assert_same(output, total.chunk(world)[rank], "reduce_scatter_tensor")
        assert_same(whole, values(rank, 12, torch.float32), "input is not changed")
        dist.reduce_scatter(output.zero_(), list(whole.chunk(world)), op)
        assert_same(output, total.chunk(world)[rank], "reduce_scatter")
        tensor = values(rank, 12, torch.float32)
        dist.reduce(tensor, 1, op)
        assert_same(tensor, total if rank == 1 else values(rank, 12, torch.float32), "reduce")


def test_premul_sum(ranks):
    ranks(2, premul_sum)


def reduce_scatter_work() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    output, whole = torch.zeros(50), values(rank, 50 * world, torch.float32)
    work = dist.reduce_scatter_tensor(output, whole, async_op=True)
    expected = sum(values(r, 50 * world, torch.float32) for r in range(world)).chunk(world)[rank]
    (value,) = work.get_future().wait()
    assert_same(value, expected, "future")
    assert work.wait() and work.is_completed() and work.is_success()
    assert value.data_ptr() == output.data_ptr()
    with dist._coalescing_manager(async_ops=True) as manager:
        outputs = [torch.zeros(n) for n in (1, 30)]
        for out in outputs:
            dist.reduce_scatter_tensor(out, values(rank, len(out) * world, torch.float32))
    manager.wait()
    for out in outputs:
        n = len(out) * world
        assert_same(out, sum(values(r, n, torch.float32) for r in range(world)).chunk(world)[rank])


def test_reduce_scatter_work(ranks):
    ranks(3, reduce_scatter_work)


def movement() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = [torch.zeros(4) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.full((4,), float(rank)), rows, dst=0)
    if rank == 0:
        assert [row[0].item() for row in rows] == list(range(world))
    piece = torch.zeros(3)
    dist.scatter(piece, [torch.full((3,), float(r)) for r in range(world)] if rank == 0 else None)
    assert piece.tolist() == [float(rank)] * 3
    received = torch.zeros(world)
    dist.all_to_all_single(received, torch.full((world,), float(rank)))
    assert received.tolist() == [float(r) for r in range(world)]
    lists = [torch.zeros(4) for _ in range(world)]
    dist.all_to_all(lists, [torch.full((4,), float(rank)) for _ in range(world)])
    assert all(part.tolist() == [float(r)] * 4 for r, part in enumerate(lists))
    if rank == 0:
        dist.send(torch.full((5,), 9.0), 1, tag=3)
    elif rank == 1:
        tensor = torch.zeros(5)
        assert dist.recv(tensor, src=None, tag=3) == 0
        assert tensor.tolist() == [9.0] * 5
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    got = torch.zeros(2)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), ahead),
            dist.P2POp(dist.irecv, got, behind),
        ]
    ):
        work.wait()
    assert got.tolist() == [float(behind)] * 2
    calls = torch_mcast.stats()["calls"]
    for name in ("gather", "scatter", "all_to_all", "all_to_all_single"):
        assert calls[name] == {"engine": 1, "fallback": 0}, name
    assert calls["send"] == {"engine": 1 + (rank == 0), "fallback": 0}
    sequence = dist.group.WORLD._get_backend(torch.device("cpu"))._get_sequence_number_for_group()
    gathered = [None] * world
    dist.all_gather_object(gathered, sequence)
    assert len(set(gathered)) == 1, gathered


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_movement(ranks):
    ranks(3, movement)


def no_fallback() -> None:
    output = torch.zeros(4 * dist.get_world_size())
    dist.all_gather_into_tensor(output, torch.ones(4))
    with pytest.raises(NotImplementedError, match=r"all_reduce of .*Options\(fallback"):
        dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4,)))
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.zeros(4), 0)
    rows = list(output.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
    dist.gather(torch.ones(4), rows)
    assert torch_mcast.stats()["fallback"] == {}


@pytest.mark.parametrize("ranks", ["host"], indirect=True)
def test_no_fallback(ranks):
    ranks(2, no_fallback, options={"fallback": "none"})


def sparse() -> None:
    rank = dist.get_rank()
    tensor = torch.sparse_coo_tensor([[rank]], [1.0], (4,))
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0, 1.0, 0.0, 0.0]
    assert torch_mcast.stats()["calls"] == {"all_reduce": {"engine": 0, "fallback": 1}}


def test_sparse(ranks):
    ranks(2, sparse)


def other_fallbacks() -> None:
    choice = ["gloo", "none"][dist.get_rank()]
    with pytest.raises(dist.DistBackendError) as caught:
        dist.new_group(pg_options=torch_mcast.Options(fallback=choice))
    text = str(caught.value)
    assert "ranks differ in fallback" in text and "cpu=gloo" in text and "cpu=none" in text, text


def test_ranks_agree_on_the_fallback(ranks):
    ranks(2, other_fallbacks)
