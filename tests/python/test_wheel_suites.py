"""Components of frameworks, on groups of two dimensions: each gives the same as with Gloo, or as in
one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from contents import assert_same
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torch_mcast
from torch_mcast import secret

WORLD = 4


def model(width: int = 16) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 12, bias=False), nn.Linear(12, 4)
    )


def train(net: nn.Module, data_rank: int, steps: int = 2) -> Any:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(40 + data_rank)
    for _ in range(steps):
        net(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def whole(net: nn.Module) -> dict[str, torch.Tensor]:
    options = StateDictOptions(full_state_dict=True)
    return {name: t.clone() for name, t in get_model_state_dict(net, options=options).items()}


def mesh(*names: str) -> DeviceMesh:
    shape = (2, 2) if len(names) == 2 else (WORLD,)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def hybrid(low: bool) -> dict[str, torch.Tensor]:
    """HSDP: parameters are sharded on one dimension, replicated on the other."""
    net, grid = model(), mesh("replicate", "shard")
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if low else MixedPrecisionPolicy()
    fully_shard(net[2], mesh=grid, mp_policy=policy)
    fully_shard(net, mesh=grid, mp_policy=policy)
    train(net, dist.get_rank())
    return whole(net)


def offloaded() -> dict[str, torch.Tensor]:
    net = model()
    fully_shard(net, mesh=mesh("shard"), offload_policy=CPUOffloadPolicy(pin_memory=False))
    train(net, dist.get_rank())
    return whole(net)


def tensor_parallel() -> dict[str, torch.Tensor]:
    """Tensor parallel on one dimension of the mesh, FSDP2 on the other."""
    grid = mesh("data", "tensor")
    net = parallelize_module(
        model(), grid["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    fully_shard(net, mesh=grid["data"])
    train(net, grid["data"].get_local_rank())
    return whole(net)


def tensors() -> dict[str, torch.Tensor]:
    """DTensor: every conversion from one placement to another."""
    grid = mesh("a", "b")
    torch.manual_seed(9)
    full = torch.randn(12, 8)
    found = {}
    placements = [Shard(0), Shard(1), Replicate()]
    for first in placements:
        for second in placements:
            mine = distribute_tensor(full, grid, [first, second])
            for other in placements:
                moved = mine.redistribute(grid, [other, first])
                key = f"{first} {second} {other}"
                found[key] = moved.full_tensor()
                assert_same(found[key], full, key)
    left = distribute_tensor(full, grid, [Shard(1), Replicate()])
    right = distribute_tensor(full.T.contiguous(), grid, [Shard(0), Replicate()])
    product = (left @ right).full_tensor()
    torch.testing.assert_close(product, full @ full.T)
    return found


CASES = {
    "hybrid": (hybrid, False),
    "hybrid in bfloat16": (hybrid, True),
    "offloaded": (offloaded,),
    "tensor parallel": (tensor_parallel,),
    "tensors": (tensors,),
}


SLOW = {"hybrid in bfloat16", "offloaded"}  # adds no code to the others'


def tiers(names: Any) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.all_tier] if n in SLOW else []) for n in names]


@pytest.mark.parametrize("name", tiers(CASES))
def test_parity_with_gloo(ranks, name):
    ours = ranks(WORLD, *CASES[name])
    theirs = ranks(WORLD, *CASES[name], backend="gloo")
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.keys() == reference.keys() and mine
        for key, value in mine.items():
            # Gloo adds in another order.
            torch.testing.assert_close(value, reference[key], rtol=1e-5, atol=1e-6)


def guarded(mode: str, function: Any, *args: Any) -> Any:
    found = function(*args)
    told = torch_mcast.stats()
    assert told["security"]["mode"] == mode and told["path"] in ("multicast", "ring"), told
    assert told["security"]["sealed"] > 0 and not told["failure"]
    return found


def modes(names: Any) -> list[Any]:
    """Both modes of each; all but one in the slow tier: they do the same as without a guard."""
    kept = ("hybrid", "sealed")
    cases = [(name, mode) for name in names for mode in ("auth", "sealed")]
    return [pytest.param(*c, marks=[] if c == kept else [pytest.mark.all_tier]) for c in cases]


@pytest.mark.parametrize(("name", "mode"), modes(CASES))
def test_a_guard_changes_no_bit(ranks, tmp_path, name, mode):
    path = tmp_path / "secret"
    path.write_text(secret.new())
    path.chmod(0o600)
    env = {"MCAST_SECURITY": mode, "MCAST_SECRET_FILE": str(path)}
    ours = ranks(WORLD, guarded, mode, *CASES[name], env=env)
    theirs = ranks(WORLD, *CASES[name])
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.keys() == reference.keys() and mine
        for key, value in mine.items():
            assert_same(value, reference[key], key)


def saved(folder: str, asynchronous: bool) -> None:
    """A checkpoint of four ranks is read by four other ranks of another mesh."""
    net = model()
    fully_shard(net, mesh=mesh("shard"))
    optimizer = train(net, dist.get_rank())
    states = get_state_dict(net, optimizer)
    state = {"model": states[0], "optimizer": states[1], "step": 17}
    if asynchronous:
        checkpoint.async_save(state, checkpoint_id=folder).result()
    else:
        checkpoint.save(state, checkpoint_id=folder)
    before = whole(net)
    other = model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    fully_shard(other, mesh=mesh("replicate", "shard"))
    second = torch.optim.AdamW(other.parameters(), lr=1e-2)
    states = get_state_dict(other, second)
    state = {"model": states[0], "optimizer": states[1], "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(
        other, second, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    assert state["step"] == 17
    for name, value in whole(other).items():
        assert_same(value, before[name], name)


@pytest.mark.parametrize(
    "asynchronous",
    [pytest.param(False, marks=pytest.mark.all_tier), True],
    ids=["save", "async_save"],
)
def test_checkpoints(ranks, tmp_path, asynchronous):
    backend = "cpu:mcast" if asynchronous else "mcast"
    ranks(WORLD, saved, str(tmp_path), asynchronous, backend=backend)
    assert (Path(tmp_path) / ".metadata").exists()


def objects() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (1000 * rank), "tensor": torch.arange(rank + 1)}
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, mine)
    for r, other in enumerate(gathered):
        assert (other["rank"], len(other["text"])) == (r, 1000 * r)
        assert_same(other["tensor"], torch.arange(r + 1), r)
    at_root: list[Any] | None = [None] * world if rank == 2 else None
    dist.gather_object(mine["text"], at_root, dst=2)
    if at_root is not None:
        assert [len(text) for text in at_root] == [1000 * r for r in range(world)]
    sent = [{"a": 1}, "b", None] if rank == 1 else [None] * 3
    dist.broadcast_object_list(sent, src=1)
    assert sent == [{"a": 1}, "b", None]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [("to", r) for r in range(world)] if rank == 0 else None, src=0)
    assert got == [("to", rank)]
    if rank == 0:
        dist.send_object_list(["hello", 3], dst=3)
    elif rank == 3:
        received: list[Any] = [None, None]
        assert dist.recv_object_list(received, src=0) == 0
        assert received == ["hello", 3]


def test_objects(ranks):
    ranks(WORLD, objects)


def pipelined(kind: str) -> dict[str, torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    layers = [nn.Linear(6, 6) for _ in range(world)]
    alone = nn.Sequential(*copy.deepcopy(layers))
    stage = PipelineStage(layers[rank], rank, world, torch.device("cpu"))
    schedule = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[kind](
        stage, n_microbatches=4, loss_fn=nn.MSELoss()
    )
    torch.manual_seed(12)
    inputs, target = torch.randn(8, 6), torch.randn(8, 6)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(inputs)
    elif rank == world - 1:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    nn.functional.mse_loss(alone(inputs), target).backward()
    for mine, reference in zip(layers[rank].parameters(), alone[rank].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, reference.grad, rtol=1e-4, atol=1e-6)
    if rank == world - 1:
        assert len(losses) == 4
    return {}


@pytest.mark.parametrize("kind", ["1F1B", pytest.param("GPipe", marks=pytest.mark.all_tier)])
def test_pipelines(ranks, kind):
    ranks(3, pipelined, kind)
