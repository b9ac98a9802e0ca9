"""The engine's operations: compares the bytes with the known contents of each rank, and with Gloo."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from contents import DTYPES, GLOO_DTYPES, assert_same, content

import torch_mcast

SIZES = [0, 1, 3, 1021, 70_001]
LARGE = [1 << 20, (1 << 20) + 13]


def finish(work, asynchronous: bool) -> None:
    if asynchronous:
        assert work.wait() is True
        assert work.is_completed() and work.is_success()
    else:
        assert work is None


def expected_flat(size: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    parts = [content(r, size, dtype, salt) for r in range(dist.get_world_size())]
    return torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)


def all_gather_into_tensor(dtypes, sizes) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    salt = 0
    for dtype, size, in_place, asynchronous in itertools.product(
        dtypes, sizes, (False, True), (False, True)
    ):
        salt += 1
        what = (dtype, size, in_place, asynchronous)
        output = torch.zeros(size * world * dtype.itemsize, dtype=torch.uint8).view(dtype)
        mine = content(rank, size, dtype, salt)
        if in_place:
            block = output[rank * size : (rank + 1) * size]
            block.copy_(mine)
            mine = block
        finish(dist.all_gather_into_tensor(output, mine, async_op=asynchronous), asynchronous)
        assert_same(output, expected_flat(size, dtype, salt), what)
        if dtype in GLOO_DTYPES and size > 0 and not in_place and not asynchronous:
            reference = torch.zeros_like(output)
            dist.all_gather_into_tensor(reference, mine, group=gloo)
            assert_same(output, reference, what)
    calls = torch_mcast.stats()["calls"]["all_gather_into_tensor"]
    assert calls == {"engine": salt, "fallback": 0}


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_gather_into_tensor(ranks, world):
    ranks(world, all_gather_into_tensor, DTYPES if world == 2 else DTYPES[:1], SIZES)


def test_all_gather_into_tensor_large(ranks):
    ranks(2, all_gather_into_tensor, [torch.float32, torch.uint8], LARGE)


def all_gather_64_mib() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    size = (64 << 20) // world // 4
    output = torch.zeros(size * world, dtype=torch.float32)
    output[rank * size : (rank + 1) * size] = content(rank, size, torch.float32)
    dist.all_gather_into_tensor(output, output[rank * size : (rank + 1) * size])
    assert_same(output, expected_flat(size, torch.float32, 0))


def test_all_gather_64_mib(ranks):
    ranks(2, all_gather_64_mib)


def all_gather_list(dtypes, sizes) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    salt = 0
    for dtype, size, layout, asynchronous in itertools.product(
        dtypes, sizes, ("separate", "chunks", "strided", "same"), (False, True)
    ):
        salt += 1
        mine = content(rank, size, dtype, salt)
        raw = torch.zeros(2 * size * world * dtype.itemsize, dtype=torch.uint8).view(dtype)
        if layout == "separate":
            outputs = [raw[:size].clone() for _ in range(world)]
        elif layout == "chunks":
            outputs = [raw[r * size : (r + 1) * size] for r in range(world)]
            outputs[rank].copy_(mine)
            mine = outputs[rank]  # in place, as FSDP1 does
        elif layout == "strided":
            outputs = [raw[2 * r * size : 2 * (r + 1) * size : 2] for r in range(world)]
        else:  # every output is the same memory: the last rank's block stays
            outputs = [raw[:size]] * world
        finish(dist.all_gather(outputs, mine, async_op=asynchronous), asynchronous)
        for r, output in enumerate(outputs):
            source = world - 1 if layout == "same" else r
            assert_same(output, content(source, size, dtype, salt), (dtype, size, layout, r))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_gather_list(ranks, world):
    ranks(world, all_gather_list, [torch.float32, torch.bool, torch.complex64], SIZES)


def storages_over_one_buffer(size: int) -> None:
    """Tensors in one buffer whose storages begin at the same address and have different lengths."""
    rank, world = dist.get_rank(), dist.get_world_size()
    buffer = np.zeros(world * size, dtype=np.float32)
    blocks = [torch.from_numpy(buffer[:size])]
    blocks += [torch.from_numpy(buffer)[r * size : (r + 1) * size] for r in range(1, world)]
    blocks[rank].copy_(content(rank, size, torch.float32))
    dist.all_gather(blocks, blocks[rank])
    for r, block in enumerate(blocks):
        assert_same(block, content(r, size, torch.float32), r)
    buffer[:] = np.repeat(np.arange(1.0, world + 1.0), size)
    mine = torch.zeros(size)
    dist.reduce_scatter(mine, blocks)
    assert mine.tolist() == [world * (rank + 1.0)] * size


@pytest.mark.parametrize("size", [1000, 300_000])
def test_storages_over_one_buffer(ranks, size):
    ranks(3, storages_over_one_buffer, size)


def input_shares_other_block() -> None:
    """The input is another rank's block of the output: it must be read before it is overwritten."""
    rank, world = dist.get_rank(), dist.get_world_size()
    size = 50_000
    output = torch.zeros(size * world, dtype=torch.int32)
    other = (rank + 1) % world
    block = output[other * size : (other + 1) * size]
    block.copy_(content(rank, size, torch.int32))
    dist.all_gather_into_tensor(output, block)
    assert_same(output, expected_flat(size, torch.int32, 0))


