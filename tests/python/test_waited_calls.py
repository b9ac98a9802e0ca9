"""Waiting of callers for ranks of their host: the setting `wait`, and calls that c10d waits for at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from waiting import until

import torch_mcast

SHARED = {"MCAST_SHARED_MEMORY": "auto"}
ROUNDS = 9

Post = Callable[[Any, Any, int], Any]  # for a group of 2: (group, options, rank) to a work


def _each() -> list[torch.Tensor]:
    return [torch.ones(3), torch.ones(3)]


# By name: the options' class, the rank that must be the root (None: no root), and the call.
CALLS: dict[str, tuple[str, int | None, Post]] = {
    "broadcast": ("BroadcastOptions", 0, lambda g, o, r: g.broadcast([torch.ones(3)], o)),
    "all_reduce": ("AllreduceOptions", None, lambda g, o, r: g.allreduce([torch.ones(3)], o)),
    "all_reduce_coalesced": (
        "AllreduceCoalescedOptions",
        None,
        lambda g, o, r: g.allreduce_coalesced(_each(), o),
    ),
    "reduce": ("ReduceOptions", 1, lambda g, o, r: g.reduce([torch.ones(3)], o)),
    "all_gather": (
        "AllgatherOptions",
        None,
        lambda g, o, r: g.allgather([_each()], [torch.ones(3)], o),
    ),
    "all_gather_into_tensor": (
        "AllgatherOptions",
        None,
        lambda g, o, r: g._allgather_base(torch.ones(6), torch.ones(3), o),
    ),
    "uneven all_gather": (
        "AllgatherOptions",
        None,
        lambda g, o, r: g.allgather([[torch.ones(3), torch.ones(4)]], [torch.ones(3 + r)], o),
    ),
    "reduce_scatter": (
        "ReduceScatterOptions",
        None,
        lambda g, o, r: g.reduce_scatter([torch.ones(3)], [_each()], o),
    ),
    "reduce_scatter_tensor": (
        "ReduceScatterOptions",
        None,
        lambda g, o, r: g._reduce_scatter_base(torch.ones(3), torch.ones(6), o),
    ),
    "gather": (
        "GatherOptions",
        1,
        lambda g, o, r: g.gather([_each()] if r == 1 else [], [torch.ones(3)], o),
    ),
    "scatter": (
        "ScatterOptions",
        0,
        lambda g, o, r: g.scatter([torch.ones(3)], [_each()] if r == 0 else [], o),
    ),
    "all_to_all": ("AllToAllOptions", None, lambda g, o, r: g.alltoall(_each(), _each(), o)),
    "all_to_all_single": (
        "AllToAllOptions",
        None,
        lambda g, o, r: g.alltoall_base(torch.ones(6), torch.ones(6), [], [], o),
    ),
    "barrier": ("BarrierOptions", None, lambda g, o, r: g.barrier(o)),
}


def wakes() -> int:
    return int(torch_mcast.stats()["counters"]["shm_wakes"])


def one_round(name: str, key: str, asynchronous: bool) -> bool:
    """Rank 1 posts and does not wait; then rank 0 calls. Returns whether rank 0 has woken a thread
    for it."""
    kind, root, post = CALLS[name]
    options = getattr(c10d, kind)()
    options.asyncOp = asynchronous
    if root is not None:
        options.rootRank = root
    group = dist.group.WORLD
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        work = post(group, options, 1)
        store.set(key + " posted", "")
        store.wait([key + " called"])
        work.wait()
        return store.get(key + " called") == b"woken"
    store.wait([key + " posted"])
    before = wakes()
    work = post(group, options, 0)
    woken = wakes() > before
    store.set(key + " called", "woken" if woken else "quiet")
    work.wait()
    return woken


def wakes_by_need(name: str) -> None:
    woken = [one_round(name, f"{name} async {i}", True) for i in range(ROUNDS)]
    assert sum(woken) > ROUNDS / 2, woken
    # The host thread's tick, every 100 ms, may come in between and wait itself.
    for i in range(50):
        if not one_round(name, f"{name} sync {i}", False):
            return
    raise AssertionError("rank 1 is woken for operations that it is about to wait for")


@pytest.mark.parametrize("name", CALLS)
def test_nobody_is_woken_between_post_and_wait(ranks, name):
    ranks(2, wakes_by_need, name, env=SHARED)


def nobody_waits() -> None:
    group, rank = dist.group.WORLD, dist.get_rank()
    options = c10d.AllreduceOptions()
    options.asyncOp = rank == 0
    for elements in (3, 1 << 20):  # the second is left for an idle thread
        tensor = torch.full((elements,), float(1 + rank))
        work = group.allreduce([tensor], options)
        until(work.is_completed, "an all_reduce that nobody waits for")
        assert tensor.eq(3).all()


def test_a_call_that_is_not_waited_for_completes(ranks):
    ranks(2, nobody_waits, env=SHARED)


def barriers() -> dict[str, int]:
    for _ in range(200):
        dist.barrier()
    counters: dict[str, int] = torch_mcast.stats()["counters"]
    return counters


@pytest.mark.parametrize("wait", ["auto", "sleep"])
def test_callers_yield_as_the_setting_says(ranks, wait):
    # With more ranks than cores no rank spins: all but the last one to call must sleep.
    env = SHARED | {"LOCAL_WORLD_SIZE": "4096"}
    rows = ranks(2, barriers, env=env, options={"wait": wait})
    yielded = sum(row["waits_yielded"] for row in rows)
    braked = sum(row["waits_braked"] for row in rows)
    if wait == "auto":
        assert yielded > 0
    else:
        assert yielded == braked == 0
        assert sum(row["shm_sleeps"] for row in rows) > 0
