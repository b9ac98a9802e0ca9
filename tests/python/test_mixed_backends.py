"""Groups of several devices, each with its own backend, as torchtitan and Megatron create them:
here the CPU's is mcast, and an accelerator (fake_device/) has another one. Both get the same
pg_options."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import device_ranks
import fake_device
import pytest
import torch
import torch.distributed as dist
from contents import assert_same
from torch import nn
from torch._C._distributed_c10d import Backend, FakeProcessGroup
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_mcast
from torch_mcast._stats import backend_of

library, device_pools = device_ranks.library, device_ranks.device_pools

# The devices in both orders.
ORDERS = ["cpu:mcast,fake:dummy", "fake:dummy,cpu:mcast"]
CREATED: list[tuple[list[int], Any]] = []  # members and options of the dummy's groups


def create_dummy(group: Any, options: Any) -> Any:
    CREATED.append((list(group.global_ranks_in_group), options))
    return FakeProcessGroup._create_internal(group.group_rank, group.group_size)


def create_plain(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Creates a backend through torch's older interface; torch's debug mode can wrap this one."""
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def load(library: str) -> None:
    """Loads the accelerator, and its backends."""
    fake_device.load(library, False)
    if "DUMMY" not in dist.Backend._plugins:
        dist.Backend.register_backend("dummy", create_dummy, extended_api=True, devices=["fake"])
        dist.Backend.register_backend("plain", create_plain, devices=["fake"])


@pytest.fixture
def mixed(device_pools, library) -> Callable[..., list[Any]]:
    """Returns the same as `ranks`, in processes that have the accelerator."""

    def run(world: int, function: Callable[..., Any], *args: Any, backend: str) -> list[Any]:
        device_pools["fake"].run(world, load, library, store="none")
        return device_pools["fake"].run(world, function, *args, backend=backend)

    return run


def nccl_options() -> Backend.Options:
    """Returns an object of NCCL's class, or of a substitute if this torch has none."""
    there = getattr(distributed_c10d, "ProcessGroupNCCL", None)
    if there is not None:
        return there.Options(is_high_priority_stream=True)

    class Options(Backend.Options):
        def __init__(self) -> None:
            super().__init__("nccl", timedelta(seconds=600))
            self.is_high_priority_stream = True

    return Options()


def settings(group: dist.ProcessGroup) -> dict[str, Any]:
    options = backend_of(group).options
    names = [name for name in dir(options) if not name.startswith("_")]
    told = {name: getattr(options, name) for name in names if name not in ("group_name", "nccl")}
    return {name: value for name, value in told.items() if not callable(value)}


def reduces(group: dist.ProcessGroup) -> None:
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(dist.get_world_size())] * 5
    assert torch_mcast.stats(group)["calls"]["all_reduce"] == {"engine": 1, "fallback": 0}


def foreign_options(backend: str) -> None:
    """Options of another backend do not concern mcast, and their backend gets them unchanged."""
    limit = timedelta(seconds=41)
    without = settings(dist.new_group(backend=backend, timeout=limit))
    for theirs in (nccl_options(), FakeProcessGroup.Options(), dist.ProcessGroupGloo._Options()):
        CREATED.clear()
        group = dist.new_group(backend=backend, timeout=limit, pg_options=theirs)
        assert settings(group) == without and without["timeout"] == limit
        nccl = theirs if hasattr(theirs, "is_high_priority_stream") else None
        assert backend_of(group).options.nccl is nccl
        if "dummy" in backend:
            assert len(CREATED) == 1 and CREATED[0][1] is theirs
        reduces(group)
    ours = torch_mcast.Options(fallback="none")
    group = dist.new_group(backend=backend, timeout=limit, pg_options=ours)
    assert settings(group) == {**without, "fallback": "none"}
    reduces(group)


@pytest.mark.parametrize("backend", ORDERS)
def test_options_of_the_other_backend_mean_none(mixed, backend):
    mixed(2, foreign_options, backend, backend=backend)


def options_of_both(backend: str) -> None:
    theirs = nccl_options()
    given = torch_mcast.options_by_backend(
        {"mcast": torch_mcast.Options(eager="16K"), "dummy": theirs}
    )
    assert isinstance(given, type(theirs)) and given.is_high_priority_stream
    CREATED.clear()
    group = dist.new_group(backend=backend, pg_options=given)
    assert CREATED[0][1] is given
    assert backend_of(group).options.settings == {"eager": "16K"}
    reduces(group)


