"""Facts that a rank reports about itself to the others."""

from __future__ import annotations

import os
import platform
import secrets
from pathlib import Path
from typing import Any

from torch_mcast.doctor import udp
from torch_mcast.doctor.checks.security import secret_check
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding
from torch_mcast.doctor.netif import Interface

_BOOT_ID, _NET = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


def host_id() -> str:
    """Returns boot and network namespace, by which csrc/core/base/host.cpp distinguishes hosts."""
    try:
        net = _NET.stat()
        return f"{_BOOT_ID.read_text().strip()}/{net.st_dev}:{net.st_ino}"
    except OSError:
        return f"unknown/{secrets.token_hex(8)}"


def _interface(interface: Interface | None, max_mtu: int) -> dict[str, Any] | None:
    if interface is None:
        return None
    row = {**interface.to_json(), "subnet": interface.subnet}
    return {**row, "datagram": udp.payload_limit(interface, max_mtu)}


def gather(context: Context, findings: list[Finding]) -> dict[str, Any]:
    from torch_mcast import __version__

    max_mtu = context.number("max_mtu")
    torch = next((f.data.get("running", "") for f in findings if f.check == "torch"), "")
    return {
        "host": os.uname().nodename,
        "host_id": host_id(),
        "version": __version__,
        "torch": torch,
        "python": platform.python_version(),
        "values": context.values if context.rows else {},
        "agreed": sorted(row["name"] for row in context.rows if row["agreed"]),
        "secret_check": secret_check(context),
        "interface": _interface(context.chosen, max_mtu),
        "loopback": _interface(context.loopback, max_mtu),
        "findings": [f.to_json() for f in findings],
    }
