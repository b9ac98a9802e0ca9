"""Open MPI's collectives (benchmarks/mpi/collectives.c), one long-lived mpirun over the hosts.

In a lab mpirun runs in the first host and reaches the others through an agent script that replaces
ssh and enters their namespaces. Ranks that wait yield the CPU (there are more ranks than cores).

`openmpi` is the library with default settings, over TCP only, as Gloo is. `openmpi_tuned` is the
fastest configuration: ranks of one host share memory, and for each operation and size the program
tries the library's algorithms, with several segment sizes if they segment messages, and keeps the
fastest. Hosts of a lab share a kernel but not a host name. Open MPI distinguishes hosts by name, so
it uses TCP between them in both cases."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_mcast.lab.network import Lab
from torch_mcast.lab.system import LabError, finished, package_root

_BUILD_S = 120.0
_START_S = 60.0
_ANSWER_S = 300.0
_OPS = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "ag_rs", "barrier")


def source() -> Path:
    return Path(package_root()) / "benchmarks" / "mpi" / "collectives.c"


def _build(folder: Path) -> Path:
    if not source().exists():
        raise LabError(f"openmpi: {source()} is missing; it comes with the source tree")
    program = folder / "collectives"
    done = finished(["mpicc", "-O2", "-o", str(program), str(source())], _BUILD_S)
    if done.returncode:
        raise LabError(f"mpicc: {done.stderr}")
    return program


def _agent(lab: Lab, folder: Path) -> Path:
    """Writes a script `agent HOST COMMAND...` that runs a shell command in a host of the lab."""
    lines = ["#!/bin/sh", 'host=$1; shift; command="$*"', "case $host in"]
    for host in lab.workers:
        inside = shlex.join(lab.inside(host, ["sh", "-c"]))
        lines.append(f'{host.name}|{host.address}) exec {inside} "$command" ;;')
    path = folder / "agent"
    path.write_text("\n".join([*lines, "esac", "exit 9", ""]))
    path.chmod(0o755)
    return path


def _transports(tuned: bool) -> str:
    """Returns Open MPI's byte transfer layers."""
    if not tuned:
        return "tcp,self"
    said = finished(["mpirun", "--version"], _START_S).stdout
    found = re.search(r"(\d+)\.\d+", said)
    return f"tcp,{'sm' if found and int(found[1]) >= 5 else 'vader'},self"


def command(program: Path, folder: Path, lab: Lab | None, world: int, tuned: bool) -> list[str]:
    """Returns mpirun's command line, to be run on this machine."""
    interface = "eth0" if lab else "lo"
    argv = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        str(world),
        "--mca",
        "btl",
        _transports(tuned),
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl_tcp_if_include",
        interface,
        "--mca",
        "oob_tcp_if_include",
        interface,
        "--mca",
        "mpi_yield_when_idle",
        "1",
    ]
    if lab:
        slots = ",".join(f"{host.address}:{lab.spec.ranks_per_host}" for host in lab.workers)
        argv += [
            "--host",
            slots,
            "--mca",
            "plm_rsh_agent",
            str(_agent(lab, folder)),
            "--mca",
            "plm_rsh_no_tree_spawn",
            "1",
        ]
    if tuned:
        argv += ["--mca", "coll_tuned_use_dynamic_rules", "1"]
    argv += [str(program), str(folder), *(["tuned"] if tuned else [])]
    # In a lab it ends with the lab; here it must end with this process.
    return lab.inside(lab.workers[0], argv) if lab else ["setpriv", "--pdeathsig", "TERM", *argv]


class OpenMpi:
    """A running mpirun and its FIFOs."""

    def __init__(
        self, folder: Path, world: int, process: subprocess.Popen[bytes], log: Path
    ) -> None:
        self._process, self._log = process, log
        self._commands = [os.open(folder / f"command.{rank}", os.O_RDWR) for rank in range(world)]
        self._answer = os.open(folder / "answer", os.O_RDWR)
        self._pending = b""
        self.version = self._line(_START_S)

    def _line(self, limit_s: float) -> str:
        end = time.monotonic() + limit_s
        while b"\n" not in self._pending:
            ready = select.select([self._answer], [], [], 0.2)[0]
            if ready:
                self._pending += os.read(self._answer, 4096)
            elif self._process.poll() is not None or time.monotonic() > end:
                raise LabError(f"openmpi: no answer: {self._log.read_text()[-2000:]}")
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def _tell(self, text: str) -> None:
        for fd in self._commands:
            os.write(fd, f"{text}\n".encode())

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Measures as program.Program does."""
        if op not in _OPS:
            return {"s": None, "cpu_s": None, "right": True}
        self._tell(f"{op} {size} {inner} {int(check)}")
        seconds, cpu, right, algorithm = self._line(_ANSWER_S).split(maxsplit=3)
        return {
            "s": float(seconds),
            "cpu_s": float(cpu),
            "right": right == "1",
            "algorithm": algorithm if algorithm != "default" else None,
        }

    def close(self) -> None:
        """Lets the ranks end, and kills those that do not."""
        with contextlib.suppress(OSError):
            self._tell("quit 0 0 0")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for fd in [*self._commands, self._answer]:
            os.close(fd)


@contextlib.contextmanager
def start(lab: Lab | None, world: int, tuned: bool = False) -> Iterator[OpenMpi]:
    """Builds the program and starts it on all hosts."""
    folder = lab.scratch("mpi") if lab else Path(tempfile.mkdtemp(prefix="mcast-mpi-"))
    try:
        program = _build(folder)
        for fifo in [*(f"command.{rank}" for rank in range(world)), "answer"]:
            os.mkfifo(folder / fifo)
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command(program, folder, lab, world, tuned),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "OMPI_MCA_orte_tmpdir_base": str(folder)},
            )
        try:
            program_handle = OpenMpi(folder, world, process, log)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        try:
            yield program_handle
        finally:
            program_handle.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
