"""A rank kills, stops or aborts itself in the middle of a reduction, when bytes of it have been sent."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import exact
import torch
import torch.distributed as dist
from contents import compare
from scenarios import caught, group_backend, join

import torch_mcast

COUNT = 1 << 19  # words of 8 bytes, of each rank's block
MOVED = ("reduce_bytes_sent", "reduce_bytes_received", "shm_slot_bytes", "shm_direct_bytes")
ROUNDS = 200


class Reduction:
    """The same reduction repeatedly, whose bytes are computed once."""

    def __init__(self, op: str, count: int = COUNT) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.op = op
        self.mine = exact.words(rank, world * count, 0)
        self.expected = exact.total(world * count, 0)
        if op == "reduce_scatter":
            self.expected = self.expected.chunk(world)[rank]

    def post(self) -> tuple[Any, Any]:
        """Posts the reduction. Returns the Work and its output."""
        if self.op == "reduce_scatter":
            output = torch.full_like(self.expected, -1)
            return dist.reduce_scatter_tensor(output, self.mine, async_op=True), output
        output = self.mine.clone()
        if self.op == "reduce":
            return dist.reduce(output, 0, async_op=True), output
        return dist.all_reduce(output, async_op=True), output

    def check(self, output: Any) -> None:
        if self.op != "reduce" or dist.get_rank() == 0:
            compare(output, self.expected, self.op)


def moved() -> int:
    counters = torch_mcast.stats()["counters"]
    return sum(counters[name] for name in MOVED)


def strike_inside(reduction: Reduction, strike: Any) -> Any:
    """Calls `strike` once some bytes of a reduction have been sent that is not complete yet.
    Returns its Work."""
    for _ in range(ROUNDS):
        before = moved()
        work, output = reduction.post()
        while not work.is_completed():
            if moved() - before > COUNT:
                strike()
                return work
            time.sleep(0)
        work.wait()
        reduction.check(output)
    raise AssertionError(f"{ROUNDS} times over before anything was seen of it")


def struck(link: Any, victim: int, op: str, how: str, options: dict[str, Any]) -> None:
    """how: the name of a signal, or "abort". All other ranks make the same call until it fails."""
    join(link, **options)
    reduction = Reduction(op)
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
            work, output = reduction.post()
            work.wait()
            reduction.check(output)

    def strike_and_go_on() -> None:
        # It may just have completed on this rank, but not on all of them.
        strike_inside(reduction, strike).wait()
        until_it_fails()

    caught(link, strike_and_go_on if link.rank == victim else until_it_fails)
    caught(link, lambda: reduction.post(), "again")
    dist.destroy_process_group()
    link.say("destroyed")
