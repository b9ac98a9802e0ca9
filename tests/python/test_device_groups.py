"""Device tensors (see test_device.py): calls to groups that have their own device, barriers for a
device, synchronize(), lists of different sizes, averages of integers."""

from __future__ import annotations

import threading
from datetime import timedelta

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import (
    BEFORE,
    NO_FALLBACK,
    both,
    check,
    device,
    ops,
    store,
    upload,
)
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
library, device_pools = device_ranks.library, device_ranks.device_pools
either, gated = device_ranks.either, device_ranks.gated


def synchronized() -> None:
    rank, world, size = dist.get_rank(), dist.get_world_size(), 50_000
    mine = content(rank, size, torch.float32)
    output = torch.zeros(size * world).to(device())
    work = dist.all_gather_into_tensor(output, upload(mine), async_op=True)
    work.synchronize()
    check(output, torch.cat([content(r, size, torch.float32) for r in range(world)]), "gathered")


def test_synchronize_joins_the_stream(either):
    either(2, synchronized)


def barrier_after_kernels(call: str | None, named: dict[str, list[int]]) -> None:
    """Rank 0's device is held: no rank passes a barrier for the device. A barrier of a group that
    has served no tensor there is for the CPU only."""
    rank = dist.get_rank()
    tensor = upload(torch.ones(3))
    if call == "all_reduce":
        dist.all_reduce(tensor)
    elif call == "message":
        dist.isend(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    else:
        ops().hold()
        dist.barrier()
        ops().release()
    if rank == 0:
        ops().hold()
        ops().flip(tensor, BEFORE)  # a kernel that has to wait
        passed = threading.Event()

        def enter() -> None:
            dist.barrier(**named)
            passed.set()

        thread = threading.Thread(target=enter)
        thread.start()
        store().wait(["rank 1 waits"])
        assert not passed.wait(0.2)
        ops().release()
        thread.join(60)
        assert passed.is_set()
    else:
        work = dist.barrier(**named, async_op=True)
        with pytest.raises(dist.DistBackendError, match="gave up"):
            work.wait(timedelta(milliseconds=200))
        assert not work.is_completed()
        store().set("rank 1 waits", "1")
        work.wait()


@pytest.mark.parametrize(
    ("call", "named"), [(None, {"device_ids": [0]}), ("all_reduce", {}), ("message", {})]
)
def test_a_barrier_waits_for_its_device(either, call, named):
    either(2, barrier_after_kernels, call, named)


def uneven() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [3, 20_000, 700][:world]
    outputs = [torch.zeros(n).to(device()) for n in sizes]
    dist.all_gather(outputs, upload(content(rank, sizes[rank], torch.float32)))
    for r, out in enumerate(outputs):
        check(out, content(r, sizes[r], torch.float32), r)
    parts = [torch.full((n,), float(rank + r)) for r, n in enumerate(sizes)]
    result = torch.zeros(sizes[rank]).to(device())
    dist.reduce_scatter(result, [upload(part) for part in parts])
    total = float(sum(r + rank for r in range(world)))
    check(result, torch.full((sizes[rank],), total), "reduced")


@pytest.mark.parametrize("world", [2, 3])
def test_lists_of_different_sizes(either, world):
    either(world, uneven)


def averages() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.int32, torch.int8):
        for size in (7, 9000):
            mine = ((torch.arange(size) + rank) % 9 - 4).to(dtype)
            total = sum(((torch.arange(size) + r) % 9 - 4).to(dtype) for r in range(world))
            expected = total.div(world, rounding_mode="trunc")
            tensor = upload(mine)
            dist.all_reduce(tensor, ReduceOp.AVG)
            check(tensor, expected, (dtype, size, "all_reduce"))
            whole = upload(torch.cat([mine] * world))
            part = torch.zeros(size, dtype=dtype).to(device())
            dist.reduce_scatter_tensor(part, whole, ReduceOp.AVG)
            check(part, expected, (dtype, size, "reduce_scatter_tensor"))


def test_averages_of_integers(either):
    either(3, averages)


def meshed(path: str) -> None:
    """Tests a group that is bound to a device: DeviceMesh then splits it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    options = torch_mcast.Options(**NO_FALLBACK)
    dist.destroy_process_group()
    dist.init_process_group(
        both(),
        store=dist.FileStore(path, world),
        rank=rank,
        world_size=world,
        device_id=torch.device(device(), 0),
        timeout=timedelta(seconds=60),
        pg_options=options,
    )
    assert dist.group.WORLD.bound_device_id == torch.device(device(), 0)
    grid = init_device_mesh(device(), (2, 2), mesh_dim_names=("replicate", "shard"))
    for name, peers in (
        ("replicate", [rank % 2, rank % 2 + 2]),
        ("shard", [rank & 2, (rank & 2) + 1]),
    ):
        group = grid.get_group(name)
        assert dist.get_process_group_ranks(group) == peers
        for where in (device(), "cpu"):
            tensor = torch.full((1000,), float(rank)).to(where)
            dist.all_reduce(tensor, group=group)
            assert tensor.cpu().tolist() == [float(sum(peers))] * 1000, (name, where)
    some = dist.new_group([0, 3], pg_options=options)  # the others are not members
    if rank in (0, 3):
        tensor = torch.full((4,), float(rank)).to(device())
        dist.all_reduce(tensor, group=some)
        assert tensor.cpu().tolist() == [3.0] * 4
    dist.barrier()


def test_mesh_of_a_group_with_a_device(gated, tmp_path):
    gated(4, meshed, str(tmp_path / "store"))
