"""Device tensors, on a fake device whose streams are asynchronous and late (fake_device/) and on
CUDA if available (device_ranks.py): with a gate (wait() makes the stream wait) and without (wait()
blocks). The tests do not wait for the device before they compare, except in the copy to the host
itself."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import device_ranks
import fake_device
import pytest
import torch
import torch.distributed as dist
from contents import assert_same, content
from device_ranks import (
    AFTER,
    BEFORE,
    backend,
    blocks,
    check,
    device,
    finish,
    flipped,
    ops,
    store,
    upload,
    upload_held,
)
from fake_device import TO_DEVICE, TO_HOST
from named_errors import check_error
from ranks import RankError
from waiting import until

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
either, gated, hosted = device_ranks.either, device_ranks.gated, device_ranks.hosted
SIZES = [0, 1, 3, 1021, 9000, 300_001]


def all_gather_into_tensor() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    salt = 0
    for dtype, size, form, asynchronous in itertools.product(
        [torch.uint8, torch.float32], SIZES, ("apart", "in place", "other block"), (False, True)
    ):
        salt += 1
        mine = content(rank, size, dtype, salt)
        output = torch.zeros(size * world, dtype=dtype).to(device())
        source = upload(mine)
        if form != "apart":
            place = rank if form == "in place" else (rank + 1) % world
            block = output[place * size : (place + 1) * size]
            block.copy_(source, non_blocking=True)
            source = block
        work = dist.all_gather_into_tensor(output, source, async_op=asynchronous)
        del source
        finish(work, asynchronous)
        check(output, torch.cat(blocks(size, dtype, salt)), (dtype, size, form, asynchronous))
    calls = torch_mcast.stats()["calls"]["all_gather_into_tensor"]
    assert calls == {"engine": salt, "fallback": 0}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_gather_into_tensor(either, world):
    either(world, all_gather_into_tensor)


def test_all_gather_by_ring(either):
    either(3, all_gather_into_tensor, options={"algorithm": "ring"})


def test_all_gather_with_losses(either):
    either(2, all_gather_into_tensor, options={"faults": "drop:rate=0.05,seed=1"})


def all_gather_list() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for salt, (size, layout, asynchronous) in enumerate(
        itertools.product(
            SIZES, ("separate", "chunks", "strided", "same", "same in place"), (False, True)
        )
    ):
        dtype = torch.float32
        mine = upload(content(rank, size, dtype, salt))
        raw = torch.zeros(2 * size * world).to(device())
        if layout == "separate":
            outputs = [torch.zeros(size).to(device()) for _ in range(world)]
        elif layout == "chunks":
            outputs = [raw[r * size : (r + 1) * size] for r in range(world)]
            outputs[rank].copy_(mine, non_blocking=True)
            mine = outputs[rank]
        elif layout == "strided":
            outputs = [raw[2 * r * size : 2 * (r + 1) * size : 2] for r in range(world)]
        else:  # every output is the same memory: the last rank's block stays
            outputs = [raw[:size]] * world
            if layout == "same in place":
                outputs[0].copy_(mine, non_blocking=True)
                mine = outputs[0]
        finish(dist.all_gather(outputs, mine, async_op=asynchronous), asynchronous)
        del mine
        what = (size, layout, asynchronous)
        if layout.startswith("same"):
            check(outputs[0], content(world - 1, size, dtype, salt), what)
            continue
        for r, output in enumerate(outputs):
            check(output, content(r, size, dtype, salt), (*what, r))


@pytest.mark.parametrize("world", [1, 3])
def test_all_gather_list(either, world):
    either(world, all_gather_list)


def broadcast() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for salt, (size, strided, asynchronous, root) in enumerate(
        itertools.product(SIZES, (False, True), (False, True), range(world))
    ):
        expected = content(root, size, torch.bfloat16, salt)
        room = torch.zeros(2 * size, dtype=torch.bfloat16).to(device())
        tensor = room[::2] if strided else room[:size]
        if rank == root:
            tensor.copy_(upload(expected), non_blocking=True)
        finish(dist.broadcast(tensor, root, async_op=asynchronous), asynchronous)
        check(tensor, expected, (size, strided, asynchronous, root))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_broadcast(either, world):
    either(world, broadcast)


def coalesced() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    shapes = [(torch.float32, 1000), (torch.int64, 1), (torch.uint8, 0), (torch.bfloat16, 77_777)]
    inputs = [upload(content(rank, size, dtype, i)) for i, (dtype, size) in enumerate(shapes)]
    outputs = [torch.zeros(world * size, dtype=dtype).to(device()) for dtype, size in shapes]
    dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for i, (dtype, size) in enumerate(shapes):
        check(outputs[i], torch.cat(blocks(size, dtype, i)), i)

    with dist._coalescing_manager(async_ops=True) as manager:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, mine)
    manager.wait()
    for i, (dtype, size) in enumerate(shapes):
        check(outputs[i], torch.cat(blocks(size, dtype, i)), i)

    lists = [[torch.zeros_like(t) for t in inputs] for _ in range(world)]
    work = dist.group.WORLD.allgather_coalesced(lists, inputs)
    work.wait()
    for r in range(world):
        for i, (dtype, size) in enumerate(shapes):
            check(lists[r][i], content(r, size, dtype, i), (r, i))
    with pytest.raises(ValueError, match="one device"):
        dist.group.WORLD.allgather_into_tensor_coalesced(
            [outputs[0], torch.zeros(world)], [inputs[0], torch.zeros(1)]
        )
    # A lazily conjugated input and output.
    lazy = torch.complex(torch.ones(4) * rank, torch.ones(4)).to(device()).conj()
    gathered = torch.zeros(4 * world, dtype=torch.complex64).to(device())
    backend()._allgather_base(gathered, lazy).wait()
    assert gathered.cpu()[::4].tolist() == [complex(r, -1) for r in range(world)]


def test_coalesced(either):
    either(2, coalesced)


def many_in_flight() -> None:
    """Several operations at once, on two streams of the caller; inputs and some outputs are dropped
    at once."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kept = []
    for i in range(60):
        ops().use_stream(i % 2)
        size = i * 977 % 20_000
        output = torch.zeros(world * size, dtype=torch.int32).to(device())
        mine = upload(content(rank, size, torch.int32, i))
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        del mine
        if i % 3:
            kept.append((i, size, work, output))
    for i, size, work, output in reversed(kept):
        ops().use_stream(3 + i % 2)
        assert work.wait()
        check(output, torch.cat(blocks(size, torch.int32, i)), i)
    ops().use_stream(0)
    dist.barrier()


