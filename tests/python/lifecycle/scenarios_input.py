"""Invalid arguments, settings and environments."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct
from typing import Any

import torch
import torch.distributed as dist
from scenarios import caught, group_backend, join, tcp_store
from scenarios_failure import all_good

import torch_mcast


def arguments(link: Any) -> None:
    """Invalid arguments raise before anything is sent: no sequence number is used, and the group
    still works."""
    join(link)
    rank, world = link.rank, link.world
    backend, group = group_backend(), dist.group.WORLD
    four, eight = torch.zeros(4), torch.zeros(4 * world)
    wrong = [
        lambda: dist.broadcast(four, -1),
        lambda: dist.broadcast(four, world),
        lambda: dist.broadcast(four.to_sparse(), 0),
        # With dist.broadcast(), torch would take it for tracing and send nothing.
        lambda: backend.broadcast([torch.zeros(4, device="meta")]),
        lambda: dist.broadcast(torch.quantize_per_tensor(four, 1.0, 0, torch.qint8), 0),
        lambda: dist.broadcast(torch.eye(4).to_sparse_csr(), 0),
        lambda: backend.broadcast([four, four]),
        lambda: dist.all_gather_into_tensor(torch.zeros(4 * world + 1), four),
        lambda: dist.all_gather_into_tensor(torch.zeros(0), four),
        lambda: dist.all_gather_into_tensor(eight.double(), four),
        lambda: backend._allgather_base(eight, torch.zeros(4, device="meta")),
        lambda: backend._allgather_base(torch.zeros(4 * world, device="meta"), four),
        lambda: dist.all_gather([torch.zeros(4)] * (world - 1), four),
        lambda: dist.all_gather([torch.zeros(4)] * (world + 1), four),
        lambda: dist.all_gather([torch.zeros(3)] * world, four),
        lambda: dist.all_gather([torch.zeros(4, dtype=torch.int32)] * world, four),
        lambda: group.allgather_into_tensor_coalesced([eight], [four, four]),
        lambda: dist.broadcast("not a tensor", 0),
        lambda: dist.all_gather_into_tensor(eight, None),
    ]
    for call in wrong:
        caught(link, call)
    assert torch_mcast.stats()["next_sequence"] == 0
    # Unusual but valid: empty, strided, transposed, expanded views of other storages, scalars, 0
    # bytes.
    dist.broadcast(torch.zeros(0), 0)
    dist.all_gather_into_tensor(torch.zeros(0), torch.zeros(0))
    dist.all_gather([torch.zeros(0, 3) for _ in range(world)], torch.zeros(0, 3))
    base = torch.full((6, 8), float(rank))
    dist.broadcast(base.t()[::2], 1)
    assert base[:, ::2].eq(1).all() and base[:, 1::2].eq(rank).all()
    scalar = torch.tensor(float(rank))
    dist.broadcast(scalar, 1)
    assert scalar.item() == 1
    rows = torch.zeros(world * 3, 5)
    dist.all_gather_into_tensor(rows, torch.full((3, 1), float(rank)).expand(3, 5))
    assert [rows[3 * r, 4].item() for r in range(world)] == list(range(world))
    all_good()
    # After the group has ended.
    dist.destroy_process_group()
    caught(link, lambda: backend.broadcast([four]))
    caught(link, lambda: backend.barrier())
    caught(link, lambda: torch_mcast.stats())
    link.say("good")


def settings(link: Any, cases: list[tuple[dict[str, str], dict[str, Any]]]) -> None:
    """Each case fails on its rank before it involves the others; then the right settings work."""
    for number, (env, options) in enumerate(cases):
        before = dict(os.environ)
        os.environ.update(env)
        caught(link, lambda o=options, n=number: join(link, incarnation=f"wrong{n}", **o))
        os.environ.clear()
        os.environ.update(before)
    join(link)
    all_good()
    dist.destroy_process_group()
    link.say("good")


def descriptors(link: Any, spare: int) -> None:
    """Rank 1 may open only a few more descriptors: creating the group works, or its error says so.
    With descriptors available again it works."""
    # This store needs no further descriptors. A FileStore that gets none ends the process.
    store = tcp_store(link)
    taken: list[int] = []
    if link.rank == 1:
        # The hard limit, since the engine would raise the soft one. It stays; the test closes the
        # descriptors it took.
        used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 200, used + 200))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(spare):
            os.close(taken.pop())
    try:
        first = dist.PrefixStore("first", store)
        join(link, timeout_s=4, store=first, fallback="none", liveness_limit=1000)
        all_good()
        link.say("made", text="", kind="")
    except Exception as error:  # noqa: BLE001 - checked by the test
        link.say("made", text=str(error), kind=type(error).__name__)
    for fd in taken:
        os.close(fd)
    link.hear("again")
    if dist.is_initialized():
        dist.destroy_process_group()
    join(link, store=dist.PrefixStore("second", store))
    all_good()
    dist.destroy_process_group()
    link.say("good")
    link.hear("end")  # rank 0 serves the store


def forbid_sockets() -> None:
    """Makes socket() for IPv4 fail with EPERM from now on, in this process (seccomp)."""
    number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
    load, equal, ret = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    allow, eperm = 0x7FFF0000, 0x00050000 | errno.EPERM
    program = [
        (load, 0, 0, 0),  # number of the call
        (equal, 0, 3, number),
        (load, 0, 0, 16),  # its first argument, low half
        (equal, 0, 1, socket.AF_INET),
        (ret, 0, 0, eperm),
        (ret, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in program))
    filter_ = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    if (
        libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0
        or libc.prctl(seccomp, by_filter, ctypes.addressof(filter_), 0, 0) != 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")


def forbidden(link: Any) -> None:
    if link.rank == 1:
        forbid_sockets()
    caught(link, lambda: join(link, timeout_s=2))


def works(link: Any, size: int, options: dict[str, Any]) -> None:
    """Runs an ordinary job and returns its group's stats."""
    join(link, **options)
    all_good(size)
    second = dist.new_group(backend="mcast")
    dist.barrier(group=second)
    stats = torch_mcast.stats()
    told = ("transport", "path", "reason", "chunk", "window", "counters")
    link.say("stats", **{key: stats[key] for key in told})
    dist.destroy_process_group()
