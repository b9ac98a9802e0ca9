"""External programs that are measured beside the backends: Open MPI and UFTP, where installed, and raw
multicast."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any, Protocol

from torch_mcast.lab.network import Lab


class Program(Protocol):
    """An external program, ready to be measured again and again."""

    version: str

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """{"s": seconds per operation of the slowest rank, None if it cannot do it; "cpu_s": of all
        ranks per operation or None; "right": results were right (or not checked)}."""


def missing(name: str) -> str | None:
    """Why an external program cannot be used, or None."""
    tools = {"openmpi": ("mpirun", "mpicc"), "uftp": ("uftp", "uftpd"), "blaster": ()}[name]
    absent = [tool for tool in tools if not shutil.which(tool)]
    return f"{name}: {', '.join(absent)} not installed" if absent else None


def one_rank_per_host(lab: Lab | None) -> bool:
    """Whether there are several hosts with one rank each: what programs of hosts can be compared with."""
    return bool(lab and lab.spec.hosts > 1 and lab.spec.ranks_per_host == 1)


@contextlib.contextmanager
def start(name: str, lab: Lab | None, world: int) -> Iterator[Program]:
    """The program on all hosts of the lab, or on loopback."""
    from torch_mcast.bench import blaster, openmpi, uftp

    make = {"openmpi": openmpi.start, "uftp": uftp.start, "blaster": blaster.start}[name]
    with make(lab, world) as program:
        yield program
