"""External programs that are measured beside the backends: Open MPI and UFTP, where installed, and raw
multicast."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from torch_mcast.bench import blaster, openmpi, uftp
from torch_mcast.bench.program import Program
from torch_mcast.lab.network import Lab


def missing(name: str) -> str | None:
    """Why an external program cannot be used, or None."""
    tools = {"openmpi": ("mpirun", "mpicc"), "uftp": ("uftp", "uftpd"), "blaster": ()}[name]
    absent = [tool for tool in tools if not shutil.which(tool)]
    return f"{name}: {', '.join(absent)} not installed" if absent else None


@contextlib.contextmanager
def start(name: str, lab: Lab | None, world: int) -> Iterator[Program]:
    """The program on all hosts of the lab, or on loopback."""
    make = {"openmpi": openmpi.start, "uftp": uftp.start, "blaster": blaster.start}[name]
    with make(lab, world) as program:
        yield program
