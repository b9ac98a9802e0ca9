"""Ranks that run one collective after the other until the test tells them to stop, whatever it does
to them meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import exact
import torch
import torch.distributed as dist
from scenarios import caught, join

import torch_mcast

COUNTS = (5, 30_000)  # words


def busy(link: Any, options: dict[str, Any], fails: bool) -> None:
    """Reports "running" after the first rounds. Rank 0 receives the order to stop, and passes it to
    the others in the next round. `fails`: the rounds are expected to end with an error."""
    join(link, **options)
    told = threading.Event()

    def hear() -> None:
        link.hear("stop")
        told.set()

    if link.rank == 0 and not fails:
        threading.Thread(target=hear, daemon=True).start()

    def rounds() -> int:
        over, done = torch.zeros(1), 0
        while not over.item():
            exact.every(COUNTS, salt=done % 1000)
            done += 1
            if done == 2:
                link.say("running", path=torch_mcast.stats()["path"])
            if told.is_set():
                over.fill_(1)
            dist.broadcast(over, 0)
        return done

    if fails:
        caught(link, rounds)
        caught(link, dist.barrier, "again")
    else:
        done = rounds()
        stats = torch_mcast.stats()
        assert stats["failure"] == ""
        link.say("good", rounds=done, path=stats["path"])
    dist.destroy_process_group()
    link.say("destroyed")
