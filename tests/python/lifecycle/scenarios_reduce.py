"""A rank strikes itself in the middle of a reduction, when bytes of it have moved."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import exact
import torch
import torch.distributed as dist
from scenarios import caught, group_backend, join

import torch_mcast

COUNT = 1 << 20  # words of 8 bytes, of each rank's block
MOVED = ("reduce_bytes_sent", "reduce_bytes_received", "shm_slot_bytes", "shm_direct_bytes")
ROUNDS = 200


def reduction(op: str, count: int) -> tuple[Any, Any]:
    """A Work, and what compares its result."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = exact.words(rank, world * count, 0)
    if op == "all_reduce":
        work = dist.all_reduce(mine, async_op=True)
        return work, lambda: exact.same(mine, exact.total(world * count, 0), op)
    if op == "reduce":
        work = dist.reduce(mine, 0, async_op=True)
        return work, lambda: rank or exact.same(mine, exact.total(world * count, 0), op)
    output = torch.full((count,), -1)
    work = dist.reduce_scatter_tensor(output, mine, async_op=True)
    expected = exact.total(world * count, 0).chunk(world)[rank]
    return work, lambda: exact.same(output, expected, op)


def moved() -> int:
    counters = torch_mcast.stats()["counters"]
    return sum(counters[name] for name in MOVED)


def strike_inside(op: str, strike: Any) -> Any:
    """A Work that was not over when some of its bytes had moved, which is when `strike` is called."""
    for _ in range(ROUNDS):
        before = moved()
        work, check = reduction(op, COUNT)
        while not work.is_completed():
            if moved() - before > COUNT:
                strike()
                return work
            time.sleep(0)
        work.wait()
        check()
    raise AssertionError(f"{ROUNDS} times over before anything was seen of it")


def struck(link: Any, victim: int, op: str, how: str, options: dict[str, Any]) -> None:
    """how: the name of a signal, or "abort". All others make the same call until it fails."""
    join(link, **options)
    dist.barrier()
    link.say("path", path=torch_mcast.stats()["path"])

    def strike() -> None:
        link.say("strikes")
        if how == "abort":
            group_backend().abort()
        else:
            os.kill(os.getpid(), getattr(signal, how))

    def until_it_fails() -> None:
        for _ in range(ROUNDS):
            work, check = reduction(op, COUNT)
            work.wait()
            check()

    if link.rank == victim:
        caught(link, lambda: strike_inside(op, strike).wait())
    else:
        caught(link, until_it_fails)
    caught(link, lambda: reduction(op, 10), "again")
    dist.destroy_process_group()
    link.say("destroyed")
