"""Weights from a trainer to workers on other hosts: one process per host receives, by multicast."""

import programs
import torch
import torch.distributed as dist

import torch_mcast
from torch_mcast import weights


def transfer(ctx, size):
    """Rank 0 sends; what each worker got, the payload bytes that it received, and its path."""
    programs.join(ctx)
    channel = weights.Channel(bucket_bytes=1 << 20)
    tensors = {"large": torch.arange(size // 4, dtype=torch.int32), "small": torch.ones(3)}
    if ctx.rank == 0:
        channel.send(tensors)
    else:
        got = dict(channel.receive())
        assert all(torch.equal(got[name], tensors[name]) for name in tensors)
    dist.barrier()
    stats = torch_mcast.stats(channel.backend) if channel.backend is not None else None
    return (stats["path"], stats["size"]) if stats else None


def test_one_worker_of_each_host_receives(hosts):
    found = hosts(3, per_host=2).run(transfer, 8 << 20)
    # Rank 0 sends, 1 is on its host: it maps nothing of rank 0's, and receives for its host.
    assert [each[1] if each else None for each in found] == [4, 4, 4, None, 4, None]
    assert all(each[0] == "multicast" for each in found if each)
