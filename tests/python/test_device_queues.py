"""Streams that share hardware queues, as with CUDA_DEVICE_MAX_CONNECTIONS: a stream that waits at a
gate blocks all commands behind it in its queue. On the fake device, whose streams share as many
queues as its environment says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import device_ranks
import devices
import pytest
import test_device
import test_device_messages
import test_device_reduce
import torch
import torch.distributed as dist
from contents import content
from device_ranks import PIECES, check, device, new_group, ops, store, upload
from ranks import Pool

library = device_ranks.library
QUEUES = [1, 8, 32]
CALLS = [
    test_device.all_gather_into_tensor,
    test_device.many_in_flight,
    test_device_messages.in_any_order,
    test_device_messages.ring,
    test_device_reduce.every_reduction,
]


@pytest.fixture(scope="module", params=QUEUES)
def queues(request, library) -> Iterator[tuple[int, Pool]]:
    pool = Pool({"FAKE_DEVICE_QUEUES": str(request.param)})
    pool.run(2, devices.take, "fake", library, True, store="none", limit_s=240)
    yield request.param, pool
    pool.close()


def blocks(wait: str) -> bool:
    """Returns whether wait() blocks rank 1 until rank 0 has posted."""
    group = new_group(device_wait=wait, **PIECES)
    tensor = upload(content(0, 9000, torch.float32))
    if dist.get_rank() == 0:
        store().wait(["rank 1 has posted"])
        dist.broadcast(tensor, 0, group=group)
        return False
    gates = ops().gates()
    target = torch.zeros(9000).to(device())
    work = dist.broadcast(target, 0, group=group, async_op=True)
    blocking = ops().gates() == gates or not work.get_future().done()
    store().set("rank 1 has posted", "1")
    work.wait(timedelta(seconds=40))
    check(target, content(0, 9000, torch.float32), wait)
    return blocking


def test_auto_blocks_where_one_queue_is_all(queues):
    count, pool = queues
    run = {"backend": "cpu:mcast,fake:mcast"}
    for _ in range(2):  # the trial, and its result
        assert pool.run(2, blocks, "auto", **run)[1] == (count == 1)
    assert not pool.run(2, blocks, "stream", **run)[1]
    assert pool.run(2, blocks, "host", **run)[1]


def in_the_gate(count: int, number: int, wait: str) -> bool:
    """Returns whether `make test` runs CALLS[number] so: always with one queue, where a stream that
    waits blocks all others, else in turn with each number of queues and each wait."""
    return count == 1 or (count, wait) == ((8, "stream"), (32, "auto"))[number % 2]


@pytest.mark.parametrize(
    ("queues", "call", "wait"),
    [
        pytest.param(
            *(count, call, wait),
            marks=[] if in_the_gate(count, number, wait) else [pytest.mark.all_tier],
            id=f"{count}-{call.__name__}-{wait}",
        )
        for count in QUEUES
        for number, call in enumerate(CALLS)
        for wait in ("auto", "stream")
    ],
    indirect=["queues"],
)
def test_operations_are_right_and_end(queues, call, wait):
    _, pool = queues
    arguments = [1] if call is test_device_messages.in_any_order else []
    pool.run(
        2, call, *arguments, backend="cpu:mcast,fake:mcast", options=PIECES | {"device_wait": wait}
    )
