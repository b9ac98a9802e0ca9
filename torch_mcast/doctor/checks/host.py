"""CPUs of the host, compared with its ranks, and the host's name, by which torchrun's ranks look
for rank 0."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import stays

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
_NAME_LIMIT_S = 5.0


def quota(text: str) -> float | None:
    """Returns the CPUs that a cgroup's cpu.max allows ("max 100000" or "200000 100000"); None: no limit."""
    try:
        most, period = text.split()
        return None if most == "max" else int(most) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def judge_cpus(cpus: int, limit: float | None, ranks: int) -> Finding:
    usable = min(cpus, limit) if limit is not None else cpus
    shown = f"{cpus} CPU(s)" + (f", cgroup quota {limit:g}" if limit is not None else "")
    data = {"cpus": cpus, "quota": limit, "ranks": ranks}
    if usable < ranks:
        text = f"{shown} for {ranks} ranks of this host: ranks wait for each other's CPU"
        return warn("cpus", text, f"torchrun --nproc-per-node {max(int(usable), 1)}", **data)
    return ok("cpus", f"{shown} for {ranks} rank(s) of this host", **data)


def address_of(name: str, limit_s: float = _NAME_LIMIT_S) -> str:
    """Returns the address that this host resolves `name` to, "" if none. A resolver can take
    minutes to give up, so the query runs in a thread that is not waited for beyond the limit."""
    found: list[str] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            found.append(str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0]))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(limit_s)
    return found[0] if found else ""


def judge_name(name: str, address: str) -> Finding:
    data = {"name": name, "address": address}
    if address:
        return ok("host name", f"{name} is {address}", **data)
    text = f"{name} does not resolve here: torchrun's ranks look for rank 0 by that name, and would wait"
    fix = stays(
        f'echo "127.0.1.1 {name}" >> /etc/hosts',
        "until that line is deleted",
        "programs that ask for this host's name get an address that other hosts cannot reach",
    )
    fix += ", or torchrun --local-addr ADDRESS"
    return warn("host name", text, fix, **data)


def run(context: Context) -> list[Finding]:
    try:
        limit = quota(_CPU_MAX.read_text())
    except OSError:
        limit = None
    ranks = max(context.whole("LOCAL_WORLD_SIZE", 1), 1)
    name = socket.gethostname()
    return [
        judge_cpus(len(os.sched_getaffinity(0)), limit, ranks),
        judge_name(name, address_of(name)),
    ]
