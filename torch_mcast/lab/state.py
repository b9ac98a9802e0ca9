"""Labs that exist on this machine, one JSON file each, and the removal of abandoned ones.

A file is written before the first namespace is created and removed after the last one is gone, so
everything that a killed program leaves can be found. An owner is a process id with its start time
(ids are reused). Labs of `lab up` have no owner and stay until `lab down`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_mcast.lab import system
from torch_mcast.lab.system import LabError
from torch_mcast.lab.topology import prefix

STATE_DIR = Path("/run/torch-mcast-lab")
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30


def process_identity(pid: int) -> list[int] | None:
    """Returns [pid, start time in clock ticks since boot]; None if the process does not run (or is
    a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else [pid, int(fields[19])]


def new_id() -> str:
    return secrets.token_hex(3)


def check_id(lab: str) -> str:
    if not lab or len(lab) > 24 or not lab.replace("_", "").isalnum():
        raise LabError(f"lab name {lab!r}: expected up to 24 letters, digits and underscores")
    return lab


def path_of(lab: str) -> Path:
    return STATE_DIR / f"{lab}.json"


def hosts_file(lab: str) -> Path:
    """Returns the file that the lab's hosts see as /etc/hosts."""
    return STATE_DIR / f"{lab}.hosts"


def scratch_folder(lab: str, in_memory: bool = False) -> Path:
    """Returns a folder for files of programs in the lab; it is removed with the lab. in_memory:
    /dev/shm if that has room (a container's often has 64 MB)."""
    if in_memory and _free_bytes(_MEMORY) > _ROOM:
        return _MEMORY / f"torch-mcast-{lab}"
    return Path(tempfile.gettempdir()) / f"torch-mcast-{lab}"


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


_thread_lock = threading.RLock()
_depth = 0


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Lets one process, and one thread of it, at a time change the list of labs and their states.
    Can be nested."""
    global _depth
    with _thread_lock, contextlib.ExitStack() as stack:
        if _depth == 0:
            STATE_DIR.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(STATE_DIR / ".lock", "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1


def claim(name: str, state: dict[str, Any]) -> None:
    """Writes the state of a new lab. Raises LabError if the name is taken."""
    with lock():
        if path_of(name).exists():
            raise LabError(
                f"there is a lab {name!r} already; `torch-mcast lab down {name}` removes it"
            )
        save(name, state)


def save(lab: str, state: dict[str, Any]) -> None:
    """Replaces the file atomically, so that readers never see a partial one."""
    draft = STATE_DIR / f".{lab}.{os.getpid()}"
    draft.write_text(json.dumps(state, indent=1))
    draft.rename(path_of(lab))


def load(lab: str) -> dict[str, Any]:
    try:
        return json.loads(path_of(lab).read_text())
    except FileNotFoundError:
        names = ", ".join(known()) or "none"
        raise LabError(f"no lab {lab!r}; there are: {names}") from None
    except json.JSONDecodeError as error:
        raise LabError(
            f"{path_of(lab)} is damaged ({error}); `torch-mcast lab down --all`"
        ) from None


def known() -> list[str]:
    return sorted(path.stem for path in STATE_DIR.glob("*.json"))


def destroy(lab: str) -> None:
    """Kills everything in the lab's namespaces, removes them and the state file. Can be repeated."""
    with lock():
        _destroy(lab)


def _destroy(lab: str) -> None:
    names = system.namespaces(prefix(lab))
    kill_inside(names)
    for name in names:
        # One by one: another clean-up may be removing the same lab.
        system.call(["ip", "netns", "delete", name], check=False)
    left = system.namespaces(prefix(lab))
    if left:
        raise LabError(f"could not remove namespaces {left}")
    for parent in (_MEMORY, Path(tempfile.gettempdir())):
        shutil.rmtree(parent / f"torch-mcast-{lab}", ignore_errors=True)
    hosts_file(lab).unlink(missing_ok=True)
    path_of(lab).unlink(missing_ok=True)


def kill_inside(names: list[str], limit_s: float = 10.0) -> None:
    """Sends SIGKILL to every process in the namespaces, until none is left (forks race with the scan)."""
    end = time.monotonic() + limit_s
    while pids := [pid for pid in system.pids_in(names) if pid != os.getpid()]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise LabError(f"processes {pids} in {names} do not end")
        time.sleep(0.005)  # a killed process needs a moment to leave /proc


def owner_alive(state: dict[str, Any]) -> bool:
    owner = state.get("owner")
    return owner is None or process_identity(owner[0]) == owner


def collect_garbage() -> list[str]:
    """Removes labs whose owner is dead. Returns their ids."""
    if not STATE_DIR.is_dir():
        return []
    removed = []
    with lock():
        for name in known():
            with contextlib.suppress(LabError):
                if not owner_alive(load(name)):
                    destroy(name)
                    removed.append(name)
    return removed
