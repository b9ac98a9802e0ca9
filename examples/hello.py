"""Minimal example: an all-gather and an all-reduce. Rank 0 prints which path the bytes took, and why."""

import torch
import torch.distributed as dist

import torch_mcast

dist.init_process_group("mcast")
mine = torch.full((1 << 20,), float(dist.get_rank()))
everyone = torch.empty(dist.get_world_size() << 20)
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13
all_gather_single(everyone, mine)
dist.all_reduce(mine)
if dist.get_rank() == 0:
    stats = torch_mcast.stats()
    print(f"{stats['size']} ranks: {everyone[:: 1 << 20].tolist()} sum {mine[0].item():g}")
    print(f"path: {stats['path']}: {stats['reason']}")
dist.destroy_process_group()
