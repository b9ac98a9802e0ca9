"""engine_memory=map_all: tensors that other processes of the host have mapped."""

from __future__ import annotations

import gc
import os

import pytest
import test_training
import torch
import torch.distributed as dist
from host_engine import end, start
from ranks import Pool

import torch_mcast
from torch_mcast.doctor.checks import engine as doctor_engine
from torch_mcast.engine import read

MIB = 1 << 20


@pytest.fixture(scope="module")
def mapped():
    """Ranks whose tensors lie in arenas. Separate processes: an allocator is permanent."""
    pool = Pool({"MCAST_ENGINE_MEMORY": "map_all", "MCAST_SHARED_MEMORY": "auto"})
    yield pool.run
    pool.close()


def arenas() -> list[tuple[int, int]]:
    with open("/proc/self/maps") as lines:
        spans = [line.split()[0].split("-") for line in lines if "torch-mcast tensors" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in spans]


def lies_in_an_arena(tensor: torch.Tensor) -> bool:
    return any(begin <= tensor.data_ptr() < end for begin, end in arenas())


def tensors_of(elements: int, value: float = 0.0) -> torch.Tensor:
    tensor = torch.full((elements,), value)
    assert lies_in_an_arena(tensor) == (tensor.nbytes >= MIB)
    return tensor


def every_operation(elements: int) -> dict:
    rank, world = dist.get_rank(), dist.get_world_size()
    for _ in range(3):
        mine = tensors_of(elements, rank + 1.0)
        # out of place, in place
        whole = tensors_of(elements * world)
        dist.all_gather_into_tensor(whole, mine)
        expected = torch.arange(1, world + 1).repeat_interleave(elements).float()
        assert torch.equal(whole, expected)
        blocks = tensors_of(elements * world)
        block = blocks[rank * elements : (rank + 1) * elements]
        block.fill_(rank + 1.0)
        dist.all_gather_into_tensor(blocks, block)
        assert torch.equal(blocks, expected)
        root = tensors_of(elements, 7.0 if rank == 1 else 0.0)
        dist.broadcast(root, 1)
        assert (root == 7).all()
        dist.all_reduce(mine)
        assert (mine == world * (world + 1) / 2).all()
        part = tensors_of(elements)
        dist.reduce_scatter_tensor(part, whole)
        assert (part == world * (rank + 1.0)).all()
        dist.reduce(part, 0)
        if rank == 0:
            assert (part == world * world * (world + 1) / 2).all()
    # Sizes are not multiples of a page, and one tensor is torch's own.
    own = torch.ones(1000)
    dist.all_reduce(own)
    assert (own == world).all()
    return torch_mcast.stats()["counters"]


def test_ranks_of_one_host_take_tensors_where_they_lie(mapped):
    for counters in mapped(3, every_operation, 700_001):
        assert counters["shm_mapped_bytes"] > 40 * MIB
        assert counters["shm_direct_bytes"] == 0
        assert counters["shm_slot_bytes"] < MIB


def of_both_kinds(elements: int) -> dict:
    """Rank 1 has tensors outside arenas."""
    rank, world = dist.get_rank(), dist.get_world_size()
    make = tensors_of
    if rank == 1:

        def make(count: int, value: float = 0.0) -> torch.Tensor:
            tensor = torch.frombuffer(bytearray(4 * count), dtype=torch.float32)
            assert not lies_in_an_arena(tensor)
            return tensor.fill_(value)

    mine, whole = make(elements, rank + 1.0), make(elements * world)
    dist.all_gather_into_tensor(whole, mine)
    assert torch.equal(whole, torch.arange(1, world + 1).repeat_interleave(elements).float())
    dist.all_reduce(mine)
    assert (mine == world * (world + 1) / 2).all()
    part = make(elements)
    dist.reduce_scatter_tensor(part, whole)
    assert (part == world * (rank + 1.0)).all()
    return torch_mcast.stats()["counters"]


def test_tensors_that_are_not_mapped_are_read(mapped):
    for rank, counters in enumerate(mapped(3, of_both_kinds, 700_001)):
        assert counters["shm_mapped_bytes"] > 0
        assert (counters["shm_direct_bytes"] > 0) == (rank != 1)


def pool_of_this_process() -> tuple[int, int]:
    tensors_of(700_001)
    return sum(end - begin for begin, end in arenas()), doctor_engine.pool_bytes(1)


def test_the_doctor_knows_how_large_the_pool_is(mapped):
    for pool, told in mapped(1, pool_of_this_process, store="none"):
        assert pool == told


def freed_and_taken_again() -> int:
    kept = [torch.ones(MIB) for _ in range(40)]
    assert all(lies_in_an_arena(t) for t in kept)
    first = kept[0].data_ptr()
    sums = [float(t.sum()) for t in kept]
    kept.clear()
    gc.collect()
    again = torch.zeros(MIB)
    assert again.data_ptr() == first, "the lowest place first"
    assert sums == [float(MIB)] * 40 and float(again.sum()) == 0
    big = torch.ones(8 * MIB)
    big.resize_(16 * MIB)
    assert lies_in_an_arena(big) and (big[: 8 * MIB] == 1).all()
    return len(arenas())


def test_memory_is_used_again(mapped):
    assert mapped(1, freed_and_taken_again) == [1]


def in_a_forked_child() -> int:
    tensor = tensors_of(MIB, 3.0)
    child = os.fork()
    if child == 0:
        good = bool((tensor == 3).all())
        tensor.fill_(4.0)
        fresh = torch.full((MIB,), 5.0)
        good = good and float(fresh.sum()) == 5 * MIB
        del tensor
        os._exit(0 if good else 1)
    _, status = os.waitpid(child, 0)
    assert (tensor == 3).all(), "the child's writes are its own"
    dist.all_reduce(tensor)
    assert (tensor == 3 * dist.get_world_size()).all()
    return status


def test_a_forked_child_has_its_own(mapped):
    assert mapped(2, in_a_forked_child) == [0, 0]


@pytest.mark.parametrize("name", ["fsdp2_fp32", pytest.param("ddp", marks=pytest.mark.all_tier)])
def test_training_has_the_bits_of_gloo(mapped, ranks, name):
    case = test_training.CASES[name]
    ours = mapped(2, test_training.run, *case)
    theirs = ranks(2, test_training.run, *case, backend="gloo")
    test_training.assert_parity(ours, theirs)


def test_the_engine_of_the_host_takes_tensors_where_they_lie(mapped, tmp_path):
    """A memory limit leaves the spans one arena; copies of these tensors would need several."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    socket = tmp_path / "engine.sock"
    engine = start(socket, "--arenas", f"{machine // MIB + 33}M")
    try:
        # Over the network, since ranks of one engine share its memory otherwise.
        env = {"MCAST_ENGINE": f"host:{socket}", "MCAST_SHARED_MEMORY": "off"}
        for counters in mapped(2, every_operation, 12 * MIB, env=env):
            assert counters["chunks_placed"] > 0
        for client in read(socket)["clients"]:
            assert client["in_flight"] == 0 and client["arena_bytes"] >= machine
    finally:
        end(engine)


def test_an_engine_that_allows_less_copies(mapped, tmp_path, capfd):
    socket = tmp_path / "engine.sock"
    engine = start(socket, "--arenas", "256M")
    try:
        mapped(2, every_operation, 700_001, env={"MCAST_ENGINE": f"host:{socket}"})
    finally:
        end(engine)
