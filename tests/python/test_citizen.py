"""Calls that scripts and frameworks written for other backends of torch.distributed make."""

from __future__ import annotations

import threading
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from contents import assert_same
from named_errors import raises_error
from torch.distributed import ProcessGroupGloo, distributed_c10d

import torch_mcast
from torch_mcast import _fallback
from torch_mcast._stats import backend_of

CPU = torch.device("cpu")


# Options, names, fallbacks


def options_of_others() -> None:
    theirs = ProcessGroupGloo._Options()
    for backend in ("mcast", "cpu:mcast"):
        group = dist.new_group(backend=backend, pg_options=theirs)
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [dist.get_world_size()] * 2
    with pytest.raises(TypeError, match=r"must be torch_mcast\.Options, got builtins\.dict"):
        dist.new_group(backend="mcast", pg_options={"eager": 1})


def test_options_of_another_backend_mean_none(ranks):
    ranks(2, options_of_others)


def names() -> None:
    custom = dist.ProcessGroup.BackendType.CUSTOM
    for backend, name in (
        ("mcast", "mcast"),
        ("cpu:mcast", "mcast"),
        ("cpu:mcast,cuda:mcast", "mcast"),
    ):
        group = dist.new_group(backend=backend)
        assert type(group) is dist.ProcessGroup
        assert group.name() == group._get_backend_name() == name, backend
        assert dist.get_backend(group) == backend
        assert backend_of(group).name() == "mcast"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it has a default backend, whose hooks can be queried
            assert group._has_hooks() is False
        assert group.get_group_store() is not None and group.group_name
    mixed = dist.new_group(backend="cpu:mcast,cuda:gloo")
    assert mixed._get_backend(CPU).name() == "mcast" and mixed.name() != "undefined"
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mixed)
    assert tensor.item() == dist.get_world_size() and custom is not None
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    net(torch.ones(4, 3)).sum().backward()
    assert net._get_ddp_logging_data()["backend_name"] == dist.get_backend()


def test_groups_have_our_name(ranks):
    ranks(2, names)


def test_names_under_the_debug_wrapper(pool):
    pool.run(2, names_wrapped, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, store="none")


def names_wrapped() -> None:
    dist.set_debug_level_from_env()
    try:
        store = dist.HashStore()
        dist.init_process_group("mcast", store=store, rank=0, world_size=1)
        group = dist.group.WORLD
        assert group.name() == "mcast" and hasattr(group._get_backend(CPU), "wrapped_pg")
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 3
        assert torch_mcast.stats()["calls"]["all_reduce"]["engine"] == 1
        dist.destroy_process_group()
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def sparse_sum(**more: Any) -> dist.Work | None:
    """Calls a collective that only the fallback has: the sum of tensors with a one for each rank."""
    tensor = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0], (dist.get_world_size(),))
    work = dist.all_reduce(tensor, **more)
    if work is None:
        assert tensor.to_dense().tolist() == [1.0] * dist.get_world_size()
    return work


def fallback_at_first_use() -> None:
    made: list[str] = []
    make = _fallback.make

    def counted(backend: Any, kind: str) -> Any:
        made.append(kind)
        return make(backend, kind)

    _fallback.make = counted
    try:
        group = dist.new_group(backend="cpu:gloo,cuda:mcast")
        assert made == []  # tensors of the CPU are not passed to us
        group = dist.new_group(backend="cpu:mcast,cuda:gloo")
        peer = 1 - dist.get_group_rank(group, dist.get_rank())
        for work in (
            dist.isend(torch.ones(1), peer, group),
            dist.irecv(torch.ones(1), peer, group),
        ):
            work.wait()
        assert made == []
        assert torch_mcast.stats(group)["fallback"] == {"cpu": "gloo"}
        sparse_sum(group=group)
        assert made == ["gloo"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_fallback, "kind", lambda backend, device: "like NCCL")
            patch.setattr(_fallback, "make", lambda backend, kind: counted(backend, "gloo"))
            group = dist.new_group()
            assert made == ["gloo"]
            for _ in range(2):
                sparse_sum(group=group)
            assert made == ["gloo", "gloo"]
    finally:
        _fallback.make = make


