"""A lab while it exists: build, change, read, remove.

The state file comes first, then namespaces, then links in one batch per namespace; if a step fails,
everything created so far is removed. A reaper process removes the lab if the owner dies.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_mcast.lab import build, counters, faults, reaper, state, system, topology
from torch_mcast.lab.aggregators import PORT, Aggregators
from torch_mcast.lab.engines import Engines
from torch_mcast.lab.inside import Inside
from torch_mcast.lab.spec import Fault, LabSpec
from torch_mcast.lab.system import LabError
from torch_mcast.lab.topology import NIC, Host
from torch_mcast.lab.units import parse_rate


class Lab:
    """A switched cluster of network namespaces.

    Use as a context manager, or call up() and down(). One thread at a time. With persistent=True
    the lab outlives this process (`lab up`). Hosts are named h1.., a1.. or given by their number
    from 0. Raises LabRightsError without the rights to make namespaces, LabError when a command
    fails."""

    def __init__(
        self, spec: LabSpec | None = None, name: str | None = None, persistent: bool = False
    ) -> None:
        self.spec = spec or LabSpec()
        self.id = state.check_id(name) if name else state.new_id()
        self.persistent = persistent
        self._plan()
        self.aggregation = Aggregators(self)
        self.engines = Engines(self)
        self._cut: set[str] = set()
        self._silent: set[str] = set()
        self._faulty: set[tuple[str, str]] = set()
        self._owner = 0
        self._reaper: subprocess.Popen[bytes] | None = None

    def _plan(self) -> None:
        self.hosts = topology.plan_hosts(self.id, self.spec)
        self.uplinks = topology.plan_uplinks(self.spec)
        self.switch = topology.switch_namespace(self.id)
        self._by_name = {host.name: host for host in self.hosts}

    @classmethod
    def attach(cls, name: str) -> Lab:
        """Returns a lab that exists, also one of another process. Do not use it as a context manager."""
        saved = state.load(name)
        lab = cls(LabSpec.from_json(saved["spec"]), name, persistent=True)
        lab._cut, lab._silent = set(saved["cut"]), set(saved["silent"])
        lab._faulty = {(host, direction) for host, direction in saved["faulty"]}
        return lab

    def host(self, which: str | int | Host) -> Host:
        """Returns the host of that name or number."""
        if isinstance(which, Host):
            return which
        if isinstance(which, int):
            return self.hosts[which]
        if which not in self._by_name:
            raise LabError(f"no host {which!r}; there are {', '.join(self._by_name)}")
        return self._by_name[which]

    @property
    def workers(self) -> list[Host]:
        return [host for host in self.hosts if host.role == "worker"]

    @property
    def aggregators(self) -> list[Host]:
        return [host for host in self.hosts if host.role == "aggregator"]

    def scratch(self, name: str, in_memory: bool = False) -> Path:
        """Creates a folder for files of programs in the lab; it is removed with the lab. Names may
        repeat."""
        parent = state.scratch_folder(self.id, in_memory)
        parent.mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))

    # -- start and end ------------------------------------------------------------------------

    def __enter__(self) -> Lab:
        return self.up()

    def __exit__(self, *exc: object) -> None:
        self.down()

    def up(self) -> Lab:
        """Builds the lab; first removes labs whose owners are dead."""
        system.require_rights()
        state.collect_garbage()
        state.claim(self.id, self._state())
        try:
            if not self.persistent:
                self._reaper = reaper.start(self.id)
                self._owner = os.getpid()
                atexit.register(self._down_at_exit)
            self._build()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Kills everything that runs in the lab and removes it. Can be repeated."""
        atexit.unregister(self._down_at_exit)
        try:
            state.destroy(self.id)
        finally:
            if self._reaper and self._reaper.stdin:
                self._reaper.stdin.close()
                self._reaper.wait()
                self._reaper = None

    def _down_at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a forked child
            self.down()

    def _state(self) -> dict[str, Any]:
        owner = None if self.persistent else state.process_identity(os.getpid())
        return {
            "id": self.id,
            "owner": owner,
            "command": sys.argv,
            "spec": self.spec.to_json(),
            "cut": sorted(self._cut),
            "silent": sorted(self._silent),
            "faulty": sorted(self._faulty),
        }

    def _save(self) -> None:
        with state.lock():  # a lab removed in the meantime is not written again
            saved = state.load(self.id)
            kept = {"owner": saved["owner"], "command": saved["command"]}
            state.save(self.id, {**self._state(), **kept})

    def _build(self) -> None:
        build.build(self.id, self.spec, self.hosts, self.uplinks)
        if self.spec.multicast != "flood":
            self.set_multicast(self.spec.multicast)
        self._apply_faults()
        for daemons in (self.aggregation, self.engines):
            daemons.start_if_wanted()

    # -- changes while it runs ------------------------------------------------------------------

    def set_rate(self, which: str | int | Host, rate: str | int | None) -> None:
        """Sets a new rate of a host's link, both directions. Restarts the link's wire counters."""
        host = self.host(which)
        rates = {**self.spec.host_rates, host.name: parse_rate(rate)}
        self.spec = replace(self.spec, host_rates=rates)
        build.shape(self.switch, self.spec, [host])
        self._save()

    def set_faults(self, *new: Fault) -> None:
        """Replaces all loss and bit errors; without arguments there are none. Counters restart."""
        self.spec = replace(self.spec, faults=tuple(new))
        self._apply_faults()
        self._save()

    def set_multicast(self, mode: str) -> None:
        """Switches to flood, snooping or blocked (see LabSpec.multicast)."""
        self.spec = replace(self.spec, multicast=mode)
        ports = [host.port for host in self.hosts] + [
            name for uplink in self.uplinks for name in (uplink.lower, uplink.upper)
        ]
        ip_lines, bridge_lines = topology.multicast_lines(mode, self.spec, ports)
        system.ip_batch(ip_lines, self.switch)
        system.call(["bridge", "-n", self.switch, "-batch", "-"], "\n".join(bridge_lines) + "\n")
        self._save()

    def cut(self, which: str | int | Host, silent: bool = False) -> None:
        """Disconnects a host. Normally the link goes down and the host sees no carrier; with
        `silent` frames vanish in both directions and neither end sees it (a failed switch in
        between)."""
        host = self.host(which)
        if silent:
            self._silent.add(host.name)
            self._apply_faults()
        else:
            self._cut.add(host.name)
            system.ip_batch([f"link set {host.port} down"], self.switch)
        self._save()

    def heal(self, which: str | int | Host) -> None:
        """Undoes cut()."""
        host = self.host(which)
        if host.name in self._silent:
            self._silent.discard(host.name)
            self._apply_faults()
        if host.name in self._cut:
            self._cut.discard(host.name)
            system.ip_batch([f"link set {host.port} up"], self.switch)
        self._save()

    def _apply_faults(self) -> None:
        self._faulty = faults.apply(
            self.hosts, self.switch, self.spec, list(self.spec.faults), self._silent, self._faulty
        )

    def restore(self, spec: LabSpec) -> None:
        """Returns to a spec that differs from the present one in rates, faults and multicast only;
        restarts aggregators and engines that do not run."""
        for name in sorted(self._cut | self._silent):
            self.heal(name)
        changed = [
            host for host in self.hosts if self.spec.rate_of(host.name) != spec.rate_of(host.name)
        ]
        mode, same = spec.multicast, self.spec.faults == spec.faults
        same = same and self.spec.multicast_rate == spec.multicast_rate
        was = self.spec.multicast
        self.spec = spec
        build.shape(self.switch, self.spec, changed)
        if not same:
            self._apply_faults()
        if was != mode:
            self.set_multicast(mode)
        for daemons in (self.aggregation, self.engines):
            daemons.restore()
        self._save()

    # -- reading ----------------------------------------------------------------------------------

    def counters(self) -> counters.Counters:
        """Returns bytes and packets of all links now; subtract two readings."""
        return counters.read(self.hosts, self.switch, self.uplinks)

    def fault_counters(self) -> list[dict[str, Any]]:
        """Returns what loss, bit errors and silent cuts have hit since they were set."""
        return faults.read_counters(self.hosts, self.switch)

    # -- programs in it ---------------------------------------------------------------------------

    def inside(self, which: str | int | Host, argv: list[str]) -> list[str]:
        """Returns the command line that runs argv in a host, under the host's own name and with the
        names of all hosts. It only execs: the process started with it becomes the program itself.
        """
        host = self.host(which)
        # `ip netns exec` has already given the program its own mount namespace.
        script = f'mount --bind {state.hosts_file(self.id)} /etc/hosts; hostname "$0"; exec "$@"'
        return [
            system.tool("ip"),
            "netns",
            "exec",
            host.namespace,
            system.tool("unshare"),
            "--uts",
            "sh",
            "-ec",
            script,
            host.name,
            *argv,
        ]

    def namespaces(self, which: str | int | Host) -> Inside:
        """Returns the same for a process that already exists: see Inside.enter()."""
        host = self.host(which)
        return Inside(host.namespace, host.name, str(state.hosts_file(self.id)))

    def env(self, which: str | int | Host) -> dict[str, str]:
        """Returns the environment for a program in a host: interface names, roles, addresses."""
        host = self.host(which)
        served = host.role == "worker" and self.spec.aggregator_options is not None
        addresses = [
            f"{a.rack}/{a.endpoint(PORT)}" if a.rack else a.endpoint(PORT) for a in self.aggregators
        ]
        hosted = host.role == "worker" and self.spec.engine_options is not None
        return {
            **({"MCAST_ENGINE": f"host:{self.engines.socket(host)}"} if hosted else {}),
            **({"MCAST_AGGREGATORS": ",".join(addresses)} if served and addresses else {}),
            **({"MCAST_LINK_RATE": str(self.spec.rate)} if self.spec.rate else {}),
            **({"MCAST_RACK": host.rack} if host.rack else {}),
            "GLOO_SOCKET_IFNAME": NIC,
            "MCAST_SOCKET_IFNAME": NIC,
            "TP_SOCKET_IFNAME": NIC,
            "NCCL_SOCKET_IFNAME": NIC,
            "MCAST_LAB": self.id,
            "MCAST_LAB_HOST": host.name,
            "MCAST_LAB_ROLE": host.role,
            "MCAST_LAB_ADDRESS": host.address,
            "MCAST_LAB_AGGREGATORS": ",".join(a.address for a in self.aggregators),
        }

    def run(
        self, which: str | int | Host, argv: list[str], check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a host to its end, with its output captured. Raises LabError if it does
        not end."""
        words = f"{' '.join(argv)} in {self.host(which).name}"
        env = {**os.environ, **self.env(which)}
        done = system.finished(self.inside(which, argv), timeout_s, words, env=env)
        if check and done.returncode:
            raise LabError(f"{words}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def popen(
        self,
        which: str | int | Host,
        argv: list[str],
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Starts a command in a host; it ends with the lab at the latest."""
        full = {**os.environ, **self.env(which), **(env or {})}
        return subprocess.Popen(
            self.inside(which, argv), env=full, start_new_session=True, **options
        )


def existing() -> list[dict[str, Any]]:
    """Returns the states of all labs on this machine."""
    found = []
    for name in state.known():
        with contextlib.suppress(LabError):
            found.append({**state.load(name), "alive": state.owner_alive(state.load(name))})
    return found
