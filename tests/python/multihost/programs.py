"""Functions that ranks run, with a lab Context as first argument. Workers import this module once.

Every rank can compute every other rank's bytes, so results are compared in full, at a cost that
stays small compared with the transfer: each 8-byte word depends on its place, its rank and the
round."""

from __future__ import annotations

import time
from contextlib import contextmanager

import launch
import torch
import torch.distributed as dist
from contents import compare
from waiting import GUARD_S

import torch_mcast

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd multiplier keeps words distinct
GUARD = 0xA5
# Modules that a worker imports before its first call. (Defined here because a function that runs in
# a worker cannot import a conftest: a whole run has several.) Workers call functions of test
# modules, which import pytest.
PRELOAD = (*launch.MODULES, "programs")


def pattern(size: int, rank: int, salt: int) -> torch.Tensor:
    """Returns `size` bytes of that rank and round."""
    words = torch.arange((size + 7) // 8, dtype=torch.int64)
    words += (rank + 1) << 32 | (salt + 1) << 48
    words *= _ODD
    return words.view(torch.uint8)[:size]


def join(ctx, timeout_s: float = GUARD_S, **options) -> None:
    # The default group's name is a count of groups, including those whose creation failed in an
    # earlier call; it must be the same in new workers.
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group("mcast", timeout_s, pg_options=torch_mcast.Options(**options))


def blocks(size: int, salt: int) -> list[torch.Tensor]:
    return [pattern(size, rank, salt) for rank in range(dist.get_world_size())]


def all_gather(size: int, salt: int, group=None) -> None:
    """Runs one all-gather and compares it in full. Bytes around the output must not change."""
    rank, world = dist.get_rank(), dist.get_world_size()
    room = torch.full((size * world + 16,), GUARD, dtype=torch.uint8)
    output = room[8:-8]
    dist.all_gather_into_tensor(output, pattern(size, rank, salt), group=group)
    for r in range(world):
        compare(
            output[r * size : (r + 1) * size],
            pattern(size, r, salt),
            f"all_gather of {size}, from {r}",
        )
    assert bool((room[:8] == GUARD).all() and (room[-8:] == GUARD).all())


def all_gather_in_place(size: int, salt: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(size * world, dtype=torch.uint8)
    mine = output[rank * size : (rank + 1) * size]
    mine.copy_(pattern(size, rank, salt))
    dist.all_gather_into_tensor(output, mine)
    for r, expected in enumerate(blocks(size, salt)):
        compare(output[r * size : (r + 1) * size], expected, f"in place, {size}, from {r}")


def all_gather_list(size: int, salt: int) -> None:
    outputs = [torch.zeros(size, dtype=torch.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, pattern(size, dist.get_rank(), salt))
    for r, expected in enumerate(blocks(size, salt)):
        compare(outputs[r], expected, f"list all_gather of {size}, from {r}")


def coalesced(size: int, salt: int) -> None:
    """Runs three all-gathers in one call, of different sizes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [size, size // 3, 1]
    outputs = [torch.zeros(s * world, dtype=torch.uint8) for s in sizes]
    with dist._coalescing_manager():
        for i, s in enumerate(sizes):
            dist.all_gather_into_tensor(outputs[i], pattern(s, rank, salt + i))
    for i, s in enumerate(sizes):
        for r, expected in enumerate(blocks(s, salt + i)):
            compare(outputs[i][r * s : (r + 1) * s], expected, f"coalesced {s}, from {r}")


def broadcast(size: int, root: int, salt: int, group=None) -> None:
    tensor = (
        pattern(size, root, salt).clone()
        if dist.get_rank() == root
        else torch.zeros(size, dtype=torch.uint8)
    )
    dist.broadcast(tensor, root, group)
    compare(tensor, pattern(size, root, salt), f"broadcast of {size} from {root}")


def every_op(ctx, sizes, large=(), options=None) -> dict:
    """Runs all engine operations at all sizes, broadcasts from every root; `large`: two ops only."""
    join(ctx, **(options or {}))
    salt = 0
    for size in sizes:
        for root in range(ctx.world_size):
            broadcast(size, root, salt := salt + 1)
        for op in (all_gather, all_gather_in_place, all_gather_list, coalesced):
            op(size, salt := salt + 10)
        dist.barrier()
    for size in large:
        all_gather(size // ctx.world_size, salt := salt + 1)
        broadcast(size, salt % ctx.world_size, salt)
    return torch_mcast.stats()


def rounds(ctx, size, count, options=None) -> dict:
    """Runs `count` all-gathers and broadcasts from changing roots."""
    join(ctx, **(options or {}))
    for i in range(count):
        all_gather(size, 2 * i)
        broadcast(size, i % ctx.world_size, 2 * i + 1)
    dist.barrier()
    return torch_mcast.stats()


def until_told(ctx, size, options=None, timeout_s=GUARD_S, root=None, watch="") -> dict:
    """Runs operations without pause until the driver sends stop; every byte is checked. Rank 0
    receives the driver's signal and passes it on by a broadcast in each round. Broadcasts come from
    `root` alone if one is given (and there are no all-gathers then), else from every rank in turn.

    Notifies "running" after two rounds, "path" when the path becomes `watch`, and "raised" with the
    time and the text when an operation raises, before anything is torn down."""
    join(ctx, timeout_s, **(options or {}))
    told = torch.zeros(1, dtype=torch.uint8)
    done = 0
    try:
        while not told.item():
            if root is None:
                all_gather(size, done % 60000)
            broadcast(size, done % ctx.world_size if root is None else root, done % 60000)
            done += 1
            if done == 2:
                ctx.notify("running")
            if watch and torch_mcast.stats()["path"] == watch:
                ctx.notify("path")
                watch = ""
            if ctx.rank == 0 and ctx.told("stop"):
                told.fill_(1)
            dist.broadcast(told, 0)
        return {**torch_mcast.stats(), "rounds": done}
    except dist.DistBackendError as error:
        ctx.notify("raised", (time.monotonic(), str(error)))  # the whole machine has one clock
        raise


@contextmanager
def several_groups(number, options=None):
    groups = [
        dist.new_group(backend="mcast", pg_options=torch_mcast.Options(**(options or {})))
        for _ in range(number)
    ]
    yield groups
    for group in groups:
        dist.destroy_process_group(group)
