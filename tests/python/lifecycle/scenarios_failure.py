"""Ranks that are late, make different calls, abort, and create the group again."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import stat
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from passing_store import PassingStore
from scenarios import HOLE, caught, join, leave_poisoned, post, tcp_store
from torch.distributed.distributed_c10d import _set_pg_timeout
from waiting import until

import torch_mcast
from torch_mcast._stats import backend_of


def all_good(size: int = 100_000) -> None:
    """Checks that the default group works: exact bytes, and no failure."""
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(size * world, dtype=torch.uint8)
    dist.all_gather_into_tensor(output, torch.full((size,), rank + 1, dtype=torch.uint8))
    expected = torch.arange(1, world + 1, dtype=torch.uint8).repeat_interleave(size)
    assert torch.equal(output, expected)
    dist.barrier()
    assert torch_mcast.stats()["failure"] == ""


def used(like: list[str] | None = None) -> tuple[int, list[str]]:
    """Returns the number of open descriptors, and the threads except those that the process starts
    with their first task and keeps: the names of ours, and the number of others (Gloo's name
    themselves some time after their start). `like`: the threads expected once ending threads have
    ended, which this waits for."""
    lasting = {"mcast-finish", "mcast-future"}

    def threads() -> list[str]:
        names = thread_names()
        ours = sorted(n for n in names if n.startswith("mcast") and n not in lasting)
        return [*ours, f"{sum(not n.startswith('mcast') for n in names)} others"]

    def settled() -> bool:
        # Until a thread has named itself it has its creator's name.
        now = threads()
        return len(set(now)) == len(now) if like is None else now == like

    with contextlib.suppress(TimeoutError):  # the test reports the difference
        until(settled, "threads that end")
    return len(os.listdir("/proc/self/fd")), threads()


def thread_names() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return names


class MallInfo2(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def allocated() -> int:
    """Returns the bytes that malloc() has given out and that were not freed, which RSS does not
    show exactly."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallInfo2
    facts = libc.mallinfo2()
    return facts.uordblks + facts.hblkhd


def late(link: Any, victim: int, op: str, timeout_s: float) -> None:
    """The victim never calls the operation, but lives: all ranks get an error at the timeout that
    names it."""
    join(link, timeout_s=60)
    dist.barrier()
    group = dist.new_group(backend="mcast", timeout=timedelta(seconds=timeout_s))
    dist.barrier()
    if link.rank == victim:
        until(lambda: torch_mcast.stats(group)["failure"], "the news")
        caught(link, lambda: dist.barrier(group=group))
    else:
        caught(link, lambda: post(op, group=group).wait())
    caught(link, lambda: dist.barrier(group=group), "again")
    all_good()  # other groups are unaffected
    dist.destroy_process_group()
    link.say("good")


def late_but_in_time(link: Any) -> None:
    """A late rank is waited for, far beyond the liveness limit, on a clock that the test moves."""
    join(link, timeout_s=600, liveness_limit=10_000)
    if link.rank == 1:
        link.say("elsewhere")
        link.hear("go")
    else:
        work = dist.barrier(async_op=True)
        link.say("waiting")
        for limit_ms in (15_000, 20_000):
            caught(link, lambda ms=limit_ms: work.wait(timedelta(milliseconds=ms)))
        link.hear("go")
        work.wait()
    if link.rank == 1:
        dist.barrier()
    all_good()
    dist.destroy_process_group()
    link.say("good")


def differ(link: Any, case: str) -> None:
    """One call differs on rank 1; the group is given up, and the next case has its own group."""
    join(link)
    rank, world = link.rank, link.world
    one = rank == 1
    size = 300_000

    def call() -> None:
        dist.barrier()  # else two ranks may fail the group while the third still creates it
        mine = torch.zeros(size, dtype=torch.uint8)
        if case == "size":
            length = size + 64 * one
            dist.all_gather_into_tensor(
                torch.zeros(length * world, dtype=torch.uint8),
                torch.zeros(length, dtype=torch.uint8),
            )
        elif case == "small size":
            tensor = torch.zeros(8 + one, dtype=torch.uint8)
            dist.broadcast(tensor, 0)
        elif case == "dtype":
            dtype = torch.float32 if one else torch.int32
            mine = torch.zeros(size, dtype=dtype)
            dist.all_gather_into_tensor(torch.zeros(size * world, dtype=dtype), mine)
        elif case == "op":
            if one:
                dist.broadcast(mine, 0)
            else:
                dist.all_gather_into_tensor(torch.zeros(size * world, dtype=torch.uint8), mine)
        elif case == "barrier":
            if one:
                dist.barrier()
            else:
                dist.broadcast(mine, 0)
        elif case == "root":
            dist.broadcast(mine, rank)
        elif case == "list length":
            parts = [mine[:100], mine[100:]] if one else [mine[:100]]
            outputs = [torch.zeros(len(p) * world, dtype=torch.uint8) for p in parts]
            dist.group.WORLD.allgather_into_tensor_coalesced(outputs, parts).wait()
        dist.barrier()  # small operations complete before other ranks have received them

    caught(link, call)
    leave_poisoned(link, "barrier")


