"""One rank of two under qemu, with a wheel for aarch64 (tools/aarch64.sh wheel): results are exact.

two_ranks.py RANK PORT
"""

from __future__ import annotations

import platform
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_mcast

rank, port = int(sys.argv[1]), int(sys.argv[2])
# qemu executes some hundred times slower than the machine that it imitates.
limit = timedelta(seconds=300)
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=limit)
dist.init_process_group("mcast", store=store, rank=rank, world_size=2, timeout=limit)

for count in (1, 1000, 100_000):
    mine = torch.arange(count, dtype=torch.float32) + rank
    both = [torch.arange(count, dtype=torch.float32) + r for r in range(2)]

    sent = mine.clone()
    dist.broadcast(sent, src=1)
    assert torch.equal(sent, both[1])

    gathered = torch.empty(2 * count)
    dist.all_gather_into_tensor(gathered, mine)
    assert torch.equal(gathered, torch.cat(both))

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        total = mine.to(dtype, copy=True)
        dist.all_reduce(total)
        assert torch.equal(total, both[0].to(dtype) + both[1].to(dtype)), dtype

    share = torch.empty(count)
    dist.reduce_scatter_tensor(share, torch.cat([mine, 2 * mine]))
    assert torch.equal(share, (rank + 1) * (both[0] + both[1]))

    swapped = torch.empty(2 * count)
    dist.all_to_all_single(swapped, torch.cat([mine, -mine]))
    assert torch.equal(swapped, torch.cat([b if rank == 0 else -b for b in both]))

    if rank == 0:
        dist.send(mine, dst=1)
    else:
        received = torch.empty(count)
        dist.recv(received, src=0)
        assert torch.equal(received, both[0])

dist.barrier()
print(platform.machine(), torch.__version__, torch_mcast.stats()["path"], "exact", flush=True)
dist.destroy_process_group()
