"""Features of DDP, FSDP2 and related modules that training scripts use: losses and parameters equal
Gloo's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training_jobs import Tensors, calls, compare_with_gloo

SHARDED = ("all_gather_into_tensor", "reduce_scatter_tensor")
REPLICATED = ("broadcast", "all_reduce")
REDUCTIONS = {"all_reduce", "reduce_scatter_tensor"}


class Net(nn.Module):
    """Layers that can be skipped, checkpointed, and sharded one by one."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(33, 64), nn.Linear(64, 7)
        self.middle = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, inputs: torch.Tensor, skipped: int = -1) -> torch.Tensor:
        hidden = self.first(inputs).relu()
        for number, layer in enumerate(self.middle):
            if number == skipped:
                continue
            if self.checkpointed:
                hidden = checkpoint(layer, hidden, use_reentrant=False).relu()
            else:
                hidden = layer(hidden).relu()
        return self.last(hidden)


def batch() -> torch.Tensor:
    return torch.randn(16, 33)


def seed_of_rank() -> None:
    torch.manual_seed(100 + dist.get_rank())


def whole(net: nn.Module) -> Tensors:
    parameters = {}
    for name, parameter in net.named_parameters():
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        parameters[name] = full.detach().clone()
    return parameters


def sharded(net: Net) -> Net:
    for layer in (net.first, *net.middle, net.last):
        fully_shard(layer)
    return fully_shard(net)


def train(net: nn.Module, steps: int = 3, passes: int = 1, sync: Any = None) -> Tensors:
    """Runs `steps` optimizer steps of `passes` backward passes each. `sync(loss, last)` runs the backward pass."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    seed_of_rank()
    losses = []
    for _ in range(steps):
        for number in range(passes):
            inputs = batch()
            if sync is None:
                loss = net(inputs).square().mean()
                loss.backward()
            else:
                loss = sync(inputs, number == passes - 1)
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": torch.stack(losses), **whole(net)}


def reductions() -> int:
    return sum(count for name, count in calls("engine").items() if name in REDUCTIONS)


def accumulate_ddp() -> Tensors:
    net = DistributedDataParallel(Net())

    def backward(inputs: torch.Tensor, last: bool) -> torch.Tensor:
        before = reductions()
        if last:
            loss = net(inputs).square().mean()
            loss.backward()
        else:
            with net.no_sync():
                loss = net(inputs).square().mean()
                loss.backward()
        assert dist.get_backend() == "gloo" or (reductions() > before) == last
        return loss

    return train(net, passes=3, sync=backward)


def accumulate_fsdp2(reshard: bool) -> Tensors:
    net = sharded(Net())

    def backward(inputs: torch.Tensor, last: bool) -> torch.Tensor:
        before = reductions()
        net.set_requires_gradient_sync(last)
        net.set_reshard_after_backward(last or reshard)
        loss = net(inputs).square().mean()
        loss.backward()
        assert dist.get_backend() == "gloo" or (reductions() > before) == last
        return loss

    return train(net, passes=3, sync=backward)


def unused_parameters() -> Tensors:
    """The ranks skip different layers in each step."""
    net = DistributedDataParallel(Net(), find_unused_parameters=True)
    steps = iter(range(100))

    def backward(inputs: torch.Tensor, last: bool) -> torch.Tensor:
        loss = net(inputs, skipped=(next(steps) + dist.get_rank()) % 3).square().mean()
        loss.backward()
        return loss

    return train(net, steps=4, sync=backward)


def checkpoint_ddp(static_graph: bool) -> Tensors:
    return train(DistributedDataParallel(Net(checkpointed=True), static_graph=static_graph))


def static_graph() -> Tensors:
    return train(DistributedDataParallel(Net(), static_graph=True))


def checkpoint_fsdp2() -> Tensors:
    return train(sharded(Net(checkpointed=True)))


def uneven_inputs() -> Tensors:
    """Rank 1 runs out of batches first and shadows the collectives of rank 0."""
    net = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-2)
    seed_of_rank()
    losses = []
    with Join([net, optimizer]):
        for _ in range(3 + 2 * (1 - dist.get_rank())):
            losses.append(net(batch()).square().mean())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": torch.stack(losses).detach(), **whole(net)}


def zero_redundancy(as_view: bool) -> Tensors:
    """Also collects the optimizer's state on rank 0, as a checkpoint would."""
    net = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(
        net.parameters(), torch.optim.AdamW, parameters_as_bucket_view=as_view, lr=1e-2
    )
    seed_of_rank()
    for _ in range(3):
        net(batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    results = whole(net)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        for number, state in optimizer.state_dict()["state"].items():
            results |= {f"{number}.{name}": value.clone() for name, value in state.items()}
        assert len(results) > len(whole(net))
    return results


CASES: dict[str, tuple[Any, ...]] = {
    "ddp_no_sync": (REPLICATED, accumulate_ddp),
    "fsdp2_without_gradient_sync": (SHARDED, accumulate_fsdp2, True),
    "fsdp2_without_gradient_sync_unsharded": (SHARDED, accumulate_fsdp2, False),
    "ddp_unused_parameters": (REPLICATED, unused_parameters),
    "ddp_static_graph": (REPLICATED, static_graph),
    "ddp_checkpoint": (REPLICATED, checkpoint_ddp, False),
    "ddp_checkpoint_static_graph": (REPLICATED, checkpoint_ddp, True),
    "fsdp2_checkpoint": (SHARDED, checkpoint_fsdp2),
    "join": (REPLICATED, uneven_inputs),
    "zero_redundancy": (REPLICATED, zero_redundancy, False),
    "zero_redundancy_bucket_view": (REPLICATED, zero_redundancy, True),
}


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_training_equals_gloo(ranks, name):
    first, second = compare_with_gloo(ranks, *CASES[name])
    assert all(torch.equal(first[p], second[p]) for p in first if "weight" in p or "bias" in p)
    if "losses" in first and name != "join":
        assert not torch.equal(first["losses"], second["losses"])


def gradients_of_no_rank() -> str:
    """A DDP step in which a parameter got no gradient, without find_unused_parameters: the next step fails."""
    net = DistributedDataParallel(Net())
    with pytest.raises(RuntimeError) as raised:
        for _ in range(2):
            net(batch(), skipped=1).square().mean().backward()
    return str(raised.value)


def test_unused_parameters_without_the_flag_give_gloo_s_error(ranks):
    ours, theirs = ranks(2, gradients_of_no_rank), ranks(2, gradients_of_no_rank, backend="gloo")
    assert ours == theirs and "Expected to have finished reduction" in ours[0]


def sync_batch_norm() -> list[str]:
    """DDP and the layer's forward pass take accelerator modules only (torch 2.13)."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    texts = []
    for call in (lambda: DistributedDataParallel(net), lambda: net(torch.ones(3, 4))):
        with pytest.raises(ValueError, match="SyncBatchNorm") as raised:
            call()
        texts.append(str(raised.value))
    dist.barrier()  # the group is still usable
    return texts


def test_sync_batch_norm_on_cpu_gives_gloo_s_error(ranks):
    assert ranks(2, sync_batch_norm) == ranks(2, sync_batch_norm, backend="gloo")
