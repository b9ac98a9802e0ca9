"""Device tensors on a device at a limit: streams that are full, a device that has failed, calls
that block, a graph that is being captured, many groups. On the devices of device_ranks.py."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import device_ranks
import devices
import pytest
import torch
import torch.distributed as dist
from contents import assert_same, content
from device_ranks import (
    NO_FALLBACK,
    PIECES,
    backend,
    blocks,
    check,
    device,
    new_group,
    ops,
    store,
    upload,
    upload_held,
)
from fake_device import TO_DEVICE, TO_HOST
from named_errors import check_error
from ranks import Pool
from waiting import until

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
either, gated = device_ranks.either, device_ranks.gated
DEPTH = 1024  # commands that a stream can hold: runtime.h
FAILED = re.compile("the device failed: ").match  # the reason of an abort


def apart(flat: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Returns views of it of these sizes, with gaps: no two of them can share a copy."""
    views, at = [], 0
    for size in sizes:
        views.append(flat[at : at + size])
        at += size + 1
    return views


def many(count: int, layout: str) -> tuple[int, int]:
    """Runs one coalesced call over `count` tensors. Returns its waits for gates and copies to the
    device (not counted on CUDA)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [3 + i % 5 for i in range(count)]
    parts = [blocks(size, torch.float32, i) for i, size in enumerate(sizes)]
    mine = torch.cat([part[rank] for part in parts]).to(device())
    inputs = list(mine.split(sizes))
    # Outputs, and their expected contents.
    if layout == "lists":
        shape, wanted = sizes * world, [part[r] for r in range(world) for part in parts]
    else:
        shape, wanted = [world * size for size in sizes], [torch.cat(part) for part in parts]
    memory = torch.zeros(sum(shape) + len(shape)).to(device())
    outputs = apart(memory, shape)
    before = counted()
    if layout == "lists":
        lists = [outputs[r * count : (r + 1) * count] for r in range(world)]
        dist.group.WORLD.allgather_coalesced(lists, inputs).wait()
    else:
        dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    got = apart(memory.cpu(), shape)
    gates, copies = counted()
    assert_same(torch.cat(got), torch.cat(wanted), layout)
    return gates - before[0], copies - before[1]


def counted() -> tuple[int, int]:
    return (ops().gates(), ops().copies(TO_DEVICE)) if device() == "fake" else (0, 0)


@pytest.mark.parametrize("layout", ["lists", "flat"])
def test_more_copies_than_a_stream_holds(either, layout):
    """More copies to the device wait for the network than the stream has room for: posting blocks
    until they run, which must not need another call of this thread."""
    count = DEPTH + 200
    options = {"segment": 64 << 10}
    for gates, copies in either(2, many, count, layout, options=options, timeout_s=50):
        assert gates <= 2  # the bytes of all fit in one segment
        if either.device == "fake":
            assert copies >= count  # this rank's block is not copied from the host


@pytest.mark.fake_device("it counts gates and copies")
def test_gates_do_not_grow_with_ranks(gated):
    """Adjacent blocks share a gate and a copy."""
    for gates, copies in gated(3, many, 1, "flat"):
        assert (gates, copies) in [(1, 1), (1, 2)]


def fault() -> str:
    """Rank 0's device fails while its source is being copied."""
    rank, size = dist.get_rank(), 300_000
    output = torch.zeros(2 * size).to(device())
    mine = upload(content(rank, size, torch.float32))
    if rank == 0:
        ops().synchronize()
        ops().allow(TO_HOST, 1)
    work = dist.all_gather_into_tensor(output, mine, async_op=True)
    try:
        if rank == 0:
            store().wait(["rank 1 has posted"])
            ops().fault(True)
        else:
            store().set("rank 1 has posted", "1")
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(timedelta(seconds=40))
        until(work.is_completed, "the device's part has not ended")
    finally:
        ops().fault(False)
        ops().allow(TO_HOST, -1)
    with pytest.raises(dist.DistBackendError, match=r"failed earlier.*the device failed"):
        dist.barrier()
    return str(caught.value)


@pytest.mark.fake_device(
    "it makes the device fail, which no process survives on CUDA, and limits copies"
)
def test_a_device_failure_is_named_and_aborts_the_peers(either):
    texts = either(2, fault, timeout_s=60)
    assert "mcast all_gather_into_tensor #1 on rank 0 of 2" in texts[0]
    assert "the device failed: fake device: a kernel has faulted" in texts[0]
    check_error(texts[1], "aborted", rank=0, reason=FAILED)
    for text in texts:
        assert "frame #" not in text and "stacktrace" not in text, text


def kernel_fails() -> tuple[str, str]:
    """Rank 1's kernel reads out of bounds, and its output is the input of an operation. Returns the
    errors of the call or its work, and of the next call."""
    rank, size = dist.get_rank(), 300_000
    output, mine = torch.zeros(2 * size).to(device()), upload(content(rank, size, torch.float32))
    dist.all_gather_into_tensor(output, mine)
    check(output, torch.cat(blocks(size, torch.float32, 0)), "before a kernel fails")
    if rank == 1:
        mine = mine[torch.full((size,), size + 7).to(device())]
    with pytest.raises(RuntimeError) as caught:
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        work.wait(timedelta(seconds=40))
    with pytest.raises(RuntimeError) as again:
        dist.barrier()
    return str(caught.value), str(again.value)


