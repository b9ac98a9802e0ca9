"""Moves a running process into a host of a lab; for programs that are started, see Lab.inside()."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from torch_mcast.lab import system

# From linux/sched.h and linux/mount.h.
_NEWNS, _NEWUTS, _NEWNET = 0x00020000, 0x04000000, 0x40000000
_BIND, _REC, _SLAVE, _DETACH = 4096, 16384, 1 << 19, 2


@dataclass(frozen=True)
class Inside:
    """The namespaces of a lab's host: does what `ip netns exec` and Lab.inside() do for other programs."""

    namespace: str
    name: str
    hosts_file: str

    def enter(self) -> None:
        """Moves the calling process, which must have one thread. Raises OSError."""
        libc = ctypes.CDLL(None, use_errno=True)

        def check(result: int, what: str) -> None:
            if result != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"{what}: {os.strerror(number)}")

        def mount(source: str, target: str, kind: str | None, flags: int) -> None:
            kinds = kind.encode() if kind else None
            result = libc.mount(
                source.encode(), target.encode(), kinds, ctypes.c_ulong(flags), None
            )
            check(result, f"mount {source} {target}")

        with open(system.NETNS_DIR / self.namespace) as file:
            check(libc.setns(file.fileno(), _NEWNET), f"setns {self.namespace}")
        check(libc.unshare(_NEWNS | _NEWUTS), "unshare")
        mount("none", "/", None, _SLAVE | _REC)
        libc.umount2(b"/sys", _DETACH)
        mount(self.namespace, "/sys", "sysfs", 0)  # shows the interfaces of this namespace
        mount(self.hosts_file, "/etc/hosts", None, _BIND)
        check(libc.sethostname(self.name.encode(), len(self.name.encode())), "sethostname")
