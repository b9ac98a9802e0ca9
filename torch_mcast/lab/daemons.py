"""Processes that serve hosts of a lab, one in each of some hosts; they end with the lab at the latest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch_mcast._status_socket import NoAnswer
from torch_mcast.lab import state
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.system import LabError
from torch_mcast.lab.topology import Host

_START_S = 10.0


class _Lab(Protocol):
    """The part of a Lab that is needed here."""

    spec: LabSpec
    id: str

    @property
    def aggregators(self) -> list[Host]: ...
    @property
    def workers(self) -> list[Host]: ...
    def host(self, which: str | int | Host) -> Host: ...
    def popen(
        self, which: str | int | Host, argv: list[str], **options: Any
    ) -> subprocess.Popen[Any]: ...


class Daemons:
    """Starts, ends and queries daemons. `which` is a host's name or number, as in Lab.host()."""

    noun: ClassVar[str]

    def __init__(self, lab: _Lab) -> None:
        self._lab = lab
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # -- defined by each kind

    def hosts(self) -> list[Host]:
        """Returns the hosts in which a daemon runs."""
        raise NotImplementedError

    def options(self) -> tuple[str, ...] | None:
        """Returns the options of the lab's spec; None if no daemon is started."""
        raise NotImplementedError

    def command(self, host: Host) -> list[str]:
        """Returns the program and its arguments for this host. Raises FileNotFoundError if it is
        not built."""
        raise NotImplementedError

    def ask(self, host: Host) -> dict[str, Any]:
        """Returns the daemon's status. Raises NoAnswer if it does not respond."""
        raise NotImplementedError

    # -- common to all kinds

    def start(self, which: str | int | Host | None = None, *options: str) -> None:
        """Starts one daemon, or all that do not run, with the options of the lab's spec and these.
        Returns when they listen."""
        hosts = self.hosts() if which is None else [self._lab.host(which)]
        hosts = [host for host in hosts if not self.running(host)]
        for host in hosts:
            self._start(host, options)
        for host in hosts:
            self._await(host)

    def folder(self, host: Host) -> Path:
        """Returns the folder of its socket and log: the same for a process that attaches to the lab
        later."""
        return state.scratch_folder(self._lab.id) / f"{self.noun}-{host.name}"

    def _start(self, host: Host, options: tuple[str, ...]) -> None:
        folder = self.folder(host)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            command = [*self.command(host), *(self.options() or ()), *options]
        except FileNotFoundError as error:
            raise LabError(str(error)) from error
        with (folder / "log").open("ab") as log:
            self._processes[host.name] = self._lab.popen(
                host, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _await(self, host: Host) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            code = self._processes[host.name].poll()
            if code is not None:
                raise LabError(
                    f"the {self.noun} of {host.name} ended with {code}: {self.log(host)}"
                )
            with contextlib.suppress(NoAnswer):
                self.ask(host)
                return
            if time.monotonic() > deadline:
                raise LabError(f"the {self.noun} of {host.name} does not answer: {self.log(host)}")
            time.sleep(0.02)

    def running(self, which: str | int | Host) -> bool:
        process = self._processes.get(self._lab.host(which).name)
        return process is not None and process.poll() is None

    def log(self, which: str | int | Host) -> str:
        """Returns its output so far, over all its restarts."""
        return (self.folder(self._lab.host(which)) / "log").read_text(errors="replace")

    def status(self, which: str | int | Host) -> dict[str, Any]:
        """Returns its `status --json`. Raises NoAnswer if it does not respond."""
        return self.ask(self._lab.host(which))

    def _signal(self, which: str | int | Host, number: int) -> subprocess.Popen[bytes]:
        host = self._lab.host(which)
        process = self._processes.get(host.name)
        if process is None or process.poll() is not None:
            raise LabError(f"no {self.noun} runs in {host.name}")
        os.killpg(process.pid, number)
        return process

    def kill(self, which: str | int | Host) -> None:
        """Sends SIGKILL, so that it ends like a process that crashes."""
        self._signal(which, signal.SIGKILL).wait()

    def stop(self, which: str | int | Host) -> None:
        """Sends SIGSTOP: it exists but does nothing until go_on()."""
        self._signal(which, signal.SIGSTOP)

    def go_on(self, which: str | int | Host) -> None:
        """Sends SIGCONT."""
        self._signal(which, signal.SIGCONT)

    def end(self, which: str | int | Host, timeout_s: float = 20.0) -> int:
        """Sends SIGTERM: it notifies its groups and ends. Returns its exit code."""
        return self._signal(which, signal.SIGTERM).wait(timeout_s)

    def restore(self) -> None:
        """Starts all that do not run, if the lab's spec has daemons."""
        for host in self.hosts():
            if self.running(host):
                self.go_on(host)
        self.start_if_wanted()

    def start_if_wanted(self) -> None:
        """Starts all daemons, if the lab's spec has them."""
        if self.options() is not None:
            self.start()

    def restart(self, which: str | int | Host, *options: str) -> None:
        """Starts another process in its place; a running one is killed."""
        if self.running(which):
            self.kill(which)
        self.start(which, *options)
