"""Limits of the process: open files, locked memory."""

from __future__ import annotations

import resource
from pathlib import Path

from torch_mcast.doctor.checks.buffers import size_text
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import user_limit

# Python, torch and a data loader, the engine's sockets; then per peer up to three streams, and as
# many again while both sides connect at once.
_BASE_FILES, _FILES_PER_PEER = 256, 6
_RDMA = Path("/sys/class/infiniband")


def judge_files(soft: int, hard: int, world: int) -> Finding:
    infinite = resource.RLIM_INFINITY
    need = _BASE_FILES + _FILES_PER_PEER * world
    shown = "unlimited" if soft == infinite else str(soft)
    data = {"soft": soft, "hard": hard, "needed": need}
    if soft == infinite or soft >= need:
        return ok("open files", f"{shown}; {world} rank(s) need about {need}", **data)
    if hard == infinite or hard >= need:
        # The engine raises it when a group is created.
        return ok("open files", f"{shown}, raised automatically; {world} ranks need {need}", **data)
    wanted = 1 << (need - 1).bit_length()
    fix = user_limit("nofile", wanted, "each process of that user may open as many files")
    judge = fail if soft < _BASE_FILES // 2 else warn
    return judge("open files", f"{shown}; {world} ranks may need {need}", fix, **data)


def judge_memlock(soft: int, devices: list[str]) -> Finding:
    infinite = soft == resource.RLIM_INFINITY
    shown = "unlimited" if infinite else size_text(soft)
    data = {"soft": soft, "rdma": devices}
    if not devices:
        return ok("locked memory", f"{shown}; no RDMA device here, so not needed", **data)
    if infinite:
        return ok("locked memory", f"{shown}; RDMA devices {', '.join(devices)}", **data)
    return warn(
        "locked memory",
        f"{shown}; registering memory with {', '.join(devices)} needs more",
        user_limit(
            "memlock", "unlimited", "that user's processes may take memory that is never swapped"
        ),
        **data,
    )


def _rdma_devices() -> list[str]:
    try:
        return sorted(p.name for p in _RDMA.iterdir())
    except OSError:
        return []


def run(context: Context) -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    world = max(context.whole("WORLD_SIZE", 1), 1)
    return [judge_files(soft, hard, world), judge_memlock(memlock, _rdma_devices())]
