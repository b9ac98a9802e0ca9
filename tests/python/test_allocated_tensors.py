"""Tensors that a group allocates (c10d's allocate_tensor), which the engine of the host maps."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import pytest
import test_training
import torch
import torch.distributed as dist
from host_engine import end, start
from ranks import Pool
from test_mapped_tensors import MIB, lies_in_an_arena
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing import assert_close
from waiting import until

import torch_mcast

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ranks():
    """Separate processes: an arena pool stays in a process."""
    pool = Pool()
    yield pool.run
    pool.close()


@pytest.fixture
def engine(tmp_path):
    socket = tmp_path / "engine.sock"
    process = start(socket)
    yield {"MCAST_ENGINE": f"host:{socket}"}
    end(process)


def backend(group: dist.ProcessGroup | None = None) -> dist.Backend:
    return (group or dist.group.WORLD)._get_backend(CPU)


def allocated(
    elements: int,
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    assert backend(group).supports_tensor_alloc(CPU)
    tensor = backend(group).allocate_tensor(elements, dtype=dtype, device=CPU)
    assert tensor.shape == (elements,) and tensor.dtype == dtype and tensor.is_contiguous()
    assert lies_in_an_arena(tensor)
    return tensor


def ordinary(elements: int) -> torch.Tensor:
    tensor = torch.empty(elements)
    assert not lies_in_an_arena(tensor)
    return tensor


def ways(group: dist.ProcessGroup | None = None) -> tuple[int, int, int]:
    """Returns the bytes of tensors that the engine has used in place, that this rank has copied,
    and that the engine has copied."""
    counters = torch_mcast.stats(group)["counters"]
    names = ("engine_mapped_bytes", "engine_span_bytes", "engine_moved_bytes")
    return tuple(counters[name] for name in names)


def operations(make: Callable[[int], torch.Tensor]) -> None:
    """Runs one operation of each kind, over tensors that make(elements) returns."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for elements in (7, 5_000, 700_001):
        expected = torch.arange(1, world + 1).repeat_interleave(elements).float()
        mine, part = make(elements).fill_(rank + 1.0), make(elements)
        whole, other = make(elements * world), make(elements * world)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, expected)
        block = other.zero_()[rank * elements : (rank + 1) * elements].fill_(rank + 1.0)
        dist.all_gather_into_tensor(other, block)
        assert torch.equal(other, expected)
        dist.reduce_scatter_tensor(part, whole)
        assert (part == world * (rank + 1.0)).all()
        block_of_pages = -(-elements // 1024) * 1024  # each one is lent separately
        given, taken = make(block_of_pages * world).fill_(rank), make(block_of_pages * world)
        dist.all_to_all_single(taken, given)
        assert torch.equal(taken, torch.arange(world).repeat_interleave(block_of_pages).float())
        dist.all_reduce(mine)
        assert (mine == world * (world + 1) / 2).all()
        dist.broadcast(part, 1)
        assert (part == 2.0 * world).all()
        works = [
            dist.isend(mine, (rank + 1) % world),
            dist.irecv(part, (rank - 1) % world),
        ]
        for work in works:
            work.wait()
        assert torch.equal(part, mine)


def both_kinds() -> tuple[tuple[int, int, int], tuple[int, int, int], bool]:
    operations(allocated)
    of_the_group = ways()
    operations(ordinary)
    both = ways()
    return of_the_group, both, lies_in_an_arena(torch.empty(4 * MIB))


@pytest.mark.parametrize("shared_memory", ["off", "auto"])
def test_only_tensors_of_the_group_are_mapped(ranks, engine, shared_memory):
    """Default settings leave torch's allocator unchanged."""
    env = {**engine, "MCAST_SHARED_MEMORY": shared_memory}
    for of_the_group, both, replaced in ranks(2, both_kinds, env=env):
        mapped, copied, moved = of_the_group
        assert mapped > 40 * MIB and copied == 0 and moved == 0
        assert both == (mapped, mapped, 0), "the same operations, copied"
        assert not replaced


def of_groups() -> dict[str, tuple[int, int, int]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine, whole = allocated(MIB).fill_(rank + 1.0), allocated(MIB * world)
    expected = torch.arange(1, world + 1).repeat_interleave(MIB).float()
    told = {}
    for memory in ("slots", "copy", "auto", "map"):
        group = dist.new_group(pg_options=torch_mcast.Options(engine_memory=memory))
        assert backend(group).supports_tensor_alloc(CPU) == (memory in ("auto", "map"))
        dist.all_gather_into_tensor(whole.zero_(), mine, group=group)
        assert torch.equal(whole, expected)
        told[memory] = ways(group)
        dist.destroy_process_group(group)
    assert ways() == (0, 0, 0)
    return told


def test_each_group_goes_by_its_own_setting(ranks, engine):
    for told in ranks(2, of_groups, env=engine):
        every = 4 * MIB * 3  # this rank's block, and those of both
        assert told["auto"] == told["map"] == (every, 0, 0)
        assert told["slots"] == (0, every, 0)
        assert told["copy"] == (0, 0, every)


def at_two_engines(second: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    tensor = allocated(MIB).fill_(dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    group = dist.new_group(pg_options=torch_mcast.Options(engine=f"host:{second}"))
    dist.all_reduce(tensor, group=group)
    assert (tensor == 6.0).all()
    return ways(), ways(group)


def test_every_engine_of_the_process_maps_them(ranks, engine, tmp_path):
    second = tmp_path / "second.sock"
    process = start(second)
    try:
        for told in ranks(2, at_two_engines, str(second), env=engine):
            assert told == ((8 * MIB, 0, 0), (8 * MIB, 0, 0))  # as input and as output
    finally:
        end(process)


def trained() -> tuple[dict[str, torch.Tensor], tuple[int, ...]]:
    net = test_training.model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    for module in net.modules():
        if isinstance(module, FSDPModule):
            module.set_allocate_memory_from_process_group_for_comm(True)
    ours = dist.get_backend() == "mcast"
    before = ways() if ours else ()
    test_training.train(net)
    grown = tuple(b - a for a, b in zip(before, ways(), strict=True)) if ours else ()
    return {name: p.full_tensor().detach() for name, p in net.named_parameters()}, grown


def test_fsdp2_takes_its_buffers_from_the_group(ranks, engine):
    ours = ranks(2, trained, env=engine)
    test_training.assert_parity(ours, ranks(2, trained, backend="gloo"))
    for _, (mapped, copied, moved) in ours:
        assert mapped > 100_000 and copied == 0 and moved == 0


@pytest.mark.parametrize(
    ("memory", "limit", "words"),
    [
        ("slots", (), "engine_memory=slots makes ranks copy all tensors"),
        ("copy", (), "engine_memory=copy makes ranks copy all tensors"),
        ("map", ("--arenas", "256M"), "bytes of arenas (--arenas) is reached"),
        ("map", None, "no engine of the host runs this group (MCAST_ENGINE=host)"),
        ("map_all", None, "no engine of the host runs this group (MCAST_ENGINE=host)"),
    ],
)
def test_a_group_without_such_memory_says_so(tmp_path, memory, limit, words):
    """FSDP2 checks first, and then takes torch's memory."""
    env = {"MCAST_ENGINE_MEMORY": memory, "MCAST_SHARED_MEMORY": "auto"}
    process = None
    if limit is not None:
        process = start(tmp_path / "engine.sock", *limit)
        env["MCAST_ENGINE"] = f"host:{tmp_path}/engine.sock"
    pool = Pool()
    try:
        for text in pool.run(2, refused, env=env):
            assert words in text and "use torch.empty()" in text
            assert "allocate_tensor" in text and " of 2 in group " in text
        ours = pool.run(2, trained, env=env)
        test_training.assert_parity(ours, pool.run(2, trained, backend="gloo", env=env))
    finally:
        pool.close()
        if process is not None:
            end(process)


def refused() -> str:
    assert not backend().supports_tensor_alloc(CPU)
    with pytest.raises(NotImplementedError) as error:
        backend().allocate_tensor(4, dtype=torch.float32, device=CPU)
    with pytest.raises(NotImplementedError):
        _ = backend().mem_allocator
    return str(error.value)


def arguments() -> None:
    ours = backend()
    for device in ("cuda", "cuda:0", "meta"):
        assert not ours.supports_tensor_alloc(torch.device(device))
        with pytest.raises(ValueError, match="expected device cpu, got"):
            ours.allocate_tensor(4, dtype=torch.float32, device=torch.device(device))
    assert ours.supports_tensor_alloc(torch.device("cpu", 0))
    assert type(ours.mem_allocator).__name__ == "ArenaAllocator"
    with pytest.raises(ValueError, match="expected a number of elements, got -1"):
        ours.allocate_tensor(-1, dtype=torch.float32, device=CPU)
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.int64, torch.complex64):
        tensor = allocated(1000, dtype)
        assert tensor.fill_(1).sum().item() == 1000 and not tensor.requires_grad
    empty = ours.allocate_tensor(0, dtype=torch.float32, device=CPU)
    assert empty.shape == (0,)
    torch.use_deterministic_algorithms(True)
    try:
        assert allocated(1000).isnan().all(), "as torch.empty() does"
    finally:
        torch.use_deterministic_algorithms(False)
    grown = allocated(1000).fill_(2.0).resize_(MIB)
    assert lies_in_an_arena(grown) and (grown[:1000] == 2).all()
    leaf = allocated(4).fill_(3.0).requires_grad_()
    leaf.square().sum().backward()
    assert_close(leaf.grad, torch.full((4,), 6.0))
    dist.destroy_process_group()
    assert not ours.supports_tensor_alloc(CPU)
    with pytest.raises(dist.DistBackendError, match="the group was shut down"):
        ours.allocate_tensor(4, dtype=torch.float32, device=CPU)
    assert (grown[:1000] == 2).all() and torch.equal(leaf.detach(), torch.full((4,), 3.0))


def test_arguments(ranks, engine):
    ranks(2, arguments, env=engine)


def freed_and_taken_again() -> bool:
    gc.collect()
    tensor = allocated(MIB)
    address = tensor.data_ptr()
    # The pool has no room for this, so torch's allocator refuses it.
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        backend().allocate_tensor(1 << 50, dtype=torch.uint8, device=CPU)
    del tensor
    return allocated(MIB).data_ptr() == address


def test_freed_memory_goes_back_to_the_arena(ranks, engine):
    assert ranks(2, freed_and_taken_again, env=engine) == [True, True]


def lost_engine(pid: int) -> bool:
    rank, world = dist.get_rank(), dist.get_world_size()
    kept, used = allocated(MIB).fill_(rank + 5.0), allocated(MIB).fill_(1.0)
    dist.all_reduce(used)
    assert (used == world).all()
    # Synchronizes by the store: in a barrier another rank may be notified only after this one has
    # left it.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ready{rank}", "1")
    store.wait([f"ready{member}" for member in range(world)])
    if rank == 0:
        os.kill(pid, signal.SIGKILL)

    def lost() -> bool:
        try:
            dist.all_reduce(used)
        except dist.DistBackendError:
            return True
        return False

    until(lost, "the error of the killed engine")
    used.sum(), used.fill_(2.0)
    assert not backend().supports_tensor_alloc(CPU)
    dist.destroy_process_group()
    assert (kept == rank + 5.0).all() and (used == 2.0).all()
    kept.fill_(9.0)
    return bool((kept == 9.0).all())


def test_tensors_outlive_the_engine(ranks, tmp_path):
    socket = tmp_path / "engine.sock"
    process = start(socket)
    try:
        assert ranks(2, lost_engine, process.pid, env={"MCAST_ENGINE": f"host:{socket}"}) == [
            True,
            True,
        ]
    finally:
        process.kill()
        process.communicate(timeout=30)


def forked() -> int:
    """A child keeps reading memory that the parent has freed."""
    gc.collect()
    tensor = allocated(MIB).fill_(3.0)
    address = tensor.data_ptr()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        good = bool((tensor == 3).all()) and not backend().supports_tensor_alloc(CPU)
        tensor.fill_(4.0)
        del tensor
        os._exit(0 if good else 1)
    del tensor
    other = allocated(MIB).fill_(7.0)
    assert other.data_ptr() != address, "the child has that memory"
    os.write(writing, b"1")
    _, status = os.waitpid(child, 0)
    assert (other == 7).all(), "the child's writes are its own"
    assert allocated(MIB).data_ptr() == address, "the child has ended"
    dist.all_reduce(other)
    assert (other == 7 * dist.get_world_size()).all()
    return status


def test_memory_that_a_forked_child_has_is_not_used_again(ranks, engine):
    assert ranks(2, forked, env=engine) == [0, 0]


def of_the_process() -> bool:
    return lies_in_an_arena(torch.empty(4 * MIB))


@pytest.mark.parametrize(
    ("memory", "replaced", "said"),
    [
        ("map", False, "environment"),
        ("map", False, "options"),
        ("map_all", True, "options"),
        # test_mapped_tensors.py says it so.
        pytest.param("map_all", True, "environment", marks=pytest.mark.all_tier),
    ],
)
def test_the_allocator_is_replaced_only_where_the_setting_says_so(said, memory, replaced):
    pool = Pool({"MCAST_ENGINE_MEMORY": memory} if said == "environment" else {})
    try:
        options = {"engine_memory": memory} if said == "options" else None
        assert pool.run(2, of_the_process, options=options) == [replaced, replaced]
    finally:
        pool.close()


def wrapped() -> tuple[int, int, int]:
    assert type(backend()).__name__ == "_ProcessGroupWrapper"
    dist.all_reduce(allocated(MIB).fill_(1.0))
    return ways()


@pytest.mark.all_tier
def test_the_debug_wrapper_passes_it_on(engine):
    pool = Pool({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    try:
        assert pool.run(2, wrapped, env=engine) == [(8 * MIB, 0, 0)] * 2
    finally:
        pool.close()
