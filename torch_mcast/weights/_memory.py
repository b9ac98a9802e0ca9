"""Memory of one host with the content of one version. One process fills and seals it, all workers of the host
map it.

It is a memfd. Once it is sealed (F_SEAL_WRITE, fcntl(2)), no process can change it or make it writable again,
not even the one that filled it. The others open it by /proc/PID/fd, for which they must run as the same
user and see the same process numbers. It exists while a process has it open or mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import torch

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def host() -> str:
    """Identifies the processes that can share memory and that share a network: equal for all of them."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts = [file.read().strip()]
    for kind in ("pid", "net"):
        space = os.stat(f"/proc/self/ns/{kind}")
        parts.append(f"{space.st_dev}:{space.st_ino}")
    return "/".join([*parts, str(os.getuid())])


class Memory:
    """A memfd of `size` bytes. Owns the descriptor; mappings live as long as tensors refer to them."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    @classmethod
    def create(cls, size: int) -> Memory:
        fd = os.memfd_create("torch-mcast-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        memory = cls(fd, size)
        os.ftruncate(fd, size)
        return memory

    @classmethod
    def open(cls, place: dict[str, Any]) -> Memory:
        """Opens the sealed memory of another process, at the place that its `place()` returned.

        Raises:
            OSError: The process is gone, or cannot be looked into, or has something else there.
        """
        fd = os.open(f"/proc/{place['pid']}/fd/{place['fd']}", os.O_RDONLY | os.O_CLOEXEC)
        memory = cls(fd, place["size"])
        found = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS) if found.st_size == memory.size else 0
        if found.st_ino != place["inode"] or not seals & fcntl.F_SEAL_WRITE:
            raise OSError(
                f"process {place['pid']} has no sealed memory at descriptor {place['fd']}"
            )
        return memory

    def place(self) -> dict[str, Any]:
        inode = os.fstat(self._fd).st_ino
        return {"pid": os.getpid(), "fd": self._fd, "inode": inode, "size": self.size}

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._fd, data, offset)
            data, offset = data[count:], offset + count

    def read(self, offset: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += os.pread(self._fd, size - len(data), offset + len(data))
        return data

    def seal(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)

    def map(self) -> torch.Tensor:
        """The content as uint8. Pages are shared until this process writes to them: it then gets its own
        copy, and no other process sees the change."""
        mapping = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapping, dtype=torch.uint8)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
