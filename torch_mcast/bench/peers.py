"""External programs that are measured next to the backends, if installed: Open MPI with default
settings and tuned, and UFTP; and raw multicast."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from torch_mcast.bench import blaster, openmpi, uftp
from torch_mcast.bench.program import Program
from torch_mcast.lab.network import Lab


def missing(name: str) -> str | None:
    """Returns why an external program cannot be used, or None."""
    mpi = ("mpirun", "mpicc")
    tools = {"openmpi": mpi, "openmpi_tuned": mpi, "uftp": ("uftp", "uftpd"), "blaster": ()}[name]
    absent = [tool for tool in tools if not shutil.which(tool)]
    return f"{name}: {', '.join(absent)} not installed" if absent else None


@contextlib.contextmanager
def start(name: str, lab: Lab | None, world: int) -> Iterator[Program]:
    """Starts the program on all hosts of the lab, or on loopback."""
    makers: dict[str, Callable[..., AbstractContextManager[Program]]] = {
        "openmpi": openmpi.start,
        "openmpi_tuned": functools.partial(openmpi.start, tuned=True),
        "uftp": uftp.start,
        "blaster": blaster.start,
    }
    with makers[name](lab, world) as program:
        yield program
