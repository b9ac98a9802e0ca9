"""A rank that makes its call long after the others, which leave as soon as theirs has returned."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from scenarios import caught, join
from scenarios_exit import say_when_in_wait
from waiting import until

import torch_mcast

LATE = 2
FAR_LIMIT_S = 600


def call(what: str, group: Any = None) -> None:
    """Rank 0 is the root; every byte is checked."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.full((4,), float(rank + 1))
    if what == "broadcast":
        dist.broadcast(mine, 0, group=group)
        assert torch.equal(mine, torch.ones(4)), mine
    elif what == "all_gather":
        outputs = torch.zeros(4 * world)
        dist.all_gather_single(outputs, mine, group=group) if hasattr(
            dist, "all_gather_single"
        ) else dist.all_gather_into_tensor(outputs, mine, group=group)
        assert torch.equal(outputs, torch.arange(1.0, world + 1).repeat_interleave(4)), outputs
    elif what == "gather":
        outputs = [torch.zeros(4) for _ in range(world)] if rank == LATE else None
        dist.gather(mine, outputs, LATE, group=group)
        if outputs is not None:
            assert [int(output[0]) for output in outputs] == list(range(1, world + 1)), outputs
    elif what == "reduce":
        dist.reduce(mine, LATE, group=group)
        if rank == LATE:
            assert torch.equal(mine, torch.full((4,), world * (world + 1) / 2)), mine
    elif what == "all_reduce":
        large = torch.full(
            (1 << 20,), float(rank + 1)
        )  # as large as aggregators need: they fold it if there are any, and the ranks else
        dist.all_reduce(large, group=group)
        assert torch.equal(large, torch.full_like(large, world * (world + 1) / 2)), large
    else:
        dist.barrier(group=group)


def placed(group: Any) -> bool:
    """Returns whether aggregators have folded the last large all_reduce, and none of them was lost."""
    last = torch_mcast.stats(group)["aggregation"]["all_reduce"]
    return last["reason"] == "placed" and not any(row["lost"] for row in last["stations"])


def prove_service(group: Any) -> None:
    """Calls all_reduce until aggregators serve it; all ranks see that at the same call."""

    def served() -> bool:
        call("all_reduce", group)
        return placed(group)

    until(
        served,
        lambda: [torch_mcast.stats(group)[key] for key in ("aggregators", "aggregation")],
        20,
    )


def leaves(link: Any, what: str, how: str, backend: str = "mcast") -> None:
    """The other ranks destroy the group or end without it; if it is a subgroup, they continue. The
    group's time limit is far off, as that of a subgroup (torch's default): the clock is moved by up
    to 40 s and also runs by itself."""
    join(link, FAR_LIMIT_S, backend=backend)
    group = dist.new_group(backend=backend) if how == "subgroup" else None
    if os.environ.get("MCAST_AGGREGATORS"):
        prove_service(group)
    dist.barrier()
    if link.rank == LATE:
        link.say("late")
        link.hear("go")
    else:
        link.say("calls")
    call(what, group)
    if what == "all_reduce" and os.environ.get("MCAST_AGGREGATORS"):
        assert placed(group), torch_mcast.stats(group)["aggregation"]
    if how == "subgroup":
        dist.destroy_process_group(group)
        dist.barrier()
    if how != "exit":
        dist.destroy_process_group()
    link.say("good")


def calls_late() -> None:
    """Calls a broadcast whose root has left: it completes or raises, depending on the data received
    by then. The barrier needs the root."""
    call("broadcast")
    call("barrier")


def never_comes(link: Any) -> None:
    """The root of a broadcast leaves; the late rank never makes the call."""
    join(link)
    dist.barrier()
    if link.rank == 0:
        call("broadcast")
        link.say("calls")
        dist.destroy_process_group()
        link.say("destroyed")
        return
    link.hear("go")
    caught(link, calls_late)


def interrupted(link: Any) -> None:
    """Like never_comes(), but Ctrl-C interrupts the root in destroy_process_group()."""
    join(link)
    dist.barrier()
    if link.rank != 0:
        link.hear("go")
        caught(link, calls_late)
        return
    call("broadcast")
    threading.Thread(target=say_when_in_wait, args=(link, ".shutdown()"), daemon=True).start()
    try:
        dist.destroy_process_group()
    except KeyboardInterrupt:
        link.say("interrupted")
