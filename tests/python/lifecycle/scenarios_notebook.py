"""Notebook kernels: the main thread runs one cell after another, and an interrupt ends the current cell."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import exact
import torch
import torch.distributed as dist
from scenarios import caught, expected_path, join
from torch import nn

import torch_mcast


def asleep(thread: int) -> bool:
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return stat.rpartition(") ")[2].startswith("S")


def cell(link: Any, code: Callable[[], Any]) -> None:
    """Runs `code` as a kernel does: an interrupt ends the cell, and the kernel continues."""
    try:
        code()
    except KeyboardInterrupt:
        link.say("interrupted")
    else:
        link.say("the cell was not interrupted")


def say_when_blocked(link: Any) -> None:
    """Reports "waiting" once the main thread sleeps inside a cell, at three checks in a row."""
    main = threading.main_thread().ident
    seen = 0
    while seen < 3:
        frame, inside = sys._current_frames()[main], False
        while frame is not None:
            inside |= frame.f_code is cell.__code__
            frame = frame.f_back
        seen = seen + 1 if inside and asleep(os.getpid()) else 0
        time.sleep(0.01)
    link.say("waiting")


def functional_all_reduce() -> None:
    import torch.distributed._functional_collectives as functional

    functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).wait()


def sharded_forward() -> Callable[[], Any]:
    from torch.distributed.fsdp import fully_shard

    net = fully_shard(nn.Linear(300, 300))
    return lambda: net(torch.ones(2, 300))


def blocking(what: str) -> Callable[[], Any]:
    """Returns a call that needs the other rank. Both ranks make it; rank 0 calls it in a cell."""
    peer = 1 - dist.get_rank()
    size = 4 << 20  # a send of this size waits for its receive
    calls: dict[str, Callable[[], Any]] = {
        "barrier": dist.barrier,
        "all_reduce": lambda: dist.all_reduce(torch.ones(200_000)),
        "all_gather_object": lambda: dist.all_gather_object([None, None], "text"),
        "recv": lambda: dist.recv(torch.ones(3), peer),
        "send": lambda: dist.send(torch.ones(size), peer),
        "monitored_barrier": lambda: dist.group.WORLD.monitored_barrier(),
        "functional": functional_all_reduce,
        "new_group": lambda: dist.new_group(timeout=timedelta(seconds=60 if peer == 1 else 2)),
    }
    return sharded_forward() if what == "fsdp2" else calls[what]


def interrupted(link: Any, what: str) -> None:
    """Rank 0's cell waits for rank 1 and is interrupted. Its next cells destroy the group and
    create another one."""
    join(link, linger=3_600_000)
    exact.every((3,))
    call = blocking(what)
    if link.rank == 0:
        threading.Thread(target=say_when_blocked, args=(link,), daemon=True).start()
        cell(link, call)
        link.hear("destroy")
        dist.destroy_process_group()
        link.say("destroyed")
    else:
        link.hear("call")
        caught(link, call)
        caught(link, dist.barrier, "again")  # the store alone may have told it
        dist.destroy_process_group()
    link.hear("begin again")
    join(link, incarnation="2")
    exact.every()
    stats = torch_mcast.stats()
    assert stats["path"] == expected_path() and stats["failure"] == ""
    dist.destroy_process_group()
    link.say("good")


def resumed(link: Any, what: str) -> None:
    """Like interrupted(), but rank 1 comes late, and the interrupted operation and the group continue."""
    join(link)
    exact.every((3,))
    call = blocking(what)
    if link.rank == 0:
        threading.Thread(target=say_when_blocked, args=(link,), daemon=True).start()
        cell(link, call)
    else:
        link.hear("call")
        call()
        link.say("called")
    exact.every(salt=3)
    dist.destroy_process_group()
    link.say("good")
