"""Functions that ranks run while the test changes the network."""

from __future__ import annotations

import time

import programs
import reductions
import torch
import torch.distributed as dist

import torch_mcast


def until_told(ctx, size, options=None) -> dict:
    """Runs operations of every kind until the driver sends stop, and checks every byte; rank 0
    tells the others. Notifies "running" after two rounds, "path <name>" of the first lane's path
    whenever it changes, and "raised" when an operation raises."""
    programs.join(ctx, **(options or {}))
    told = torch.zeros(1, dtype=torch.uint8)
    done, path, paths = 0, "", []
    try:
        while not told.item():
            programs.all_gather(size, done % 30000)
            programs.broadcast(size, done % ctx.world_size, done % 30000)
            reductions.reduce_scatter(size // 4, done % 30000)
            done += 1
            if done == 2:
                ctx.notify("running")
            if (now := torch_mcast.stats()["path"]) != path:
                path = now
                paths.append(path)
                ctx.notify(f"path {path}")
            if ctx.rank == 0 and ctx.told("stop"):
                told.fill_(1)
            dist.broadcast(told, 0)
        return {**torch_mcast.stats(), "rounds": done, "paths": paths}
    except dist.DistBackendError as error:
        ctx.notify("raised", (time.monotonic(), str(error)))
        raise


def connect_when_told(ctx, size) -> dict:
    """Each rank first sends to every other one after the driver has signalled: ranks that are not
    neighbours of each other have no connection until then. Every byte is checked."""
    programs.join(ctx)
    programs.all_gather(size, 0)
    ctx.notify("running")
    ctx.wait("go")
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(size * world, dtype=torch.uint8)
    sent = torch.cat([programs.pattern(size, rank, to) for to in range(world)])
    dist.all_to_all_single(received, sent)
    expected = torch.cat([programs.pattern(size, source, rank) for source in range(world)])
    assert torch.equal(received, expected)
    return torch_mcast.stats()