@pytest.mark.parametrize("backend", ORDERS)
def test_each_backend_takes_its_own_of_options_for_both(mixed, backend):
    mixed(2, options_of_both, backend, backend=backend)


@pytest.mark.parametrize("backend", ["mcast", "cuda:mcast,cpu:mcast", "cuda:gloo,cpu:mcast"])
def test_options_of_nccl_mean_none(ranks, backend):
    """Without any accelerator, CUDA is not queried, as no data comes from there."""
    ranks(2, foreign_options, backend)


def each_has_its_own(backend: str) -> None:
    """Checks which backend has which device, in the default group and in others, in either order."""
    assert dist.get_backend_config() == backend
    for group in (dist.group.WORLD, dist.new_group(), dist.new_group(backend=backend)):
        assert group._get_backend(torch.device("cpu")).name() == "mcast"
        assert isinstance(group._get_backend(torch.device("fake")), FakeProcessGroup)
        dist.all_reduce(torch.ones(3).to("fake"), group=group)
        assert "all_reduce" not in torch_mcast.stats(group)["calls"]
        reduces(group)


@pytest.mark.parametrize("backend", ORDERS)
def test_each_device_has_its_backend(mixed, backend):
    mixed(2, each_has_its_own, backend, backend=backend)


def wrapped(backend: str) -> None:
    """Wraps each of them, as TORCH_DISTRIBUTED_DEBUG=DETAIL does."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(backend=backend)
        for device, name in (("cpu", "mcast"), ("fake", "gloo")):
            assert group._get_backend(torch.device(device)).wrapped_pg.name() == name
        reduces(group)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


@pytest.mark.parametrize("backend", ["cpu:mcast,fake:plain", "fake:plain,cpu:mcast"])
def test_each_device_has_its_backend_in_debug_mode(mixed, backend):
    mixed(2, wrapped, backend, backend="gloo")


def of_three() -> None:
    """Adds a third backend, torch's own. Up to torch 2.13 only torch creates it, before mcast."""
    late = "cpu:mcast,fake:dummy,cuda:gloo"
    orders = ["fake:dummy,cuda:gloo,cpu:mcast", "cuda:gloo,cpu:mcast,fake:dummy", late]
    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        expected = "mcast must be named last: name cuda:gloo before it"
        with pytest.raises(ValueError, match=expected):
            dist.new_group(backend=orders.pop())
    for order in orders:
        group = dist.new_group(backend=order)
        assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo), order
        assert isinstance(group._get_backend(torch.device("fake")), FakeProcessGroup), order
        reduces(group)


def test_three_backends(mixed):
    mixed(2, of_three, backend="gloo")


def trained() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trains CPU tensors with FSDP2, with the other calls of a training script. Returns losses and
    parameters."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 65), nn.ReLU(), nn.Linear(65, 7)
    )
    for layer in (net[0], net[2], net[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(4):
        loss = net(torch.randn(16, 33)).square().mean()
        loss.backward()
        losses.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM, group=mesh.get_group())
        losses.append(mean / mesh.size())
    dist.barrier()
    return losses, {name: p.full_tensor().detach() for name, p in net.named_parameters()}


def with_calls() -> tuple[Any, dict[str, Any], int]:
    found = trained()
    return found, torch_mcast.stats()["calls"], len(CREATED)


@pytest.mark.parametrize("backend", ORDERS)
def test_training_beside_an_accelerators_backend(mixed, backend):
    ours = mixed(2, with_calls, backend=backend)
    theirs = mixed(2, trained, backend=backend.replace("mcast", "gloo"))
    for (mine, calls, created), reference in zip(ours, theirs, strict=True):
        assert created > 0  # the accelerator's backend existed, too
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"):
            assert calls[name]["engine"] > 0 and calls[name]["fallback"] == 0, name
        assert len(mine[0]) == 8
        for number, (loss, other) in enumerate(zip(mine[0], reference[0], strict=True)):
            assert_same(loss, other, number)
        assert mine[1].keys() == reference[1].keys() and len(mine[1]) == 6
        for name, value in mine[1].items():
            assert_same(value, reference[1][name], name)