@pytest.mark.parametrize("ranks", ["network", "host", "engine", "engine-host"], indirect=True)
def test_fallbacks_are_made_where_they_are_needed(ranks):
    ranks(2, fallback_at_first_use)


def failing_fallback() -> None:
    make = _fallback.make

    def refuse(backend: Any, kind: str) -> Any:
        raise KeyError("no such network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fallback, "kind", lambda backend, device: "like NCCL")
        patch.setattr(_fallback, "make", refuse)
        group = dist.new_group()
        with pytest.raises(KeyError, match="no such network"):
            sparse_sum(group=group)
        patch.setattr(_fallback, "make", lambda backend, kind: make(backend, "gloo"))
        sparse_sum(group=group)


def test_a_fallback_that_cannot_be_made(ranks):
    ranks(2, failing_fallback)


def remade(path: str) -> None:
    """Data that a fallback of the first group has left in the store does not affect that of the second."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = dist.FileStore(path, world)
    for turn in range(2):
        dist.init_process_group("mcast", store=store, rank=rank, world_size=world)
        there = backend_of()._fallback_store()
        assert not there.check([f"address of rank {rank}"])
        there.set(f"address of rank {rank}", f"of turn {turn}")
        sparse_sum()
        dist.destroy_process_group()


def test_fallbacks_of_a_group_made_again(ranks, tmp_path):
    ranks(2, remade, str(tmp_path / "store"))


# Errors, timeouts, timing


def aborted_fallback() -> None:
    """A receive and a sum whose peers never come: the abort ends both, on both ranks."""
    rank, backend = dist.get_rank(), backend_of()
    if rank == 0:
        waiting = [
            dist.irecv(torch.zeros(4), 1),
            sparse_sum(async_op=True),
        ]
        futures = [work.get_future() for work in (waiting[1], sparse_sum(async_op=True))]
        assert str(backend.get_error()).endswith("SUCCESS")
    else:
        waiting = [dist.irecv(torch.zeros(4), 0)]
    dist.barrier()
    if rank == 0:
        thread = threading.Timer(0.2, backend.abort)
        thread.start()
    for work in waiting:
        with pytest.raises(dist.DistBackendError, match=r"abort\(\) on rank 0"):
            work.wait()
        assert work.is_completed() and not work.is_success()
    if rank == 0:
        thread.join()
        for future in futures:  # the second work has not been waited for
            with pytest.raises(RuntimeError, match=r"abort\(\) on rank 0"):
                future.wait()
    assert not str(backend.get_error()).endswith("SUCCESS")
    dist.destroy_process_group()
    del backend, waiting


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_abort_reaches_the_fallback(ranks):
    """No call waits for the group's timeout, which is longer than the limit of the whole call."""
    ranks(2, aborted_fallback, timeout_s=600)


def fallback_times_out() -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    backend = backend_of(group)
    sparse_sum(group=group)  # they are connected
    if dist.get_rank() == 0:
        work = sparse_sum(group=group, async_op=True)
        with pytest.raises(dist.DistBackendError, match=r"mcast all_reduce #2 on rank 0 of 2"):
            work.wait()
        assert str(backend.get_error()).endswith("COMM_ERROR")
    dist.barrier()


def test_an_error_of_the_fallback_is_the_groups(ranks):
    ranks(2, fallback_times_out)


def set_timeout_only() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # torch 2.15 has a public one
        distributed_c10d._set_pg_timeout(timedelta(seconds=41))
    assert backend_of().options.timeout == timedelta(seconds=41)
    gloo = dist.new_group(backend="gloo")
    distributed_c10d._set_pg_timeout(timedelta(seconds=42), gloo)
    assert backend_of().options.timeout == timedelta(seconds=41)
    assert gloo._get_backend(CPU).options._timeout == timedelta(seconds=42)
    # the first rank to finish would close connections that another is still making
    dist.barrier(group=gloo)


def test_set_pg_timeout(ranks):
    ranks(2, set_timeout_only)


def timing() -> None:
    dist.group.WORLD._enable_collectives_timing()
    dist.all_reduce(torch.ones(1))


def test_collectives_timing_can_be_asked_for(ranks):
    ranks(2, timing)


def monitored() -> None:
    """torch's own function requires Gloo's name, so this calls the backend."""
    rank, backend = dist.get_rank(), backend_of()
    backend.monitored_barrier()
    short, patient, long = (timedelta(seconds=s) for s in (0.3, 6, 40))
    for everybody, said in ((False, "Rank 1 failed"), (True, "Ranks 1, 2 failed")):
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=f"{said} to pass monitoredBarrier in"):
                backend.monitored_barrier(patient if everybody else short, everybody)
        if rank == 3:
            pattern = f"Rank 3 successfully reached monitoredBarrier, but .* from rank 0: {said}"
            with pytest.raises(dist.DistBackendError, match=pattern):
                backend.monitored_barrier(long)


