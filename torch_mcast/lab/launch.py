"""`lab run`: one command in every host for every rank, its output with a prefix, one exit code.

Each process gets torchrun's environment variables. The first one that fails decides the exit code;
the others get a grace time to fail by themselves (their errors often say more), then SIGTERM, then
everything in the lab's namespaces gets SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TextIO

from torch_mcast.lab.network import Lab
from torch_mcast.lab.topology import Host

_COLOURS = (36, 33, 32, 35, 34, 31)
_TERM_S = 2.0


def rank_env(lab: Lab, host: Host, local: int, port: int) -> dict[str, str]:
    """Returns torchrun's variables for one rank; `port` is the rendezvous port on the first host."""
    per_host = lab.spec.ranks_per_host
    return {
        "RANK": str(host.number * per_host + local),
        "WORLD_SIZE": str(lab.spec.world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_RANK": str(host.number),
        "GROUP_WORLD_SIZE": str(lab.spec.hosts),
        "ROLE_RANK": str(host.number * per_host + local),
        "ROLE_WORLD_SIZE": str(lab.spec.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": "1",
    }


class Job:
    """The processes of one `lab run`: start(), then wait(); interrupt() from a signal handler."""

    def __init__(self, lab: Lab, out: TextIO | None = None, colour: bool = False) -> None:
        self._lab = lab
        self._out = out or sys.stdout
        self._colour = colour
        self._lock = threading.Lock()
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._over = threading.Event()  # all processes have ended
        self._deadline: float | None = None  # when ranks that still run are ended

    def start(self, argv: list[str], port: int = 29500) -> None:
        """Starts argv in every worker host, once per local rank."""
        for host in self._lab.workers:
            for local in range(self._lab.spec.ranks_per_host):
                env = rank_env(self._lab, host, local, port)
                process = self._spawn(host, argv, env, f"{host.name}/{env['RANK']}")
                self._running.append((f"rank {env['RANK']} on {host.name}", process))

    def start_aggregators(self, argv: list[str]) -> None:
        """Starts argv in every aggregator host; they run until the ranks are done."""
        for host in self._lab.aggregators:
            env = {"MASTER_ADDR": self._lab.hosts[0].address, "PYTHONUNBUFFERED": "1"}
            self._daemons.append(self._spawn(host, argv, env, host.name))

    def _spawn(
        self, host: Host, argv: list[str], env: dict[str, str], label: str
    ) -> subprocess.Popen[bytes]:
        process = self._lab.popen(
            host,
            argv,
            env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        colour = _COLOURS[host.number % len(_COLOURS)]
        prefix = f"\x1b[{colour}m[{label}]\x1b[0m " if self._colour else f"[{label}] "
        reader = threading.Thread(target=self._copy, args=(process.stdout, prefix), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _copy(self, source: IO[bytes], prefix: str) -> None:
        """Copies until the end of the pipe, or until it is empty once the job is over: a grandchild
        may hold it."""
        poller, rest = select.poll(), b""
        poller.register(source, select.POLLIN)
        while True:
            over = self._over.is_set()  # read first, so that earlier output is in the pipe by then
            if not poller.poll(0 if over else 100):
                if over:
                    break
                continue
            new = os.read(source.fileno(), 1 << 16)
            if not new:
                break
            *lines, rest = (rest + new).split(b"\n")
            self._print(prefix, lines)
        if rest:
            self._print(prefix, [rest])

    def _print(self, prefix: str, lines: list[bytes]) -> None:
        with self._lock:
            for line in lines:
                print(prefix + line.decode(errors="replace"), file=self._out, flush=True)

    def _say(self, text: str) -> None:
        with self._lock:
            print(f"torch-mcast lab: {text}", file=sys.stderr, flush=True)

    def wait(self, grace_s: float = 10.0) -> int:
        """Returns the exit code of the first process that fails (128 + signal), 0 if all succeed."""
        first = 0
        running = list(self._running)
        while running:
            for entry in list(running):
                code = entry[1].poll()
                if code is None:
                    continue
                running.remove(entry)
                if code and not first:
                    first = code if code > 0 else 128 - code
                    self._end_within(grace_s)
                    self._say(f"{entry[0]} ended with {_describe(code)}")
            if self._deadline and running and time.monotonic() > self._deadline:
                self._say(f"ending {len(running)} ranks that still run after {grace_s:g} s")
                self._end([process for _, process in running])
                break
            if running:
                self._wait_any([process.pid for _, process in running], 0.5)
        self._end([daemon for daemon in self._daemons if daemon.poll() is None])
        self._over.set()
        for reader in self._readers:
            reader.join(30.0)  # a grandchild may write forever; the end of the lab kills it
        return first

    @staticmethod
    def _wait_any(pids: list[int], limit_s: float) -> None:
        """Returns when a process ends (pidfds become readable) or after limit_s."""
        poller, fds = select.poll(), []
        for pid in pids:
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(pid))
                poller.register(fds[-1], select.POLLIN)
        try:
            poller.poll(limit_s * 1000)
        finally:
            for fd in fds:
                os.close(fd)

    def _end(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Sends SIGTERM, then SIGKILL, to the sessions of these processes."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in processes:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            end = time.monotonic() + _TERM_S
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.01, end - time.monotonic()))

    def _end_within(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._deadline = end if self._deadline is None else min(end, self._deadline)

    def interrupt(self, number: int, grace_s: float) -> None:
        """Sends a signal to all ranks, as a terminal would to one program. Ranks that still run
        `grace_s` later are ended: they may ignore the signal, or wait for each other."""
        self._end_within(grace_s)
        for _, process in self._running:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def run(
    lab: Lab,
    argv: list[str],
    aggregator_argv: list[str] | None = None,
    port: int = 29500,
    grace_s: float = 10.0,
    colour: bool = False,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Runs a command on all ranks of a lab that is up. Ctrl-C and SIGTERM reach the ranks first."""
    job = Job(lab, colour=colour)
    stopping: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        stopping.append(number)
        job.interrupt(signal.SIGINT if len(stopping) == 1 else signal.SIGKILL, grace_s)

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        if aggregator_argv:
            job.start_aggregators(aggregator_argv)
        job.start(argv, port)
        if on_ready:
            on_ready()
        code = job.wait(grace_s)
        return 128 + stopping[0] if stopping else code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