def options_differ(link: Any, by_rank: list[dict[str, Any]]) -> None:
    """Agreed settings differ by Options or environment; then the same processes agree."""
    caught(link, lambda: join(link, **by_rank[link.rank]))
    for name in [n for n in os.environ if n.startswith("MCAST_") and n != "MCAST_SOCKET_IFNAME"]:
        del os.environ[name]
    join(link, incarnation="2")
    all_good()
    dist.destroy_process_group()
    link.say("good")


def aborted(link: Any) -> None:
    """abort() from another thread while all wait for a rank that does not come; then the group is
    created again."""
    join(link)
    dist.barrier()
    works = []
    if link.rank == 0:
        works = [dist.barrier(async_op=True) for _ in range(5)]
        threading.Timer(0.2, torch_mcast.abort).start()
        for work in works:
            caught(link, work.wait)
    elif link.rank == 1:
        caught(link, dist.barrier)
    else:
        until(lambda: torch_mcast.stats()["failure"], "the news")
        caught(link, dist.barrier)
    for incarnation in ("2", "3"):
        torch_mcast.abort()  # the first call has no effect: the group has failed already
        caught(link, dist.barrier, "again")
        dist.destroy_process_group()
        join(link, incarnation=incarnation)
        all_good()
        link.say("worked")
        link.hear("go")
    dist.destroy_process_group()
    link.say("good")


def begin_again(link: Any, abort_first: bool, algorithm: str) -> None:
    """A rank is stopped so long that it counts as dead, continues, and all create the group again.
    The test moves the clock."""
    hole = {"faults": HOLE} if algorithm == "multicast" else {}
    options = {"liveness_limit": 10_000, "algorithm": algorithm, "timeout_s": 600}
    join(link, **options, **hole)
    dist.barrier()
    # Without a hole the operation may be complete before rank 2 is stopped, unless it posts later.
    waits = link.rank == 2 and torch_mcast.stats()["path"] != "multicast"
    work = None if waits else post("all_gather_into_tensor", 24 << 20)
    link.say("posted")
    if link.rank == 2:
        link.hear("continued")
    caught(link, lambda: (work or post("all_gather_into_tensor", 24 << 20)).wait())
    link.hear("again")
    if abort_first:
        torch_mcast.abort()
    dist.destroy_process_group()
    for incarnation in ("2", "3"):
        join(link, incarnation=incarnation, **options, **hole)
        all_good(100)
        dist.destroy_process_group()
    join(link, 600, incarnation="4", algorithm=algorithm)
    all_good()
    dist.destroy_process_group()
    link.say("good")


def cut(link: Any) -> None:
    """All connections of a rank break, but no process ends: all get an error, then create the group
    again."""
    join(link, liveness_limit=20_000)
    all_good()
    before = used()
    link.say("ready")
    link.hear("go")
    if link.rank == 1:
        copies = []  # all of them first: the lane closes its own once one breaks
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
                if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                    copies.append(socket.socket(fileno=os.dup(int(name))))
        for copy in copies:
            if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):  # listening sockets have no peer
                    copy.getpeername()
                    copy.shutdown(socket.SHUT_RDWR)
            copy.close()
    caught(link, lambda: (dist.barrier(), dist.barrier()))
    dist.destroy_process_group()
    for incarnation in ("2", "3"):
        join(link, incarnation=incarnation, liveness_limit=20_000)
        all_good()
        after = used(before[1])
        dist.destroy_process_group()
    link.say("used", before=before, after=after)


def replaced(link: Any) -> None:
    """One rank dies; the survivors continue as a smaller job in the same processes."""
    join(link)
    if link.rank == 2:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    # The first may be complete for the dying rank before a survivor has received it.
    caught(link, lambda: (dist.barrier(), dist.barrier(), dist.barrier()))
    dist.destroy_process_group()
    link.world = 2
    join(link, incarnation="2")
    all_good()
    dist.destroy_process_group()
    link.say("good")