if device_ranks.GPU and torch.cuda.device_count():  # the test above has the fake device

    @pytest.mark.parametrize("wait", ["stream", "host"])
    def test_a_kernel_that_fails_on_cuda(wait):
        """All ranks are notified within seconds, and the group can be destroyed."""
        pool = Pool(device_ranks.ENVIRONMENTS["cuda"])
        try:
            pool.run(2, devices.take, "cuda", "", True, store="none", limit_s=240)
            told = pool.run(
                2, kernel_fails, backend="cpu:mcast,cuda:mcast", options={**PIECES, **NO_FALLBACK},
                env={"MCAST_DEVICE_WAIT": wait},
            )  # fmt: skip
        finally:
            pool.close()
        check_error(told[0][0], "aborted", rank=1, reason=FAILED)
        assert "failed earlier" in told[0][1]
        assert "device-side assert" in told[1][0] and "frame #" not in str(told), told


def capture() -> int:
    """Another thread captures a graph for as long as an operation takes, with time for status queries."""
    rank, size = dist.get_rank(), 100_000
    output = torch.zeros(2 * size).to(device())
    if rank == 0:
        mine = upload(content(rank, size, torch.float32))
        ops().synchronize()
        before = ops().capture(True)
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        asked = ops().asked()
        store().set("posted", "1")
        # The status of a gated operation is queried once it has been in flight for long.
        until(lambda: ops().asked() > asked, "nobody asks the device")
        store().set("asked", "1")
        work.wait(timedelta(seconds=40))
        until(work.is_completed, "the device's part has not ended")
        broken = ops().capture(False) - before
    else:
        store().wait(["posted"])
        store().wait(["asked"])
        work = dist.all_gather_into_tensor(
            output, upload(content(rank, size, torch.float32)), async_op=True
        )
        work.wait()
        broken = 0
    check(output, torch.cat(blocks(size, torch.float32, 0)), "after a capture")
    return broken


def test_captures_are_left_alone(either):
    assert either(2, capture) == [0, 0]


def refused_in_a_capture() -> None:
    """Every call raises before it enqueues anything; afterwards the group serves the next call, and
    those that waited."""
    rank, size = dist.get_rank(), 30_000
    sums = torch.full((size,), 3.0)

    def post() -> tuple[Any, torch.Tensor]:
        tensor = torch.full((size,), rank + 1.0).to(device())
        return dist.all_reduce(tensor, async_op=True), tensor

    ops().use_stream(3)
    earlier, reduced = post()
    sent, arrived = dist.isend(reduced, 1 - rank), torch.zeros(size).to(device())
    received = dist.irecv(arrived, 1 - rank)
    tensor, output = torch.ones(size).to(device()), torch.zeros(2 * size).to(device())
    calls = [
        lambda: dist.all_gather_into_tensor(output, tensor),
        lambda: dist.all_gather(list(output.chunk(2)), tensor),
        lambda: dist.broadcast(tensor, 0),
        lambda: dist.all_reduce(tensor),
        lambda: dist.reduce_scatter_tensor(tensor, output),
        lambda: dist.isend(tensor, 1 - rank),
        lambda: dist.irecv(tensor, 1 - rank),
        earlier.wait,
        lambda: earlier.wait(timedelta(seconds=40)),
        earlier.synchronize,
        sent.wait,
        received.wait,
    ]
    ops().capture_here(True)
    try:
        for number, call in enumerate(calls):
            with pytest.raises(RuntimeError, match="cannot be captured in a graph"):
                call()
                pytest.fail(f"call {number} was let through")
    finally:
        assert ops().capture_here(False) == 0
    ops().capture_here(True)
    try:
        with pytest.raises(RuntimeError, match="cannot be captured in a graph"):
            dist.barrier(device_ids=[0])
    finally:
        assert ops().capture_here(False) <= 1  # c10d frees a tensor that it has made there
    for work in (earlier, sent, received):
        work.wait()
    check(reduced, sums, "of before the capture")
    later, tensor = post()
    later.wait()
    check(tensor, sums, "of after the capture")
    assert not torch_mcast.stats()["failure"]
    ops().use_stream(0)


def test_capture_is_refused(either):
    either(2, refused_in_a_capture)


def blocked_calls() -> None:
    """A status query of the device blocks, as behind a cudaFree that waits for the gates: the
    operation still proceeds."""
    rank, size = dist.get_rank(), 100_000
    output = torch.zeros(2 * size).to(device())
    if rank == 0:
        ops().hold()
        mine = upload_held(content(rank, size, torch.float32))
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        ops().block_asking(True)
        try:
            until(lambda: ops().blocked() > 0, "nobody asks the device")
            ops().release()
            store().wait(["rank 1 has everything"])
        finally:
            ops().block_asking(False)
    else:
        mine = upload(content(rank, size, torch.float32))
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        work.wait(timedelta(seconds=40))
        store().set("rank 1 has everything", "1")
    work.wait()
    check(output, torch.cat(blocks(size, torch.float32, 0)), "with blocked calls")


def test_progress_does_not_wait_for_calls(gated):
    gated(2, blocked_calls)


def many_groups(count: int) -> int:
    before = ops().pooled()
    output, mine = torch.zeros(8).to(device()), torch.ones(4).to(device())
    for _ in range(count):
        group = new_group()
        dist.all_gather_into_tensor(output, mine, group=group)
        dist.all_reduce(mine, group=group)
        dist.destroy_process_group(group)
    assert output.cpu().sum() > 0 and torch_mcast.stats() and backend()
    return ops().pooled() - before


def test_groups_share_the_streams_of_the_pool(either):
    """Groups share a pair per lane and device, however many there are: torch's pool lends the same
    few streams again. (Not counted on CUDA.)"""
    assert max(either(2, many_groups, 5)) <= 4
