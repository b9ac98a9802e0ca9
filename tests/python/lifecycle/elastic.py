"""A job that survives changes of its size: it records each one, and ends when a file exists.

elastic.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("mcast")
rank, size = dist.get_rank(), dist.get_world_size()
gathered = torch.zeros(1000 * size)
dist.all_gather_into_tensor(gathered, torch.full((1000,), float(rank)))
assert torch.equal(gathered, torch.arange(float(size)).repeat_interleave(1000))
if rank == 0:
    count = len(list(folder.glob("size-*")))
    (folder / f"size-{count}-{size}").touch()
while True:
    # All leave in the same round, whichever rank has seen the file.
    end = torch.tensor([float((folder / "end").exists())])
    dist.all_reduce(end)
    if end.item() > 0:
        break
dist.destroy_process_group()
(folder / f"good-{os.environ['GROUP_RANK']}").touch()