def test_monitored_barrier(ranks):
    ranks(4, monitored)


# Coalescing


def coalesced() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    assert backend_of().supports_coalescing
    first, second = (torch.full((n,), float(rank)) for n in (3, 5000))
    with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
        dist.broadcast(first, 1, async_op=True)
        dist.broadcast(second, 0, async_op=True)
    assert len(manager.works) == 1
    manager.wait()
    (work,) = manager.works
    assert work.is_completed() and work.is_success()
    assert [t.numel() for t in work.get_future().wait()] == [3, 5000]
    assert first.tolist() == [1.0] * 3 and second.tolist() == [0.0] * 5000
    whole = [torch.zeros(world * n) for n in (2, 300)]
    with dist._coalescing_manager(device=CPU):
        for out in whole:
            dist.all_gather_into_tensor(out, torch.full((out.numel() // world,), float(rank)))
    for out in whole:
        assert_same(out, torch.arange(float(world)).repeat_interleave(out.numel() // world))
    with dist._coalescing_manager(device=CPU):
        pass  # an empty batch
    store = distributed_c10d._get_default_store()
    if rank == 0:
        with dist._coalescing_manager(device=CPU, async_ops=True) as manager:
            dist.broadcast(first, 1, async_op=True)
            dist.reduce(second, 0, async_op=True)
        dist.broadcast(torch.ones(1), 1)  # on the lane of the first, which is complete then
        (work,) = manager.works
        assert not work.is_completed()
        store.set("rank 0 has looked at its batch", "1")
        manager.wait()
    else:
        dist.broadcast(first, 1)
        dist.broadcast(torch.ones(1), 1)
        store.wait(["rank 0 has looked at its batch"])
        dist.reduce(second, 0)


def test_coalescing_manager_with_a_device(ranks):
    ranks(3, coalesced)


def failed_batch() -> None:
    store = distributed_c10d._get_default_store()
    group = dist.new_group()
    if dist.get_rank() == 1:
        store.wait(["rank 0 has seen the error"])
        return
    with dist._coalescing_manager(group, device=CPU, async_ops=True) as manager:
        for _ in range(2):
            dist.broadcast(torch.zeros(3), 1, group=group, async_op=True)
    backend_of(group).abort()
    with raises_error(dist.DistBackendError, "aborted", rank=0, reason="abort() on rank 0"):
        manager.wait()
    store.set("rank 0 has seen the error", "1")


def test_batch_raises_the_error_of_its_parts(ranks):
    ranks(2, failed_batch)


def ring() -> None:
    """Runs sends and receives of a ring at once, as pipelines and ring attention do."""
    rank, world = dist.get_rank(), dist.get_world_size()
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    for turn in range(3):
        got = torch.zeros(50_000)
        mine = torch.full((50_000,), float(rank + turn))
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, ahead), dist.P2POp(dist.irecv, got, behind)]
        )
        assert len(works) == 1
        for work in works:
            work.wait()
        assert got[0] == got[-1] == float(behind + turn)


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_batch_in_a_ring(ranks):
    ranks(3, ring)


# Groups out of groups


def split() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    backend = backend_of()
    assert backend.supports_splitting
    backend.perform_nocolor_split(CPU)
    mine = [[0, 2], [1]][rank % 2]
    part = dist.group.WORLD.split_group(mine, timeout=timedelta(seconds=33), group_name="part")
    assert part.size() == len(mine) and part.rank() == mine.index(rank)
    tensor = torch.full((4,), float(rank))
    dist.group.WORLD.allreduce(tensor.clone()).wait()
    part.allreduce([tensor]).wait()
    assert tensor[0] == sum(mine)
    ours = part._get_backend(CPU)
    assert ours.options.group_name == "part" and ours.options.timeout == timedelta(seconds=33)
    assert ours.options.global_ranks_in_group == mine
    half = part.split_group([part.rank()], group_name=f"half {rank}")
    assert half._get_backend(CPU).options.global_ranks_in_group == [rank]
    assert backend.options.group_name != "part"  # the parent keeps its own
    outside = dist.group.WORLD.split_group([0, 1], group_name="two")
    assert (outside is None) == (rank == 2)
    if outside is not None:
        pieces = [torch.zeros(1) for _ in range(2)]
        outside.alltoall(pieces, [torch.full((1,), float(rank))] * 2).wait()
        assert [p.item() for p in pieces] == [0.0, 1.0]
    with pytest.raises(ValueError, match="split: rank 7 is not one of the group's 0 to 2"):
        dist.group.WORLD.split_group([rank, 7], group_name="bad")
    assert world == 3


def test_split_groups_work_and_know_their_global_ranks(ranks):
    ranks(3, split)


def merged(path: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    alone = dist.group.WORLD.split_group([rank], group_name=f"alone {rank}")
    store = dist.FileStore(path, world)
    both = alone.merge_remote_group(store, world, timeout=timedelta(seconds=50), group_name="both")
    tensor = torch.ones(3)
    both.allreduce([tensor]).wait()
    assert both.size() == world and tensor.tolist() == [float(world)] * 3


def test_merged_groups_reduce_over_all_ranks(ranks, tmp_path):
    ranks(2, merged, str(tmp_path / "merged"))


def shrunk(flags: int) -> float:
    """Rank 1 leaves; the others continue, in their old order."""
    rank = dist.get_rank()
    other = dist.new_group()  # goes with the default group
    dist.all_reduce(torch.ones(1), group=other)
    if rank == 1:
        return 0.0
    parent = backend_of()
    group = distributed_c10d.shrink_group([1], shrink_flags=flags)
    if flags == distributed_c10d.SHRINK_ABORT:
        failure = torch_mcast.read_error(parent._stats()["failure"])
        who = failure["fields"]["rank"]
        assert failure["error"] == "aborted" and who in (0, 2), failure
        assert failure["fields"]["reason"] == f"abort() on rank {who}", failure
    assert dist.group.WORLD is group and dist.get_world_size() == 2
    assert dist.get_rank() == (0 if rank == 0 else 1)
    tensor = torch.full((100_000,), float(rank))
    dist.all_reduce(tensor)
    gathered = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(gathered, torch.full((1,), float(rank)))
    assert [g.item() for g in gathered] == [0.0, 2.0]
    return tensor[0].item()


@pytest.mark.parametrize("flags", [distributed_c10d.SHRINK_DEFAULT, distributed_c10d.SHRINK_ABORT])
def test_a_shrunk_group_goes_on_in_the_old_order(ranks, flags):
    assert ranks(3, shrunk, flags) == [2.0, 0.0, 2.0]
