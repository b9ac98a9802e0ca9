"""FSDP2 over torch-mcast on CPU tensors: every forward gathers parameters by multicast.

torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_mcast


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parsed = parser.parse_args()

    dist.init_process_group("mcast")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(parsed.width) for _ in range(parsed.blocks)])
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    torch.manual_seed(1 + dist.get_rank())  # every rank has data of its own
    inputs = torch.randn(64, parsed.width)
    targets = inputs.flip(1)
    for step in range(parsed.steps):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step:3d}  loss {mean.item():.4f}")

    stats = torch_mcast.stats()
    if dist.get_rank() == 0:
        print(f"path: {stats['path']} ({stats['reason']})")
        for name, row in stats["calls"].items():
            print(f"{name:28s} engine {row['engine']:5d}   fallback {row['fallback']:5d}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