def test_input_shares_other_block(ranks):
    ranks(3, input_shares_other_block)


def views() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    # A transposed input, an output with a stride, a lazily conjugated complex tensor.
    square = content(rank, (6, 5), torch.float32)
    output = torch.zeros(world * 6, 10)[:, ::2]
    dist.all_gather_into_tensor(output, square.t().contiguous().t())
    for r in range(world):
        assert_same(output[6 * r : 6 * r + 6], content(r, (6, 5), torch.float32), "strided")
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    lazy = torch.complex(torch.ones(4) * rank, torch.ones(4)).conj()
    gathered = torch.zeros(4 * world, dtype=torch.complex64)
    backend._allgather_base(gathered, lazy).wait()
    for r in range(world):
        assert gathered[4 * r] == complex(r, -1)
    # channels_last is dense, but not in the order of its indices.
    image = content(rank, (2, 3, 4, 5), torch.float32).to(memory_format=torch.channels_last)
    for root in range(world):
        received = image.clone() if rank == root else torch.zeros_like(image)
        dist.broadcast(received, root)
        assert_same(received, content(root, (2, 3, 4, 5), torch.float32), "channels_last")


def test_views(ranks):
    ranks(2, views)


def broadcast(dtypes, sizes) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    salt = 0
    for dtype, size, strided, asynchronous, root in itertools.product(
        dtypes, sizes, (False, True), (False, True), range(world)
    ):
        salt += 1
        room = torch.zeros(2 * size * dtype.itemsize, dtype=torch.uint8).view(dtype)
        tensor = room[::2] if strided else room[:size]
        if rank == root:
            tensor.copy_(content(rank, size, dtype, salt))
        finish(dist.broadcast(tensor, root, async_op=asynchronous), asynchronous)
        assert_same(tensor, content(root, size, dtype, salt), (dtype, size, strided, root))
        if dtype in GLOO_DTYPES and size > 0 and not strided and not asynchronous:
            reference = tensor.clone() if rank == root else torch.zeros_like(tensor)
            dist.broadcast(reference, root, group=gloo)
            assert_same(tensor, reference)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_broadcast(ranks, world):
    ranks(world, broadcast, DTYPES if world == 2 else [torch.float32], SIZES)


def test_broadcast_large(ranks):
    ranks(3, broadcast, [torch.bfloat16], LARGE)


