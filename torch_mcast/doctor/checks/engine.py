"""The engine of this host: whether one responds, may be used and is of this version, its limits,
and the effect of MCAST_ENGINE here. Also how it accesses tensors: by copies, or mapped."""

from __future__ import annotations

import grp
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_mcast._status_socket import Untrusted
from torch_mcast.doctor.checks.buffers import size_text
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import stays, sysctl
from torch_mcast.engine.status import DEFAULT_SOCKET, NoEngine, read

_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_POOLS = 64 << 40  # of all ranks of a host together


@dataclass(frozen=True)
class Seen:
    """The state of the engine at `path`, as this process finds it."""

    path: str
    status: dict[str, Any] | None = None  # None if no engine responds
    silent: str = ""  # the reason for that
    untrusted: str = ""  # the user whose process responds, if it may pose as the engine
    closed_to: str = ""  # the group whose members may connect, if this process may not


def parse(choice: str) -> tuple[str, str]:
    """Splits the setting `engine` into (inproc, host or auto; the path)."""
    where, _, path = choice.partition(":")
    return where, path or DEFAULT_SOCKET


def look(path: str, user: str = "") -> Seen:
    """Reads the status of the engine. `user`: setting engine_user."""
    try:
        status = read(path, user)
    except NoEngine as error:
        untrusted = str(error.__cause__) if isinstance(error.__cause__, Untrusted) else ""
        return Seen(path, silent=str(error), untrusted=untrusted)
    closed_to = ""
    try:
        if not os.access(path, os.W_OK):
            gid = os.stat(path).st_gid
            try:
                closed_to = grp.getgrgid(gid).gr_name
            except KeyError:
                closed_to = str(gid)
    except OSError as error:
        return Seen(
            path, silent=f"its status socket responds, but {path} does not: {error.strerror}"
        )
    return Seen(path, status, closed_to=closed_to)


def modes_of(status: dict[str, Any]) -> list[str]:
    """Returns the security modes that an engine serves; an engine older than secrets only serves off."""
    return status.get("security", {}).get("modes", ["off"])


def judge_engine(
    where: str, seen: Seen, version: str, one_host: bool, mode: str = "off"
) -> Finding:
    """`where`: as of parse(); `one_host`: all ranks of the job are here, so `auto` stays in process;
    `mode`: setting `security`."""
    status = seen.status
    told = f"MCAST_ENGINE={where}"
    data: dict[str, Any] = {"setting": where, "path": seen.path, "status": status}
    must = fail if where == "host" else ok
    if seen.untrusted:
        return _judge_untrusted(where, seen, data)
    if status is None:
        text = f"no engine responds at {seen.path}; {told}: "
        text += "no group can be made" if where == "host" else "each rank runs its own network"
        fix = f"torch-mcast engine run --socket {seen.path}" if where == "host" else ""
        return must("engine", text, fix, takes="none" if fix else "inproc", why=seen.silent, **data)
    what = f"{status['version']}, process {status['pid']}, {len(status['clients'])} client(s)"
    wanted = where == "host" or (where == "auto" and not one_host)
    judge = {"host": fail, "auto": warn}.get(where, ok) if wanted else ok
    if seen.closed_to:
        text = f"{what}: this user may not connect to {seen.path} ({told})"
        fix = stays(
            f'usermod --append --groups {seen.closed_to} "$USER"',
            "from the next login on",
            "this user may then use the engine, its network and its memory",
        )
        return judge("engine", text, fix, takes="none" if judge is fail else "inproc", **data)
    if status["draining"] and wanted:
        text = (
            f"{what}: is being replaced and makes no new groups; {told} waits for the next engine"
        )
        return warn(
            "engine", text, f"torch-mcast engine run --socket {seen.path}", takes="next", **data
        )
    if status["version"] != version and wanted:
        text = f"{what}: this process is of {version}; {told}"
        return warn("engine", text, "install the same version on both sides", takes="host", **data)
    if wanted and mode not in modes_of(status):
        modes = modes_of(status)
        text = f"{what}: serves security {', '.join(modes)}, not {mode}; {told}"
        fix = f"export MCAST_SECURITY={modes[-1]}"
        if modes == ["off"]:
            fix = "torch-mcast engine run --secret-file FILE ..."
        takes = "none" if judge is fail else "inproc"
        return judge("engine", text, fix, takes=takes, **data)
    most = status["limits"]
    text = (
        f"{what}; limits: {most['clients']} clients per user, and per client {most['groups']} groups, "
        f"{most['operations']} operations, {size_text(most['arena_bytes'])} shared; {told}: "
    )
    text += "it runs the network" if wanted else "each rank runs its own network"
    if wanted and mode != "off":
        text += f", and has a secret: security={mode}"
        if where == "auto":
            text += "; ranks with another secret do not use the engine"
    return ok("engine", text, takes="host" if wanted else "inproc", **data)


