"""Ranks of an ordinary user: no root, no capabilities, and no access to each other's memory."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import exact
import sandbox
import torch
import torch.distributed as dist
from contents import compare
from scenarios import join

import torch_mcast
from torch_mcast import _backend, _metrics, _stats

USER = 65534
IMPORTED = (_backend, _metrics, _stats)  # the sources may be in a folder that only root may enter
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38


def become_user(*paths: Path) -> None:
    """Gives up root permanently, and the ownership of `paths`. Started without root, the process is
    already as needed."""
    if os.getuid() == 0:
        for path in paths:
            os.chown(path, USER, USER)
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        # As for a program that the user started; a process that has changed its user hides its
        # /proc from others.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def capabilities() -> set[str]:
    """Returns the capabilities in effect; the kernel checks "CapEff"."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split()[1] for line in lines if line.startswith(("CapPrm", "CapEff", "CapAmb"))}


def deny_memory() -> None:
    """Denies access as Yama's ptrace_scope 1 does between processes of which neither is the other's
    ancestor."""
    sandbox.deny([("process_vm_readv", {}), ("process_vm_writev", {})], errno.EPERM)


def messages(count: int) -> None:
    """Sends messages around the ring of ranks, and from every rank to every other."""
    rank, world = dist.get_rank(), dist.get_world_size()
    before, output = (rank - 1) % world, torch.zeros(count, dtype=torch.int64)
    sent = dist.isend(exact.words(rank, count, 7), (rank + 1) % world)
    dist.recv(output, before)
    sent.wait()
    compare(output, exact.words(before, count, 7), f"message of {count}")
    blocks = torch.zeros(world * count, dtype=torch.int64)
    dist.all_to_all_single(blocks, exact.words(rank, world * count, 8))
    expected = [exact.words(r, world * count, 8).chunk(world)[rank] for r in range(world)]
    compare(blocks, torch.cat(expected), f"all_to_all of {count}")


def works(link: Any, denied: bool) -> None:
    """Runs every operation with exact bytes, small and large."""
    become_user(link.folder)
    assert os.getuid() != 0 and capabilities() == {16 * "0"}
    if denied:
        deny_memory()
    join(link)
    exact.every()
    for count in (5, 100_000):
        messages(count)
    stats = torch_mcast.stats()
    assert stats["failure"] == "" and not any(c["fallback"] for c in stats["calls"].values())
    link.say("good", **{name: stats[name] for name in ("path", "transport", "transport_reason")})
    link.hear("end")
    dist.destroy_process_group()