def in_flight(link: Any) -> None:
    """Calls destroy_process_group with work in flight that cannot complete: its time limit ends it
    on all ranks."""
    join(link)
    dist.barrier()
    if link.rank == 0:
        _set_pg_timeout(timedelta(seconds=1))
        work = dist.barrier(async_op=True)
        dist.destroy_process_group()
        caught(link, work.wait)
    else:
        link.hear("go")
        caught(link, lambda: (dist.barrier(), dist.barrier()))
        dist.destroy_process_group()
    join(link, incarnation="2")
    all_good()
    dist.destroy_process_group()
    link.say("good")


def all_numbers_are_given_up(link: Any) -> None:
    """All numbers of group creations are marked as over, as a process that can write to the store
    may do."""

    class Store(PassingStore):
        def check(self, keys: list[str]) -> bool:
            return any("/over/" in key for key in keys) or self.real.check(keys)

    caught(link, lambda: join(link, store=Store(dist.HashStore())))


def fails_before_the_others(link: Any, why: str, kind: str) -> None:
    """Rank 1 fails alone in its first attempt; the second attempt uses the same keys of the same store."""
    path = str(link.folder / "store")
    store = tcp_store(link) if kind == "tcp" else dist.FileStore(path, link.world)
    wrong = ("MCAST_EAGER", "lots") if why == "setting" else ("MCAST_SOCKET_IFNAME", "nope0")
    before = os.environ.get(wrong[0])
    if link.rank == 1:
        os.environ[wrong[0]] = wrong[1]
    caught(link, lambda: join(link, timeout_s=2, store=store))
    link.hear("again")
    if link.rank == 1:
        del os.environ[wrong[0]]
        if before is not None:
            os.environ[wrong[0]] = before
    # As after destroy_process_group(): the next default group gets the name of the first one.
    dist.distributed_c10d._world.group_count = 0
    join(link, store=store)
    all_good()
    dist.destroy_process_group()
    link.say("good")
    link.hear("end")  # rank 0 serves the store


def last_key_after_a_look(link: Any) -> None:
    """A rank's wait for the keys passes its limit, and the last key is set before it asks which
    ones are missing."""

    class Store(PassingStore):
        def __init__(self, real: Any) -> None:
            super().__init__(real)
            self.late = False

        def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
            if link.rank == 1 and not self.late and any("shared/" in key for key in keys):
                self.late = True
                time.sleep(timeout.total_seconds() + 1)  # also past the bootstrap's limit
                self.real.wait(keys, timedelta(seconds=30))
                raise RuntimeError("wait timeout")
            self.real.wait(keys, timeout)

    real = dist.FileStore(str(link.folder / "store"), link.world)
    store = Store(real)
    join(link, store=store)
    all_good()
    dist.destroy_process_group()
    assert store.late == (link.rank == 1 and os.environ["MCAST_SHARED_MEMORY"] == "auto")
    link.say("good")


def subgroup(link: Any) -> None:
    """An error in a group whose ranks are not the global ones."""
    join(link)
    group = dist.new_group([1, 3], backend="mcast")
    dist.barrier()  # both ranks have created it
    if link.rank == 1:
        backend_of(group).abort()
    if link.rank in (1, 3):
        caught(link, lambda: dist.barrier(group=group))
    all_good()
    dist.destroy_process_group()
    link.say("good")


def reinit(link: Any, rounds: int) -> None:
    """Runs init, work and destroy many times: descriptors, threads and memory do not grow."""
    # The flight recorder keeps up to 2000 entries by design.
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    rows = []
    store = dist.FileStore(str(link.folder / "many"), link.world)
    for i in range(rounds):
        dist.init_process_group(
            "mcast", store=dist.PrefixStore(str(i), store), rank=link.rank, world_size=link.world,
            timeout=timedelta(seconds=60),
        )  # fmt: skip
        all_good(50_000)
        never_waited = post("all_gather_into_tensor", 5000)
        dist.all_reduce(torch.ones(10))
        dist.barrier()
        del never_waited
        dist.destroy_process_group()
        if i in (rounds // 4, rounds - 1):
            gc.collect()
            rows.append((*used(rows[0][1] if rows else None), allocated()))
    link.say("used", rows=rows)