def _judge_untrusted(where: str, seen: Seen, data: dict[str, Any]) -> Finding:
    text = f"{seen.path}: {seen.untrusted.partition(';')[0]}; MCAST_ENGINE={where}: "
    text += "no group can be made" if where == "host" else "each rank runs its own network"
    judge = {"host": fail, "auto": warn}.get(where, ok)
    fix = "export MCAST_ENGINE_USER=USER  (where USER runs the engine, and no other user can listen there)"
    takes = "none" if where == "host" else "inproc"
    return judge(
        "engine", text, fix if where != "inproc" else "", takes=takes, why=seen.silent, **data
    )


# How an engine copies tensors, by what copies_by() finds.
_COPIES = {
    "process_vm": "the engine copies tensors by process_vm_readv and process_vm_writev",
    "descriptor": "the engine copies tensors by the ranks' /proc/self/mem",
    "none": "tensors are copied by the ranks: /proc/self/mem cannot be opened here",
    "": "no engine responds that could copy tensors",
}


def _judge_copies(setting: str, data: dict[str, Any]) -> Finding:
    text = _COPIES[data["copies"]]
    if setting == "auto" and data["copies"] == "descriptor":
        text = "tensors are copied by the ranks: the engine runs as another user, or may not trace"
    if setting == "copy" and data["copies"] == "none":
        fix = "MCAST_ENGINE_MEMORY=slots"
        return warn("engine memory", f"copy is requested, but {text}", fix, map=False, **data)
    return ok("engine memory", f"{setting}: {text}", map=False, **data)


def copies_by(pid: int) -> str:
    """Returns how engine process `pid` would copy tensors of this user, by the rules of
    host_engine/server/client_memory.cpp."""
    try:
        same = os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        same = False
    try:
        scope = int(_PTRACE_SCOPE.read_text())
    except (OSError, ValueError):
        scope = 0
    if same and (scope == 0 or os.geteuid() == 0):
        return "process_vm"
    return "descriptor" if os.access("/proc/self/mem", os.R_OK | os.W_OK) else "none"


def judge_memory(
    setting: str, overcommit: str, pool: int, most: int | None, copies: str = ""
) -> Finding:
    """`setting`: engine_memory; `pool`: address space that mapped tensors of this process would
    take; `most`: the limit of shared bytes per client, None without an engine; `copies`:
    copies_by(), "" without an engine."""
    data = {"setting": setting, "overcommit": overcommit, "pool": pool, "engine_limit": most}
    data["copies"] = copies
    if setting in ("copy", "auto"):
        return _judge_copies(setting, data)
    problem, fix = "", ""
    if overcommit == "2":
        problem, fix = (
            "vm.overcommit_memory is 2",
            sysctl("vm.overcommit_memory", 0, "the kernel may promise more memory than there is"),
        )
    elif most is not None and pool > most:
        problem = (
            f"the pool of {size_text(pool)} is more than the engine's --arenas {size_text(most)}"
        )
        fix = f"torch-mcast engine run --arenas {-(-pool >> 30) + 1}G ..."
    if setting != "slots" and problem:
        return warn(
            "engine memory",
            f"{setting}: all tensors are copied: {problem}",
            fix,
            map=False,
            **data,
        )
    if setting == "map":
        text = f"map: tensors that a group allocates are mapped, up to {size_text(pool)}"
    elif setting == "map_all":
        text = f"map_all: tensors of 1 MiB and more are mapped, up to {size_text(pool)}"
    elif problem:
        text = f"slots: tensors are copied by the ranks; map is not possible: {problem}"
    else:
        text = "slots: tensors are copied by the ranks; MCAST_ENGINE_MEMORY=map is possible"
    return ok("engine memory", text, map=not problem, **data)


def pool_bytes(ranks: int) -> int:
    """Returns the size of a rank's arena pool if its host has this many ranks, computed as in
    shm/arena_pool.cpp."""
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        room = min(room, soft // 4)
    return min(room, _POOLS // min(max(ranks, 1), 4096))


def run(context: Context) -> list[Finding]:
    from torch_mcast import __version__

    where, path = parse(context.values.get("engine", "inproc"))
    seen = look(path, context.values.get("engine_user", ""))
    local, world = context.whole("LOCAL_WORLD_SIZE", 0), context.whole("WORLD_SIZE", 0)
    mode = context.values.get("security", "off")
    found = [judge_engine(where, seen, __version__, 0 < local == world, mode)]
    if where == "inproc" and seen.status is None:
        return found  # no engine was requested, so its memory does not matter
    try:
        overcommit = _OVERCOMMIT.read_text().strip()
    except OSError:
        overcommit = ""
    most = seen.status["limits"]["arena_bytes"] if seen.status else None
    setting = context.values.get("engine_memory", "map")
    copies = copies_by(seen.status["pid"]) if seen.status else ""
    return [*found, judge_memory(setting, overcommit, pool_bytes(local), most, copies)]
