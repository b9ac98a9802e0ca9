"""Functions of ranks to which system calls are denied."""

from __future__ import annotations

from typing import Any

import exact
import sandbox
import torch.distributed as dist
from scenarios import caught, join, leave_poisoned, post

import torch_mcast


def deny(calls: list[tuple[str, dict[str, int]]], error: int) -> None:
    sandbox.deny([(name, {int(at): v for at, v in where.items()}) for name, where in calls], error)


def works(link: Any, calls: list[Any], error: int) -> None:
    """Runs collectives with exact bytes, on all ranks alike."""
    deny(calls, error)
    join(link)
    exact.every()
    stats = torch_mcast.stats()
    assert stats["failure"] == ""
    dist.destroy_process_group()
    link.say("good", **{name: stats[name] for name in ("path", "reason", "transport")})


def refused(link: Any, calls: list[Any], error: int) -> None:
    deny(calls, error)
    caught(link, lambda: join(link, timeout_s=5))


def dies(link: Any, calls: list[Any], error: int) -> None:
    """One rank is killed while the others wait for it."""
    deny(calls, error)
    join(link, 600, liveness_limit=10_000)
    exact.every()
    link.say("ready")
    link.hear("go")
    caught(link, lambda: post("all_gather").wait())
    leave_poisoned(link, "all_gather")
