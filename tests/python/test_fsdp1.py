"""FSDP1 compared with Gloo: two ranks that train alike have the same losses, parameters, gradients,
state dicts and states of the optimizer, to the last bit, and a later job of either backend
continues from the state that one of mcast has saved.

Features that FSDP1 lacks for CPU tensors, whatever the backend (torch 2.13), are left out:
`CPUOffload` pins memory, which takes an accelerator; `sync_module_states` refuses CPU tensors;
`offload_to_cpu` of full state dicts takes CPU memory for its own copy, so that parameters are freed
and states of the optimizer overwritten before they are read. It cannot load local state dicts with
`use_orig_params` on any device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from contents import assert_same, close
from torch import nn
from torch.distributed import checkpoint, distributed_c10d, fsdp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

import torch_mcast

Tensors = dict[str, torch.Tensor]
PARAMETERS = 16
SHARDS, COPIES = ("all_gather", "reduce_scatter_tensor"), ("all_reduce",)
STRATEGIES = {"FULL_SHARD": SHARDS, "SHARD_GRAD_OP": SHARDS, "NO_SHARD": COPIES}
KINDS: dict[str, tuple[Any, ...]] = {
    "full": (
        fsdp.StateDictType.FULL_STATE_DICT,
        fsdp.FullStateDictConfig(rank0_only=True),
        fsdp.FullOptimStateDictConfig(rank0_only=True, offload_to_cpu=False),
    ),
    "sharded": (fsdp.StateDictType.SHARDED_STATE_DICT,),
    "dtensor": (fsdp.StateDictType.SHARDED_STATE_DICT,),  # for a model with a mesh
    "local": (fsdp.StateDictType.LOCAL_STATE_DICT,),
}
USUAL = [("full", True), ("sharded", False), ("dtensor", True), ("local", False)]
MORE = [("full", False), ("sharded", True), ("dtensor", False)]
all_tier = pytest.mark.all_tier
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
original_or_flat = pytest.mark.parametrize("original", [True, False])


class Block(nn.Sequential):
    """The wrapped module. It has an odd number of elements, so that the last shard is padded."""


class Training:
    """A model of three FSDP instances, its optimizer, and data that every rank draws for itself."""

    def __init__(self, strategy: str = "FULL_SHARD", mesh=None, seed=3, **more: Any) -> None:
        torch.manual_seed(seed)
        blocks = (Block(nn.LayerNorm(33), nn.Linear(33, 600), nn.Linear(600, 33)) for _ in range(2))
        self.net = FSDP(
            nn.Sequential(nn.Linear(9, 33), *blocks, nn.Linear(33, 7)),
            sharding_strategy=fsdp.ShardingStrategy[strategy],
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("cpu"),
            device_mesh=init_device_mesh("cpu", mesh) if mesh else None,
            **more,
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        torch.manual_seed(100 + dist.get_rank())

    def loss(self) -> torch.Tensor:
        return self.net(torch.randn(16, 9)).float().square().mean()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps: int = 3) -> Tensors:
        """With the same data in every call."""
        torch.manual_seed(200 + dist.get_rank())
        losses = []
        for _ in range(steps):
            losses.append(self.loss())
            losses[-1].backward()
            self.step()
        return {"losses": torch.stack(losses).detach(), **self.whole()}

    def whole(self) -> Tensors:
        with FSDP.summon_full_params(self.net, writeback=False):
            return {name: p.detach().clone() for name, p in self.net.named_parameters()}


def calls(way: str) -> Counter[str]:
    """Returns the calls by operation, of all groups of this rank together; none with Gloo."""
    found: Counter[str] = Counter()
    for group in distributed_c10d._world.pg_names if dist.get_backend() == "mcast" else ():
        for name, counts in torch_mcast.stats(group)["calls"].items():
            found[name] += counts[way]
    return found


def counted(function: Any, *args: Any) -> tuple[Tensors, Counter[str], Counter[str]]:
    return function(*args), calls("engine"), calls("fallback")


def assert_equal(mine: Tensors, its: Tensors) -> None:
    assert mine.keys() == its.keys()
    for name in mine:
        assert_same(mine[name], its[name], name)


def compared(ranks: Any, world: int, used: tuple[str, ...], *job: Any) -> list[Tensors]:
    """Returns the results of the ranks: the engine served the calls, and Gloo gives the same results."""
    ours = ranks(world, counted, *job)
    theirs = ranks(world, counted, *job, backend="gloo")
    for (mine, engine, fallback), (its, _, _) in zip(ours, theirs, strict=True):
        assert_equal(mine, its)
        assert all(engine[name] for name in used) and not fallback.total(), (engine, fallback)
    return [mine for mine, _, _ in ours]


def trained(settings: dict[str, Any]) -> Tensors:
    return Training(**settings).train()


@pytest.mark.parametrize("ranks", ["network", pytest.param("host", marks=all_tier)], indirect=True)
@original_or_flat
@each_strategy
def test_training_is_gloo_s(ranks, strategy, original):
    settings = {"strategy": strategy, "use_orig_params": original}
    first, second = compared(ranks, 2, STRATEGIES[strategy], trained, settings)
    assert not torch.equal(first.pop("losses"), second.pop("losses"))
    assert_equal(first, second)
    assert len(first) == PARAMETERS


@original_or_flat
@pytest.mark.parametrize("reduced", [torch.float32, torch.bfloat16], ids=str)
def test_training_in_mixed_precision_is_gloo_s(ranks, reduced, original):
    mixed = fsdp.MixedPrecision(torch.bfloat16, reduced)
    compared(ranks, 2, SHARDS, trained, {"mixed_precision": mixed, "use_orig_params": original})


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
def test_training_of_two_copies_in_two_shards_is_gloo_s(ranks, strategy):
    """The bits are equal with four ranks too: no sum has more than two terms."""
    settings = {"strategy": strategy, "mesh": (2, 2)}
    compared(ranks, 4, (*SHARDS, *COPIES), trained, settings)


@pytest.mark.parametrize("world", [3, pytest.param(4, marks=all_tier)])
def test_training_of_more_ranks_is_near_gloo_s_and_the_same_on_all(ranks, world):
    """Gloo adds in another order then, so the last bits differ."""
    ours, theirs = ranks(world, trained, {}), ranks(world, trained, {}, backend="gloo")
    for mine, its in zip(ours, theirs, strict=True):
        for name in its:
            close(mine[name], its[name], name, rtol=1e-4, atol=1e-6)
        assert_equal({**mine, "losses": ours[0]["losses"]}, ours[0])


def clipped(original: bool, norm: float) -> Tensors:
    job, norms = Training(use_orig_params=original), []
    for _ in range(3):
        job.loss().backward()
        norms += [job.net.clip_grad_norm_(1e-3, norm) for _ in range(2)]  # unclipped and clipped
        job.step()
    return {"norms": torch.stack(norms), **job.whole()}


@original_or_flat
@pytest.mark.parametrize("norm", [2.0, float("inf")])
def test_clipped_gradients_are_gloo_s(ranks, norm, original):
    first, second = compared(ranks, 2, (*SHARDS, *COPIES), clipped, original, norm)
    assert_equal(first, second)
    before, after = first["norms"].reshape(3, 2).T
    assert before.min() > 1e-2
    close(after, torch.full((3,), 1e-3), rtol=1e-3)


def accumulated(settings: dict[str, Any]) -> Tensors:
    """Each step has three backward passes, of which the last one reduces."""
    job = Training(**settings)
    for _ in range(2):
        before = calls("engine")
        with job.net.no_sync():
            job.loss().backward()
            job.loss().backward()
        assert not {"reduce_scatter_tensor", "all_reduce"} & (calls("engine") - before).keys()
        job.loss().backward()
        job.step()
    return job.whole()


@original_or_flat
@each_strategy
def test_gradients_of_passes_that_are_reduced_together_are_gloo_s(ranks, strategy, original):
    settings = {"strategy": strategy, "use_orig_params": original}
    assert_equal(*compared(ranks, 2, STRATEGIES[strategy], accumulated, settings))


def summoned(original: bool) -> Tensors:
    job, results = Training(use_orig_params=original), {}
    job.loss().backward()
    for when, how in (
        ("first", {"with_grads": original}),
        ("then", {"writeback": False}),
        ("last", {"writeback": False, "rank0_only": True}),
    ):
        with FSDP.summon_full_params(job.net, **how), torch.no_grad():
            for name, parameter in job.net.named_parameters():
                results[f"{when} {name}"] = parameter.clone()
                if how.get("with_grads"):
                    results[f"gradient of {name}"] = parameter.grad.clone()
                parameter.mul_(3)
    return results


@original_or_flat
def test_summoned_parameters_are_gloo_s_and_go_back_if_told(ranks, original):
    first, second = compared(ranks, 2, SHARDS, summoned, original)
    assert len(first) == (4 if original else 3) * PARAMETERS
    for results in (first, second):
        assert torch.equal(results["then 0.weight"], 3 * results["first 0.weight"])
    assert torch.equal(first["last 0.weight"], first["then 0.weight"])


def here(state: Any, name: str = "") -> Tensors:
    """Returns the tensors of a state dict that this rank has, or its shards of them."""
    if isinstance(state, dict):
        inner = [here(value, f"{name}.{key}") for key, value in state.items()]
        return {key: tensor for tensors in inner for key, tensor in tensors.items()}
    if isinstance(state, ShardedTensor):
        return {f"{name}{s.metadata.shard_offsets}": s.tensor.clone() for s in state.local_shards()}
    tensor = state.to_local() if isinstance(state, DTensor) else state
    return {name: tensor.clone()} if isinstance(tensor, torch.Tensor) else {}


def states(kind: str, job: Training) -> dict[str, Any]:
    FSDP.set_state_dict_type(job.net, *KINDS[kind])
    return {"model": job.net.state_dict(), "past": FSDP.optim_state_dict(job.net, job.optimizer)}


def full(strategy: str, rank0_only: bool) -> Tensors:
    job = Training(strategy=strategy)
    whole = job.train()
    config = fsdp.FullStateDictConfig(rank0_only=rank0_only)
    with FSDP.state_dict_type(job.net, KINDS["full"][0], config):
        state = job.net.state_dict()
    assert_equal({**whole, **state}, whole)
    return state


@pytest.mark.parametrize("rank0_only", [True, False])
@each_strategy
def test_a_full_state_dict_is_gloo_s(ranks, strategy, rank0_only):
    first, second = compared(ranks, 2, STRATEGIES[strategy], full, strategy, rank0_only)
    assert len(first) == PARAMETERS
    assert_equal(second, {} if rank0_only and strategy != "NO_SHARD" else first)


def saved(kind: str, settings: dict[str, Any], folder: Path) -> Tensors:
    """Trains, saves its states in the usual ways, and trains on."""
    job, folder = Training(**settings), folder / dist.get_backend()
    job.train()
    state = states(kind, job)
    folder.mkdir(exist_ok=True)
    if kind in ("sharded", "dtensor"):
        checkpoint.save(state, checkpoint_id=folder)
    else:
        torch.save(state, folder / str(dist.get_rank()))
    return {**here(state), **job.train(2)}


def resumed(kind: str, settings: dict[str, Any], folder: Path) -> Tensors:
    """Continues from the state that mcast has saved, with another model, whose optimizer has a state."""
    job = Training(seed=7, **settings)
    job.train(1)
    state, folder = states(kind, job), folder / "mcast"
    if kind in ("sharded", "dtensor"):
        checkpoint.load(state, checkpoint_id=folder)
    else:
        state = torch.load(folder / str(dist.get_rank()), weights_only=False)
    if kind == "full":  # rank 0 sends the optimizer's part to the others, but not the model's
        state["model"] = torch.load(folder / "0", weights_only=False)["model"]
    job.net.load_state_dict(state["model"])
    past = FSDP.optim_state_dict_to_load(job.net, job.optimizer, state["past"])
    job.optimizer.load_state_dict(past)
    return job.train(2)


@pytest.mark.parametrize(
    "kind, original", USUAL + [pytest.param(*case, marks=all_tier) for case in MORE]
)
def test_a_later_job_goes_on_from_state_dicts_that_are_gloo_s(ranks, tmp_path, kind, original):
    settings = {"use_orig_params": original, "mesh": (2,) if kind == "dtensor" else None}
    before = compared(ranks, 2, SHARDS, saved, kind, settings, tmp_path)
    after = compared(ranks, 2, SHARDS, resumed, kind, settings, tmp_path)
    for one, other in zip(before, after, strict=True):
        assert_equal(other, {name: one[name] for name in other})