def test_many_in_flight(either):
    either(3, many_in_flight)


def late_source(size: int) -> None:
    """Operations wait for work that the caller's stream has not reached yet, small operations too,
    and do not hold back those posted before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    early = torch.zeros(world * size).to(device())
    first = dist.all_gather_into_tensor(
        early, upload(content(rank, size, torch.float32, 1)), async_op=True
    )
    if rank == 0:
        ops().hold()
    mine = (
        upload_held(content(rank, size, torch.float32, 2))
        if rank == 0
        else upload(content(rank, size, torch.float32, 2))
    )
    output = torch.zeros(world * size).to(device()) if rank else early.new_empty(world * size)
    work = dist.all_gather_into_tensor(output, mine, async_op=True)
    if rank == 0:
        store().set("posted", "1")
        store().wait(["first is complete"])
        assert not work.is_completed()
        ops().release()
    else:
        first.wait(timedelta(seconds=30))
        store().wait(["posted"])
        with pytest.raises(dist.DistBackendError, match="gave up"):
            work.wait(timedelta(milliseconds=20))
        store().set("first is complete", "1")
    work.wait()
    check(output, torch.cat(blocks(size, torch.float32, 2)), "second")
    first.wait()
    check(early, torch.cat(blocks(size, torch.float32, 1)), "first")
    until(work.is_completed, "the operation's end")
    assert work.is_success()


@pytest.mark.parametrize("size", [100, 200_000])
@pytest.mark.parametrize("algorithm", ["multicast", "ring"])
def test_late_source(either, size, algorithm):
    either(2, late_source, size, options={"algorithm": algorithm})


def wait_first() -> None:
    """wait() returns, and later kernels are enqueued, before the root has even posted."""
    rank = dist.get_rank()
    expected = content(0, 100_000, torch.float32)
    if rank == 0:
        store().wait(["rank 1 waits no more"])
        dist.broadcast(upload(expected), 0)
        dist.barrier()
        return
    tensor = torch.zeros(100_000).to(device())
    work = dist.broadcast(tensor, 0, async_op=True)
    future = work.get_future()

    def kernel(done: Any) -> torch.Tensor:
        ops().flip(done.value()[0], BEFORE)
        return done.value()[0]

    seen = future.then(kernel)
    assert future.done() and work.wait()
    seen.wait()
    ops().flip(tensor, AFTER)
    assert not work.is_completed()
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    store().set("rank 1 waits no more", "1")
    assert_same(tensor.cpu(), flipped(expected, AFTER ^ BEFORE))
    assert work.wait(timedelta(seconds=30)) and work.is_completed() and work.is_success()
    dist.barrier()


def future_last() -> None:
    """Without a gate the future completes when the network is done, and its value is ready then."""
    rank = dist.get_rank()
    expected = content(0, 100_000, torch.float32)
    if rank == 0:
        store().wait(["posted"])
        dist.broadcast(upload(expected), 0)
        return
    tensor = torch.zeros(100_000).to(device())
    work = dist.broadcast(tensor, 0, async_op=True)
    future = work.get_future()
    assert not future.done() and not work.is_completed()
    store().set("posted", "1")
    value = future.wait()
    check(value[0], expected, "future")
    assert work.wait()


def test_wait_does_not_block(gated):
    gated(2, wait_first)


def test_future_without_gate(hosted):
    hosted(2, future_last)


def test_host_wait_is_a_choice(gated):
    gated(2, future_last, options={"device_wait": "host"})


def overlap() -> int:
    """A piece reaches the other rank's device before the next has left the root's."""
    rank = dist.get_rank()
    expected = content(0, 512 << 10, torch.uint8)
    allow, copies = ops().allow, ops().copies
    if rank == 0:
        before = copies(TO_HOST)
        tensor = upload(expected)
        allow(TO_HOST, 1)
        work = dist.broadcast(tensor, 0, async_op=True)
        for piece in range(1, 8):
            store().wait([f"piece {piece} is there"])
            assert copies(TO_HOST) - before == piece
            allow(TO_HOST, 1)
        allow(TO_HOST, -1)
    else:
        tensor = torch.zeros(512 << 10, dtype=torch.uint8).to(device())
        before = copies(TO_DEVICE)
        work = dist.broadcast(tensor, 0, async_op=True)
        for piece in range(1, 8):
            until(lambda n=piece: copies(TO_DEVICE) - before >= n, f"piece {piece}", pause_s=0)
            assert copies(TO_DEVICE) - before == piece
            known = piece * (64 << 10)
            assert_same(ops().peek(tensor, known), expected[:known])
            store().set(f"piece {piece} is there", "1")
    work.wait()
    check(tensor, expected, "whole")
    return copies(TO_DEVICE)


@pytest.mark.fake_device("it counts copies and lets them go one by one")
@pytest.mark.parametrize("algorithm", ["multicast", "ring"])
def test_overlap(either, algorithm):
    either(2, overlap, options={"segment": 64 << 10, "chunk": 1024, "algorithm": algorithm})


def peer_fails(how: str, gate: bool) -> str:
    """Rank 1 ends while its source is being copied: rank 0 neither hangs nor misses the error."""
    rank = dist.get_rank()
    size = 1 << 20
    output = torch.zeros(2 * size, dtype=torch.uint8).to(device())
    mine = upload(content(rank, size, torch.uint8))
    if rank == 1:
        ops().stall()
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        store().wait(["rank 0 waits"])
        if how == "dies":
            os._exit(3)
        backend().abort()
        ops().go_on()
    else:
        work = dist.all_gather_into_tensor(output, mine, async_op=True)
        if gate:
            assert work.wait()
            ops().flip(output, AFTER)
        store().set("rank 0 waits", "1")
    with pytest.raises(dist.DistBackendError) as caught:
        work.wait(timedelta(seconds=50))
    ops().synchronize()
    torch_mcast.clear_failure()  # of device_failure=raise
    with pytest.raises(dist.DistBackendError, match="failed earlier"):
        dist.all_gather_into_tensor(output, mine)
    with pytest.raises(dist.DistBackendError):
        work.wait()
    assert not work.is_success()
    until(work.is_completed, "the operation's end")
    return str(caught.value)


@pytest.mark.parametrize("policy", ["raise", "log"])  # abort: test_device_failures.py
def test_peer_aborts(either, policy):
    texts = either(2, peer_fails, "aborts", either.gate, options={"device_failure": policy})
    for text in texts:
        check_error(text, "aborted", rank=1, reason="abort() on rank 1")


@pytest.mark.parametrize("policy", ["raise", "log"])
def test_peer_dies(either, policy):
    with pytest.raises(RankError) as caught:
        either(2, peer_fails, "dies", either.gate, options={"device_failure": policy})
    assert "died with 3" in str(caught.value) and "rank 0 of" not in str(caught.value)


@pytest.mark.parametrize("how, code", [("returns", 0), ("raises", 7)])
def test_exit_while_a_stream_waits(gated, tmp_path, how, code):
    script = fake_device.FOLDER / "exit_script.py"
    folders = [
        str(fake_device.FOLDER.parent),
        *sys.path,
    ]  # torch_mcast from where this process has it
    env = {
        **os.environ,
        "MCAST_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
    }
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(script),
                gated.device,
                gated.library,
                str(rank),
                str(tmp_path / "store"),
                how,
            ],
            env=env,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ranks[1].wait(timeout=60)  # while rank 0 still exists
        for rank in ranks:
            _, errors = rank.communicate(timeout=60)
            assert rank.returncode == code, errors
            assert "Traceback" not in errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def no_fallback() -> None:
    tensor = upload(content(0, 10, torch.float32))
    with pytest.raises(NotImplementedError, match="no fallback backend for that device"):
        dist.all_to_all_single(torch.zeros(10).to(device()), tensor)
    with pytest.raises(ValueError, match=f"must be on {device()}:0"):
        dist.all_gather_into_tensor(torch.zeros(20), tensor)
    dist.barrier()


def test_no_fallback(either):
    either(2, no_fallback)
