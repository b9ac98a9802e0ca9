"""CPUs of the host against the ranks that share them."""

from __future__ import annotations

import os
from pathlib import Path

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def quota(text: str) -> float | None:
    """CPUs that a cgroup's cpu.max allows ("max 100000" or "200000 100000"); None: no limit."""
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


def run(context: Context) -> list[Finding]:
    try:
        limit = quota(_CPU_MAX.read_text())
    except OSError:
        limit = None
    ranks = max(context.whole("LOCAL_WORLD_SIZE", 1), 1)
    return [judge_cpus(len(os.sched_getaffinity(0)), limit, ranks)]
