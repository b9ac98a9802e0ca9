"""Failures that come after wait() has returned, so that no call raises them: depending on the
setting device_failure the process ends, the outputs are overwritten and the next call raises, or
the failure is logged. On the devices of device_ranks.py, with gates: without them wait() blocks
until the bytes are final.

Three ranks: rank 1 is lost while rank 0's stream waits for it in one group; ranks 0 and 2 have a
healthy group."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
from pathlib import Path
from typing import Any

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import PIECES, backend, check, device, new_group, ops, store, upload
from named_errors import check_error, raises_error
from ranks import RankError
from waiting import until

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
gated = device_ranks.gated
SIZE = 24_576  # elements of a rank; several pieces
SPREAD = 512  # one element per this many bytes is overwritten


def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size * dtype.itemsize, dtype=torch.uint8).view(dtype).to(device())


def start(op: str, group: Any, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """Posts rank 0's or 1's part of an operation in which rank 0 needs data of rank 1. Returns the
    work and its output."""
    rank = dist.get_rank()
    mine = upload(content(rank, SIZE, dtype))
    if rank == 1:
        ops().synchronize()
        ops().stall()
    if op == "all_gather":
        output = zeros(2 * SIZE, dtype)
        return dist.all_gather_into_tensor(output, mine, group=group, async_op=True), output
    if op == "list":
        outputs = zeros(2 * SIZE, dtype).view(2, SIZE)
        return dist.all_gather(list(outputs), mine, group=group, async_op=True), outputs[1]
    if op == "strided":  # copied to its place after the last gate
        room = zeros(2 * SIZE, dtype).view(SIZE, 2)
        target = room[:, 0] if rank == 0 else mine
        return dist.broadcast(target, 1, group=group, async_op=True), room[:, 0]
    if op == "broadcast":
        target = zeros(SIZE, dtype) if rank == 0 else mine
        return dist.broadcast(target, 1, group=group, async_op=True), target
    if op == "all_reduce":
        return dist.all_reduce(mine, group=group, async_op=True), mine
    if rank == 1:
        return dist.isend(mine, 0, group=group), mine
    target = zeros(SIZE, dtype)
    return dist.irecv(target, 1, group=group), target


def lost(op: str, policy: str, dtype: torch.dtype, how: str, file: str) -> None:
    """Checks rank 0's view of an operation whose wait() has returned before rank 1 ends."""
    rank = dist.get_rank()
    if policy == "abort":
        faulthandler.disable()  # it reads the frames of running threads, which may crash it
    failing, healthy = new_group([0, 1], device_failure=policy, **PIECES), new_group([0, 2])
    if rank == 1:
        start(op, failing, dtype)
        store().wait(["rank 0 waits"])
        os._exit(3)
    if rank == 2:
        got = zeros(SIZE, dtype)
        dist.broadcast(got, 0, group=healthy)
        check(got, content(0, SIZE, dtype, 5), "in the healthy group")
        return
    work, output = start(op, failing, dtype)
    if how == "wait":
        assert work.wait()
    else:
        assert work.get_future().wait() is not None
    store().set("rank 0 waits", "1")
    data = output.cpu()  # blocks until the failure
    Path(file).touch()
    good = upload(content(0, SIZE, dtype, 5))
    if policy == "raise":
        saved = io.BytesIO()
        torch.save(data, saved)
        saved.seek(0)
        assert_poisoned(torch.load(saved))
        refused(output, good, healthy)
        torch_mcast.clear_failure(device())
    dist.broadcast(good, 0, group=healthy)
    until(work.is_completed, "the device's part has not ended")
    assert not work.is_success()
    check_error(work.exception(), "rank_lost", rank=1)


