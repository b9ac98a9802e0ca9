"""Shared by the tests of device tensors: ranks on a device (devices.py), and tensors there that are
only right if all streams and threads wait as they must. A module imports the fixtures and
pytest_generate_tests from here; a test that asks for `either`, `gated` or `hosted` then runs on the
fake device, and also on CUDA if torch has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import devices
import fake_device
import pytest
import torch
import torch.distributed as dist
from contents import assert_same, bits, content
from devices import device, ops
from ranks import Pool

import torch_mcast

BEFORE, AFTER = 0x5A, 0x33  # what kernels before and after an operation do to every byte
PIECES = {"segment": 4096}  # up to 64 pieces
# ROCm is excluded: it has no gate, and its driver is not the one that devices.Cuda calls.
GPU = torch.cuda.is_available() and torch.version.hip is None
DEVICES = ["fake", *(["cuda"] if GPU else [])]
# Environment of the ranks' processes. On CUDA a stream that waits blocks those that share its
# hardware queue, and by default there are eight queues (docs/device-tensors.md, Limits): a stream
# that a test holds must not block the streams that other work waits for.
ENVIRONMENTS = {"fake": {}, "cuda": {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}}
# With a gate (wait() makes the stream wait), without one (wait() blocks).
FIXTURES = {"either": (True, False), "gated": (True,), "hosted": (False,)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only_fake = metafunc.definition.get_closest_marker("fake_device")
    for fixture, gates in FIXTURES.items():
        if fixture not in metafunc.fixturenames:
            continue
        cases = [(name, gate) for name in (DEVICES[:1] if only_fake else DEVICES) for gate in gates]
        ids = [
            ("" if name == "fake" else f"{name}-") + ("gate" if gate else "host")
            for name, gate in cases
        ]
        metafunc.parametrize(fixture, cases, ids=ids, indirect=True)


@pytest.fixture(scope="module")
def library() -> str:
    return fake_device.library()


@pytest.fixture(scope="module")
def device_pools() -> Iterator[dict[str, Pool]]:
    """Separate workers for each device: a process with an accelerator behaves differently in all
    later tests, and one with two would take pinned memory of the wrong one. Workers of CUDA have an
    environment, so they are not forked."""
    pools = {name: Pool(ENVIRONMENTS[name]) for name in DEVICES}
    yield pools
    for pool in pools.values():
        pool.close()


@dataclass(frozen=True)
class Runner:
    """runner(world, function, *args, ...): see ranks.Pool.run."""

    device: str
    gate: bool
    library: str
    pool: Pool

    def __call__(
        self, world: int, function: Callable[..., Any], *args: Any, **more: Any
    ) -> list[Any]:
        chosen = self.device, self.library, self.gate
        # The limit is long because a process that is not forked has to import torch first, and to
        # find the GPU.
        self.pool.run(world, devices.take, *chosen, store="none", limit_s=240)
        options = {**PIECES, **more.pop("options", {})}
        env = more.pop("env", {})
        if self.device == "cuda":
            options = {**NO_FALLBACK, **options}
        # Set explicitly, since the trial of device_wait=auto may fail on a busy machine.
        env = {"MCAST_DEVICE_WAIT": "stream" if self.gate else "host", **env}
        backend = f"cpu:mcast,{self.device}:mcast"
        return self.pool.run(
            world, function, *args, backend=backend, options=options, env=env, **more
        )


def _runner(request: pytest.FixtureRequest, device_pools: dict[str, Pool]) -> Runner:
    name, gate = request.param
    library = request.getfixturevalue("library") if name == "fake" else ""
    return Runner(name, gate, library, device_pools[name])


@pytest.fixture
def either(request, device_pools):
    return _runner(request, device_pools)


@pytest.fixture
def gated(request, device_pools):
    return _runner(request, device_pools)


@pytest.fixture
def hosted(request, device_pools):
    return _runner(request, device_pools)


# For groups on CUDA. NCCL, which would reduce and send there, refuses two ranks that share a GPU;
# the fake device has no fallback anyway.
NO_FALLBACK = {"fallback": "none"}


def both() -> str:
    """Returns the backend of a group for tensors on the CPU and on the device."""
    return f"cpu:mcast,{device()}:mcast"


def new_group(ranks: list[int] | None = None, **options: Any) -> Any:
    return dist.new_group(
        ranks, backend=both(), pg_options=torch_mcast.Options(**NO_FALLBACK, **options)
    )


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def backend() -> Any:
    return dist.group.WORLD._get_backend(torch.device(device()))


def flipped(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return (bits(tensor) ^ value).view(tensor.dtype).view(tensor.shape)


def upload(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of `tensor` on the device, which is right once the kernel that this enqueues
    has run."""
    there = flipped(tensor, BEFORE).to(device())
    ops().flip(there, BEFORE)
    return there


def upload_held(tensor: torch.Tensor) -> torch.Tensor:
    """Does the same as upload() while the current stream is held: a blocking copy would wait for it."""
    before = ops().use_stream(7)
    there = flipped(tensor, BEFORE).to(device())
    ops().synchronize()
    ops().use_stream(before)
    ops().flip(there, BEFORE)
    return there


def check(there: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Checks that a kernel enqueued now sees `expected`."""
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
