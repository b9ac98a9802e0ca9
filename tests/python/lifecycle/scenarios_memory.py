"""Ranks whose memory runs out at some moment of their life."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
from pathlib import Path
from typing import Any

import exact
import torch
import torch.distributed as dist
from contents import compare
from scenarios import join

M_ARENA_MAX = -8


def no_more_than(room: int) -> None:
    """Limits the address space to this much beyond the current mappings."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def enough_again() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def creation(link: Any, victims: list[int], room: int) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    if link.rank in victims:
        no_more_than(room)
    try:
        # Gloo ends a process in which it can start only some of its threads.
        join(link, timeout_s=2, fallback="none")
    except Exception as error:  # noqa: BLE001 - the test checks it
        enough_again()
        link.say("error", kind=type(error).__name__, text=str(error))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    else:
        enough_again()
        exact.every()
        dist.destroy_process_group()
        link.say("good")
    link.hear("again")
    join(link, incarnation="2")
    exact.every()
    dist.destroy_process_group()
    link.say("good")


def keep_all_but(room: int) -> None:
    """Allocates all that malloc() still has, except this many bytes."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    spared = [libc.malloc(4096) for _ in range(room // 4096)]
    no_more_than(0)
    for size in (1 << 20, 1 << 16, 1 << 12, 1 << 9, 1 << 7):
        with contextlib.suppress(MemoryError):
            while libc.malloc(size):
                pass
    for at in spared:
        libc.free(at)


def operations(link: Any, victim: int, room: int) -> None:
    """Allocates everything that the script itself needs before memory runs out."""
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # one heap for all threads
    # A rank that gets no memory for an operation leaves while the others wait for it there.
    join(link, timeout_s=20, fallback="none", liveness_limit=2000, linger=1000)
    world, count = link.world, 1 << 18
    mine, large = exact.words(link.rank, count, 0), torch.empty(world * count, dtype=torch.int64)
    small = [torch.full((500,), link.rank) for _ in range(1000)]
    expected = torch.cat([exact.words(r, count, 0) for r in range(world)])
    dist.barrier()

    def all_of_them() -> None:
        works = [dist.broadcast(tensor, i % world, async_op=True) for i, tensor in enumerate(small)]
        for work in works:
            work.wait()
        dist.all_gather_into_tensor(large, mine)
        dist.reduce_scatter_tensor(mine, large)
        dist.barrier()

    if link.rank == victim:
        keep_all_but(room)
    try:
        all_of_them()
    except Exception as error:  # noqa: BLE001 - the test checks it
        enough_again()
        link.say("error", kind=type(error).__name__, text=str(error))
    else:
        enough_again()
        for i, tensor in enumerate(small):
            assert bool((tensor == i % world).all())
        compare(large, expected, "gathered")
        compare(mine, expected.view(world, count)[link.rank] * world, "and added up")
        link.say("good")
    dist.destroy_process_group()