def assert_poisoned(data: torch.Tensor) -> None:
    """Checks that one element in 512 bytes, including the first, has a value that cannot be
    mistaken for a result."""
    some = data.flatten()[:: SPREAD // data.dtype.itemsize]
    if data.dtype.is_floating_point or data.dtype.is_complex:
        assert some.isnan().all(), some
    else:
        assert (some == -1).all(), some


def refused(output: torch.Tensor, good: torch.Tensor, healthy: Any) -> None:
    """Calls of other groups with device tensors are refused, whatever the call; those with CPU
    tensors work."""
    calls = [
        lambda: dist.broadcast(output, 0, group=healthy),
        lambda: dist.all_reduce(torch.ones(3).to(device()), group=healthy),
        lambda: dist.isend(good, 2, group=healthy),
        lambda: dist.barrier(group=healthy, device_ids=[0]),
    ]
    for call in calls:
        with pytest.raises(dist.DistBackendError, match="left undefined outputs: mcast ") as caught:
            call()
        assert f"clear_failure('{device()}:0')" in str(caught.value)
        assert "on rank 0 of 2" in str(caught.value)
        check_error(caught.value, "rank_lost", rank=1)


OPS = ["all_gather", "list", "broadcast", "strided", "all_reduce", "recv"]
TYPES = [torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64, torch.int8, torch.int64]


def survives(run: device_ranks.Runner, *args: Any) -> None:
    with pytest.raises(RankError, match="died with 3") as caught:
        run(3, lost, *args)
    told = str(caught.value)
    assert "rank 0 of" not in told and "rank 2 of" not in told, told


@pytest.mark.parametrize("how", ["wait", "future"])
@pytest.mark.parametrize("op", OPS)
def test_raise_poisons_outputs_and_the_device(gated, tmp_path, op, how):
    if (op, how) == ("recv", "future"):
        how = "wait"  # the future of a receive completes when the message has arrived
    survives(gated, op, "raise", torch.float32, how, str(tmp_path / "read"))
    assert (tmp_path / "read").exists()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_raise_poisons_every_type(gated, tmp_path, dtype):
    survives(gated, "all_gather", "raise", dtype, "wait", str(tmp_path / "read"))


def test_log_leaves_outputs_as_they_are(gated, tmp_path):
    survives(gated, "all_gather", "log", torch.float32, "wait", str(tmp_path / "read"))
    assert (tmp_path / "read").exists()


@pytest.mark.parametrize("op", OPS)
def test_abort_ends_the_process_before_outputs_are_read(gated, tmp_path, op):
    env = {"TORCH_FR_DUMP_ON_TIMEOUT": "1", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace")}
    with pytest.raises(RankError) as caught:
        gated(3, lost, op, "abort", torch.float32, "wait", str(tmp_path / "read"), env=env)
    told = str(caught.value).split("--- rank ")
    ended = next(text for text in told if text.startswith("0 of 3"))
    assert "died with -6" in ended
    assert "on rank 0 of 2 in group" in ended and "device_failure=raise" in ended
    assert "failed after wait() had returned: its outputs on" in ended
    assert not (tmp_path / "read").exists()
    entries = pickle.loads((tmp_path / "trace0").read_bytes())["entries"]
    assert entries[-1]["state"] == "started", entries[-1]


def before_wait(policy: str) -> None:
    """Without a wait before it, wait() raises, and nothing else is changed."""
    rank = dist.get_rank()
    failing, healthy = new_group([0, 1], device_failure=policy, **PIECES), new_group([0, 2])
    if rank < 2:
        work, _ = start("all_gather", failing, torch.float32)
    if rank == 1:
        store().wait(["rank 0 has posted"])
        backend_of(failing).abort()
        ops().go_on()
    elif rank == 0:
        store().set("rank 0 has posted", "1")
        # (The group's failure shows before that of its operations.)
        until(work.is_completed, "the operation goes on")
        with raises_error(dist.DistBackendError, "aborted", rank=1, reason="abort() on rank 1"):
            work.wait()
    if rank != 1:
        tensor = torch.full((SIZE,), rank + 1.0).to(device())
        dist.all_reduce(tensor, group=healthy)
        check(tensor, torch.full((SIZE,), 4.0), "in the healthy group")
    dist.barrier()


def backend_of(group: Any) -> Any:
    return group._get_backend(torch.device(device()))


@pytest.mark.parametrize("policy", ["abort", "raise", "log"])
def test_a_failure_before_wait_is_raised_by_wait(gated, policy):
    gated(3, before_wait, policy)


def own_abort(policy: str) -> None:
    """A rank that ends a group itself knows it: its process does not end, and nothing is refused
    afterwards."""
    rank = dist.get_rank()
    group = new_group(device_failure=policy, **PIECES)
    work, output = start("all_gather", group, torch.float32)
    if rank == 0:
        assert work.wait()
        store().wait(["rank 1 has posted"])
        backend_of(group).abort()
        data = output.cpu()
        if policy == "raise":
            assert_poisoned(data)
    else:
        store().set("rank 1 has posted", "1")
        until(lambda: torch_mcast.stats(group)["failure"], "the group goes on")
        ops().go_on()
    until(work.is_completed, "the device's part has not ended")
    tensor = torch.full((SIZE,), rank + 1.0).to(device())
    dist.all_reduce(tensor)
    check(tensor, torch.full((SIZE,), 3.0), "in another group")
    assert backend()


@pytest.mark.parametrize("policy", ["abort", "raise", "log"])
def test_an_abort_of_this_rank_is_no_failure(gated, policy):
    gated(2, own_abort, policy)


def all_there(policy: str) -> None:
    """Rank 0 has all of its output, and fails since rank 1 does not get rank 0's data: the output
    is right."""
    rank = dist.get_rank()
    group = new_group(device_failure=policy, **PIECES)
    tensor = upload(content(0, SIZE, torch.float32)) if rank == 0 else zeros(SIZE, torch.float32)
    if rank == 0:
        ops().synchronize()
        ops().stall()
        work = dist.broadcast(tensor, 0, group=group, async_op=True)
        assert work.wait()
        store().set("rank 0 waits", "1")
        until(lambda: torch_mcast.stats(group)["failure"], "the group goes on")
        ops().go_on()
        check(tensor, content(0, SIZE, torch.float32), "the source")
        until(work.is_completed, "the device's part has not ended")
    else:
        store().wait(["rank 0 waits"])
        backend_of(group).abort()
    dist.all_reduce(tensor)


@pytest.mark.parametrize("policy", ["abort", "raise"])
def test_a_failure_of_an_operation_without_outputs_is_logged(gated, policy):
    gated(2, all_there, policy)
