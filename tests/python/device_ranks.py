"""What the tests of device tensors share: ranks on the fake device (fake_device/), and tensors there that are
only right if everybody waits for what he has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fake_device
import pytest
import torch
import torch.distributed as dist
from contents import assert_same, bits, content
from ranks import Pool

BEFORE, AFTER = 0x5A, 0x33  # what kernels before and after an operation do to every byte
PIECES = {"segment": 4096}  # up to 64 pieces
BACKEND = "cpu:mcast,fake:mcast"


@pytest.fixture(scope="module")
def library() -> str:
    return fake_device.build()


@pytest.fixture(scope="module")
def device_pool() -> Iterator[Pool]:
    """Workers of its own: a process with an accelerator is another one for the rest of the tests."""
    workers = Pool()
    yield workers
    workers.close()


def load(library: str, gate: bool) -> None:
    fake_device.load(library, gate)


def runner(pool: Pool, library: str, gate: bool) -> Callable[..., list[Any]]:
    def run(world: int, function: Callable[..., Any], *args: Any, **more: Any) -> list[Any]:
        pool.run(world, load, library, gate, store="none")
        options = {**PIECES, **more.pop("options", {})}
        return pool.run(world, function, *args, backend=BACKEND, options=options, **more)

    return run


@pytest.fixture(params=[True, False], ids=["gate", "host"])
def either(request, device_pool, library):
    return runner(device_pool, library, request.param)


@pytest.fixture
def gated(device_pool, library):
    return runner(device_pool, library, True)


@pytest.fixture
def hosted(device_pool, library):
    return runner(device_pool, library, False)


def ops() -> Any:
    return torch.ops.fake_device


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device("fake"))


def flipped(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return (bits(tensor) ^ value).view(tensor.dtype).view(tensor.shape)


def upload(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` on the device, once the kernel that this enqueues has run."""
    there = flipped(tensor, BEFORE).to("fake")
    ops().flip(there, BEFORE)
    return there


def upload_held(tensor: torch.Tensor) -> torch.Tensor:
    """upload() while the current stream is held: a blocking copy would wait for it."""
    before = ops().use_stream(7)
    there = flipped(tensor, BEFORE).to("fake")
    ops().synchronize()
    ops().use_stream(before)
    ops().flip(there, BEFORE)
    return there


def check(there: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """A kernel enqueued now must see `expected`."""
    if there.is_contiguous():
        ops().flip(there, AFTER)
        expected = flipped(expected, AFTER)
    assert_same(there.cpu(), expected, what)


def blocks(size: int, dtype: torch.dtype, salt: int) -> list[torch.Tensor]:
    return [content(r, size, dtype, salt) for r in range(dist.get_world_size())]


def finish(work: Any, asynchronous: bool) -> None:
    if asynchronous:
        assert work.wait() is True
    else:
        assert work is None
