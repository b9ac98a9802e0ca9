"""The PyTorch job that test_verbs.py runs over verbs in every machine: collectives with known
results, then one FSDP2 step on mcast and the same on Gloo. Prints one line "RESULT {json}"."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import torch_mcast


def collectives(rank: int, world: int) -> None:
    count = 1_100_007  # blocks that are gathered from their tensors
    mine = torch.arange(count, dtype=torch.int32) * (rank + 3)
    gathered = torch.empty(world * count, dtype=torch.int32)
    dist.all_gather_into_tensor(gathered, mine)
    want = torch.cat([torch.arange(count, dtype=torch.int32) * (r + 3) for r in range(world)])
    assert torch.equal(gathered, want), "all_gather_into_tensor"

    data = want.clone() if rank == 1 else torch.zeros_like(want)
    dist.broadcast(data, src=1)
    assert torch.equal(data, want), "broadcast"

    part = torch.empty(count, dtype=torch.int32)
    dist.reduce_scatter_tensor(part, want * (rank + 1))
    total = sum(r + 1 for r in range(world))
    assert torch.equal(part, want[rank * count : (rank + 1) * count] * total), "reduce_scatter"


def fsdp_step(mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(257, 512), nn.ReLU(), nn.Linear(512, 65))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(100 + dist.get_rank())
    net(torch.randn(16, 257)).square().mean().backward()
    optimizer.step()
    return {name: p.full_tensor().detach() for name, p in net.named_parameters()}


def device_counters() -> dict[str, int]:
    folder = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")
    return {file.name: int(file.read_text()) for file in folder.iterdir()}


def main() -> None:
    before = device_counters()
    dist.init_process_group("mcast")
    rank, world = dist.get_rank(), dist.get_world_size()
    collectives(rank, world)
    ours = fsdp_step(DeviceMesh.from_group(dist.group.WORLD, "cpu"))
    gloo = fsdp_step(DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu"))
    for name, value in gloo.items():
        assert torch.equal(ours[name], value), f"{name} differs from Gloo's"
    stats = torch_mcast.stats()
    after = device_counters()
    result = {
        "transport": stats["transport"],
        "transport_reason": stats["transport_reason"],
        "path": stats["path"],
        "calls": {op: dict(calls) for op, calls in stats["calls"].items()},
        "counters": stats["counters"],
        "sent_packets": after["sent_pkts"] - before["sent_pkts"],
    }
    dist.destroy_process_group()
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("MCAST_TRANSPORT", "verbs")
    main()
