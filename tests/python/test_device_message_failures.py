"""Failing sends and receives of device tensors: lengths that differ, time limits, ranks that abort
or die, devices that fail."""

from __future__ import annotations

import os
import re
from datetime import timedelta

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import AFTER, backend, new_group, ops, store, upload
from fake_device import TO_DEVICE, TO_HOST
from limits import limit
from named_errors import check_error
from ranks import RankError
from test_device_messages import SOME, until, zeros

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
either = device_ranks.either


def another_length() -> None:
    with pytest.raises(dist.DistBackendError, match="rank 0 has sent 12 bytes to recv of 16 bytes"):
        if dist.get_rank() == 0:
            dist.isend(upload(torch.ones(3)), 1)
            dist.irecv(zeros(3), 1).wait(timedelta(seconds=40))
        else:
            dist.irecv(zeros(4), 0).wait(timedelta(seconds=40))


def test_another_length_is_an_error_on_both(either):
    either(2, another_length)


def too_late(gate: bool, policy: str) -> None:
    group = limit(2, new_group(device_failure=policy))
    if dist.get_rank() == 0:
        tensor = zeros(4)
        work = dist.irecv(tensor, 1, group=group, tag=5)
        if gate:
            assert work.wait()  # the stream waits, until the call fails
            ops().flip(tensor, AFTER)
        with pytest.raises(dist.DistBackendError, match="no such message has arrived"):
            work.wait(timedelta(seconds=40))
        ops().synchronize()
        with pytest.raises(dist.DistBackendError, match="no such message has arrived"):
            work.wait()
        assert not work.is_success()
        torch_mcast.clear_failure()  # of device_failure=raise
        with pytest.raises(dist.DistBackendError, match="failed earlier"):
            dist.isend(tensor, 1, group=group)
    dist.barrier()


@pytest.mark.parametrize("policy", ["raise", "log"])  # abort: test_device_failures.py
def test_a_receive_ends_by_its_limit(either, policy):
    either(2, too_late, either.gate, policy)


def peer_fails(how: str, gate: bool) -> str:
    """Rank 1 ends while its source is being copied: rank 0 neither hangs nor misses the error."""
    size = 1 << 20
    if dist.get_rank() == 1:
        mine = upload(content(1, size, torch.uint8))
        ops().synchronize()
        ops().stall()
        work = dist.isend(mine, 0)
        store().wait(["rank 0 waits"])
        if how == "dies":
            os._exit(3)
        backend().abort()
        ops().go_on()
    else:
        got = zeros(size, torch.uint8)
        work = dist.irecv(got, 1)
        unasked = dist.irecv(zeros(3), 1, tag=1)
        if gate:
            assert work.wait()
            ops().flip(got, AFTER)
        store().set("rank 0 waits", "1")
        with pytest.raises(dist.DistBackendError):
            unasked.wait(timedelta(seconds=40))
        until(unasked.is_completed, "the other receive has not ended")
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait(timedelta(seconds=40))
    ops().synchronize()
    until(work.is_completed, "the device's part has not ended")
    assert not work.is_success()
    torch_mcast.clear_failure()  # of device_failure=raise
    return str(caught.value)


@pytest.mark.parametrize("policy", ["raise", "log"])
def test_peer_aborts(either, policy):
    texts = either(2, peer_fails, "aborts", either.gate, options={"device_failure": policy})
    for text in texts:
        check_error(text, "aborted", rank=1, reason="abort() on rank 1")


@pytest.mark.parametrize("policy", ["raise", "log"])
def test_peer_dies(either, policy):
    with pytest.raises(RankError) as caught:
        either(2, peer_fails, "dies", either.gate, options={"device_failure": policy})
    assert "died with 3" in str(caught.value) and "rank 0 of" not in str(caught.value)


def fault(side: str) -> str:
    """The device of the sending or receiving rank fails during the copy."""
    rank, size = dist.get_rank(), 300_000
    fails = rank == (0 if side == "sender" else 1)
    tensor = upload(content(rank, size, SOME))
    ops().synchronize()
    if fails:
        ops().allow(TO_HOST if rank == 0 else TO_DEVICE, 0)
    work = dist.isend(tensor, 1) if rank == 0 else dist.irecv(tensor, 0)
    try:
        if fails:
            store().wait(["posted"])
            ops().fault(True)
        else:
            store().set("posted", "1")
        with pytest.raises(dist.DistBackendError) as caught:
            # (A send is complete at the sender once all of it has left.)
            work.wait(timedelta(seconds=40))
            assert rank == 0 and side == "receiver"
            dist.barrier()
        until(work.is_completed, "the device's part has not ended")
        # (The message itself may have completed: then the group fails after its work.)
        until(lambda: torch_mcast.stats()["failure"], "the group goes on")
    finally:
        ops().fault(False)
        ops().allow(TO_HOST, -1)
        ops().allow(TO_DEVICE, -1)
    return str(caught.value)


@pytest.mark.fake_device(
    "it makes the device fail, which no process survives on CUDA, and limits copies"
)
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_device_failure_during_a_message_aborts_the_peer(either, side):
    texts = either(2, fault, side, timeout_s=60)
    failed = 0 if side == "sender" else 1
    assert "the device failed: fake device: a kernel has faulted" in texts[failed]
    assert f"on rank {failed} of 2" in texts[failed]
    check_error(
        texts[1 - failed], "aborted", rank=failed, reason=re.compile("the device failed: ").match
    )
