"""FSDP2, FSDP1 and DDP: parameters after training steps are bit-identical to those with Gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from contents import assert_same
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_mcast

HELD: list[dist.ProcessGroup] = []


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 65, bias=False), nn.ReLU(), nn.Linear(65, 7)
    )


def train(net: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(16, 33)
        net(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp2(policy: str, factor: float | None) -> dict[str, torch.Tensor]:
    net = model()
    kinds = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    keywords = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if kinds[policy] is not None:
        keywords["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=kinds[policy], reduce_dtype=kinds[policy]
        )
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **keywords)
    fully_shard(net, **keywords)
    if factor is not None:
        for layer in net.modules():
            if hasattr(layer, "set_gradient_divide_factor"):
                layer.set_gradient_divide_factor(factor)
    train(net)
    return {name: p.full_tensor().detach() for name, p in net.named_parameters()}


def fsdp1() -> dict[str, torch.Tensor]:
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    train(net)
    with FullyShardedDataParallel.summon_full_params(net):
        return {name: p.detach().clone() for name, p in net.named_parameters()}


def ddp() -> dict[str, torch.Tensor]:
    net = DistributedDataParallel(model())
    train(net)
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def ddp_hook() -> dict[str, torch.Tensor]:
    """A communication hook: it chains on the future of an asynchronous all-reduce."""

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    net = DistributedDataParallel(model())
    net.register_comm_hook(None, hook)
    train(net)
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def ddp_powersgd() -> dict[str, torch.Tensor]:
    """A hook whose callbacks wait for operations that they post themselves."""
    net = DistributedDataParallel(model())
    # The hook's callbacks hold the group. With Gloo the last one to end may be on Gloo's own
    # thread, which then joins itself and aborts: so the test holds the group until the next run.
    HELD[:] = [dist.group.WORLD]
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(net, steps=5)
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def run(function, *args) -> tuple[dict, dict]:
    parameters = function(*args)
    used = dist.get_backend()
    return parameters, torch_mcast.stats()["calls"] if used == "mcast" else {}


CASES = {
    "fsdp2_fp32": (fsdp2, "fp32", None),
    "fsdp2_bf16": (fsdp2, "bf16", None),
    "fsdp2_fp16": (fsdp2, "fp16", None),
    "fsdp1": (fsdp1,),
    "ddp": (ddp,),
    "ddp_hook": (ddp_hook,),
    "ddp_powersgd": (ddp_powersgd,),
}
ENGINE_CALLS = {"fsdp2": "all_gather_into_tensor", "fsdp1": "all_gather", "ddp": "broadcast"}


def assert_parity(ours, theirs):
    """Checks that two runs have trained the same values, bit for bit."""
    for (mine, _), (reference, _) in zip(ours, theirs, strict=True):
        assert mine.keys() == reference.keys() and len(mine) == 5
        for parameter in mine:
            assert_same(mine[parameter], reference[parameter], parameter)


@pytest.mark.parametrize("name", CASES)
def test_parity_with_gloo(ranks, name):
    ours = ranks(2, run, *CASES[name])
    assert_parity(ours, ranks(2, run, *CASES[name], backend="gloo"))
    for _, calls in ours:
        assert calls[ENGINE_CALLS[name.split("_")[0]]]["engine"] > 0


def test_fsdp2_with_a_divide_factor(ranks):
    """A custom factor is PREMUL_SUM, which Gloo itself refuses. 1/world equals AVG."""
    averaged = ranks(2, run, fsdp2, "fp32", None)
    divided = ranks(2, run, fsdp2, "fp32", 2.0)
    for (one, _), (other, _) in zip(averaged, divided, strict=True):
        for parameter in one:
            torch.testing.assert_close(one[parameter], other[parameter])