def coalesced() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    backend = dist.group.WORLD
    shapes = [(torch.float32, 1000), (torch.int64, 1), (torch.uint8, 0), (torch.bfloat16, 77_777)]
    inputs = [content(rank, size, dtype, i) for i, (dtype, size) in enumerate(shapes)]
    outputs = [
        torch.zeros(world * size * dtype.itemsize, dtype=torch.uint8).view(dtype)
        for dtype, size in shapes
    ]
    work = backend.allgather_into_tensor_coalesced(outputs, inputs)
    work.wait()
    for i, (dtype, size) in enumerate(shapes):
        assert_same(outputs[i], expected_flat(size, dtype, i), i)

    # through the public context manager
    for output in outputs:
        output.zero_()
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, mine)
    manager.wait()
    for i, (dtype, size) in enumerate(shapes):
        assert_same(outputs[i], expected_flat(size, dtype, i), i)

    # the list form: one list per rank, one tensor per input
    lists = [[torch.zeros_like(t) for t in inputs] for _ in range(world)]
    work = backend.allgather_coalesced(lists, inputs)
    work.wait()
    for r in range(world):
        for i, (dtype, size) in enumerate(shapes):
            assert_same(lists[r][i], content(r, size, dtype, i), (r, i))
    value = work.get_future().value()
    assert len(value) == world and len(value[0]) == len(shapes)


def test_coalesced(ranks):
    ranks(2, coalesced)


def many_in_flight() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    works, outputs = [], []
    for i in range(200):
        output = torch.zeros(world * (i * 37 % 5000), dtype=torch.int32)
        outputs.append(output)
        mine = content(rank, i * 37 % 5000, torch.int32, i)
        works.append(dist.all_gather_into_tensor(output, mine, async_op=True))
        del mine  # the engine keeps it
    works[-1].wait()
    for work in reversed(works):
        work.wait()
    for i, output in enumerate(outputs):
        assert_same(output, expected_flat(i * 37 % 5000, torch.int32, i), i)
    # dropped at once without a wait
    for i in range(50):
        tensor = torch.full((1000,), float(i if rank == 0 else -1))
        dist.broadcast(tensor, 0, async_op=True)
    dist.barrier()


def test_many_in_flight(ranks):
    ranks(3, many_in_flight)


def sub_groups() -> None:
    rank = dist.get_rank()
    low = dist.new_group([0, 1])
    odd = dist.new_group([1, 2])
    solo = [dist.new_group([r]) for r in range(3)]
    for group, members in ((low, [0, 1]), (odd, [1, 2]), (solo[rank], [rank])):
        if rank not in members:
            continue
        output = torch.zeros(len(members) * 10)
        dist.all_gather_into_tensor(output, torch.full((10,), float(rank)), group=group)
        assert output.view(len(members), 10)[:, 0].tolist() == [float(m) for m in members]
        tensor = torch.full((5,), float(rank))
        dist.broadcast(tensor, members[-1], group=group)
        assert tensor.tolist() == [float(members[-1])] * 5
        dist.barrier(group=group)
        assert torch_mcast.stats(group)["size"] == len(members)
    if rank not in (1, 2):
        with pytest.raises(ValueError, match="not a member"):
            torch_mcast.stats(odd)
    dist.barrier()
    for group in (low, odd):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    dist.barrier()


def test_sub_groups(ranks):
    ranks(3, sub_groups)


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_store_kinds(ranks, store):
    ranks(3, all_gather_64_kib, store=store)


def all_gather_64_kib() -> None:
    rank = dist.get_rank()
    size = 16384
    output = torch.zeros(size * dist.get_world_size())
    dist.all_gather_into_tensor(output, content(rank, size, torch.float32))
    assert_same(output, expected_flat(size, torch.float32, 0))


def objects() -> None:
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank(), "text": "x" * 1000})
    assert [entry["rank"] for entry in gathered] == list(range(dist.get_world_size()))
    values = [dist.get_rank(), "root"] if dist.get_rank() == 1 else [None, None]
    dist.broadcast_object_list(values, 1)
    assert values == [1, "root"]


def test_objects(ranks):
    ranks(3, objects)
