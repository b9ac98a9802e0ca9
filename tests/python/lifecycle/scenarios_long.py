"""A job that trains for long: its memory, descriptors and threads must not grow."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import exact
import torch
import torch.distributed as dist
from scenarios import join
from scenarios_failure import allocated, used
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch_mcast

# Counters that only grow when something goes wrong.
FAULTS = ("corrupt", "mismatched", "staging_drops", "stale", "noise")


def layers() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 64))


class Training:
    """Steps of an FSDP2 and a DDP model, of every collective with exact bytes, and of a group that
    is created and destroyed."""

    def __init__(self) -> None:
        sharded = layers()
        fully_shard(sharded[2])
        self._models = [fully_shard(sharded), DistributedDataParallel(layers())]
        self._optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in self._models]
        torch.manual_seed(dist.get_rank())

    def step(self, number: int) -> None:
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        exact.every((3, 50_000), salt=number % 7)
        objects: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(objects, number)
        assert objects == [number] * len(objects)
        if number % 10 == 0:
            group = dist.new_group()
            dist.all_reduce(torch.ones(3), group=group)
            dist.destroy_process_group(group)


def held(training: Training) -> dict[str, Any]:
    """Returns the resources that this process holds while nothing is in flight."""
    dist.barrier()
    gc.collect()
    descriptors, threads = used()
    return {"descriptors": descriptors, "threads": threads, "memory": allocated()}


def trains(link: Any, seconds: float, steps: int) -> None:
    """Trains `steps` steps, and then until `seconds` are over by rank 0's clock. Reports the
    resources that the ranks held after the first 30 steps and at the end."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = (
        "0"  # torch's flight recorder fills its buffer over 2000 operations
    )
    join(link, timeout_s=120)
    training, number = Training(), 0
    begin, rows = time.monotonic(), []
    go_on = torch.ones(1)
    while number < steps or go_on.item():
        training.step(number)
        number += 1
        if number == 30:
            rows.append(held(training))
        go_on.fill_(time.monotonic() - begin < seconds)
        dist.broadcast(go_on, 0)
    rows.append(held(training))
    stats = torch_mcast.stats()
    assert stats["failure"] == "" and not any(c["fallback"] for c in stats["calls"].values())
    faults = {name: stats["counters"][name] for name in FAULTS if name in stats["counters"]}
    link.say("trained", steps=number, rows=rows, faults=faults, path=stats["path"])
    link.hear("end")
    dist.destroy_process_group()
