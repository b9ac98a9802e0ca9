"""A rank that ends while its stream waits for an operation that never completes. Arguments: device,
library, rank, store file, how: "returns" or "raises". Rank 0, the root, posts nothing and stays
until its standard input ends."""

import sys
from datetime import timedelta

import devices
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

import torch_mcast

name, library, rank, path, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
devices.take(name, library, gate=True)
store = dist.FileStore(path, 2)
dist.init_process_group(
    f"cpu:mcast,{name}:mcast",
    store=store,
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=60),
    pg_options=torch_mcast.Options(fallback="none"),
)
_set_pg_timeout(timedelta(seconds=1))
tensor = torch.zeros(100_000).to(name)
if rank == 1:
    assert dist.broadcast(tensor, 0, async_op=True).wait()
    devices.ops().flip(tensor, 1)
else:
    sys.stdin.read()
if how == "raises":
    raise SystemExit(7)
