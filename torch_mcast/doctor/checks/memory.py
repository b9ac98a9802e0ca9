"""Memory shared on one host: /dev/shm, and process_vm_readv between processes.

Ranks are siblings, and Yama's scope 1 lets a process read only its descendants, unless the other
process allows it, as the library does (csrc/core/shm/process.cpp). So a child reads the memory of
its parent, which has allowed it: that works if and only if ranks may read each other."""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from pathlib import Path

from torch_mcast.doctor.checks.buffers import size_text
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import stays, sysctl, until_reboot

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER, _PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
_SHM_PER_RANK = 64 << 20
_SHM_COST = "any user may fill it; takes memory only as it is used"
_READER = """
import ctypes, os, sys
class V(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
pid, address, length = map(int, sys.argv[1:])
buffer = ctypes.create_string_buffer(length)
read = ctypes.CDLL(None, use_errno=True).process_vm_readv
read.argtypes = [ctypes.c_int, ctypes.POINTER(V), ctypes.c_ulong, ctypes.POINTER(V),
                 ctypes.c_ulong, ctypes.c_ulong]
read.restype = ctypes.c_ssize_t
here, there = V(ctypes.addressof(buffer), length), V(address, length)
n = read(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
print(buffer.raw.hex() if n == length else "error " + os.strerror(ctypes.get_errno()))
"""


def read_by_child() -> str:
    """Returns "" if another process can read this one's memory, else the reason."""
    token = secrets.token_bytes(16)
    buffer = ctypes.create_string_buffer(token, len(token))
    arguments = [os.getpid(), ctypes.addressof(buffer), len(token)]
    allow = ctypes.CDLL(None).prctl
    allow(_PR_SET_PTRACER, _PTRACER_ANY, 0, 0, 0)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _READER, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    finally:
        allow(_PR_SET_PTRACER, 0, 0, 0, 0)
    answer = done.stdout.strip()
    if answer == token.hex():
        return ""
    return answer.removeprefix("error ") or f"the reader ended with {done.returncode}"


def judge_readv(problem: str, scope: str) -> Finding:
    data = {"works": not problem, "ptrace_scope": scope}
    if not problem:
        return ok("process_vm_readv", "processes of this user can read each other's memory", **data)
    text = f"{problem}: no single-copy reads between ranks of one host"
    if scope in ("2", "3"):
        text += f" (Yama ptrace_scope is {scope})"
        cost = "processes of one user may read each other's memory where the process that is read allows it"
        fix = sysctl("kernel.yama.ptrace_scope", 1, cost)
        if scope == "3":  # cannot be lowered
            file = "/etc/sysctl.d/60-torch-mcast-ptrace_scope.conf"
            fix = stays(f"echo kernel.yama.ptrace_scope=1 > {file}", "from the next boot on", cost)
        return warn("process_vm_readv", text, fix, **data)
    fix = (
        "docker run --cap-add SYS_PTRACE ...  (for that container: its processes may read each other's "
        "memory; without it ranks copy through shared memory, which is slower for large tensors)"
    )
    return warn("process_vm_readv", text, fix, **data)


def judge_shm(total: int, free: int, ranks: int) -> Finding:
    need = _SHM_PER_RANK * ranks
    text = f"{size_text(free)} free of {size_text(total)}"
    data = {"total": total, "free": free, "needed": need}
    if free >= need:
        return ok("/dev/shm", text, **data)
    size = max(1 << 30, 1 << (need - 1).bit_length()) >> 30
    keep = f"in /etc/fstab; docker: --shm-size={size}g"
    fix = until_reboot(f"mount -o remount,size={size}G /dev/shm", keep, _SHM_COST)
    text += f"; {ranks} rank(s) of this host and their data loaders need {size_text(need)}"
    return warn("/dev/shm", text, fix, **data)


def run(context: Context) -> list[Finding]:
    try:
        scope = _SCOPE.read_text().strip()
    except OSError:
        scope = ""
    try:
        room = os.statvfs("/dev/shm")
        ranks = max(context.whole("LOCAL_WORLD_SIZE", 1), 1)
        shm = judge_shm(room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail, ranks)
    except OSError as error:
        shm = warn(
            "/dev/shm",
            str(error.strerror),
            until_reboot("mount -t tmpfs tmpfs /dev/shm", "in /etc/fstab", _SHM_COST),
        )
    try:
        readv = judge_readv(read_by_child(), scope)
    except (OSError, subprocess.TimeoutExpired) as error:
        readv = warn(
            "process_vm_readv", f"not tried, since a second process could not run: {error}"
        )
    return [readv, shm]
