"""CPU time and NIC bytes of an interval of a run, as one rank sees them."""

from __future__ import annotations

import functools
import os
import resource
import time
from pathlib import Path


def cpu_s() -> float:
    """Returns the CPU seconds of this process so far, user and system, all threads. They do not
    include interrupt work that the kernel does for its packets on behalf of other processes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def engine_cpu_s() -> float:
    """Returns the CPU seconds of this host's engine so far on one of its ranks; 0 on the others and
    without an engine."""
    choice, _, path = os.environ.get("MCAST_ENGINE", "").partition(":")
    if choice != "host" or os.environ.get("LOCAL_RANK", "0") != "0":
        return 0.0
    # Clock id of another process, as clock_getcpuclockid(3) makes it.
    return time.clock_gettime(~_engine_pid(path) << 3 | 2)


@functools.cache
def _engine_pid(path: str) -> int:
    from torch_mcast.engine import DEFAULT_SOCKET, read

    return int(read(path or DEFAULT_SOCKET)["pid"])


@functools.cache
def interface() -> str | None:
    """Returns the NIC that the library uses here or, if that cannot be determined, the one that
    Gloo is told to use."""
    from torch_mcast.doctor import netif

    try:
        wanted = os.environ.get("MCAST_SOCKET_IFNAME", "")
        return netif.choose_interface(netif.list_interfaces(), wanted)[0].name
    except (ImportError, ValueError, OSError):
        name = os.environ.get("GLOO_SOCKET_IFNAME", "")
        return name if name and Path(f"/sys/class/net/{name}").exists() else None


def nic_bytes() -> tuple[int, int] | None:
    """Returns (sent, received) of this host's NIC so far by its own counters; None on loopback."""
    name = interface()
    if name in (None, "lo"):
        return None
    folder = Path(f"/sys/class/net/{name}/statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())
