"""TCP on the chosen address: control, repair and ring traffic needs it."""

from __future__ import annotations

import socket

from torch_mcast.doctor import udp
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok
from torch_mcast.doctor.fixes import until_reboot
from torch_mcast.doctor.netif import Interface


def measure(address: str, ports: tuple[int, int] | None, limit: float = 1.0) -> str:
    """Listens, on one of these ports if given, connects, moves a byte. Returns "" or the error."""
    try:
        with udp.listen(address, ports) as server:
            server.settimeout(limit)
            with (
                socket.create_connection(server.getsockname()[:2], limit) as client,
                server.accept()[0] as accepted,
            ):
                accepted.settimeout(limit)
                client.sendall(b"m")
                return "" if accepted.recv(1) == b"m" else "closed before its first byte"
    except OSError as error:
        return str(error.strerror or error)


def judge(interface: Interface, problem: str) -> Finding:
    name, data = f"tcp on {interface.name}", {"address": interface.address}
    if problem:
        text = f"listen and connect on {interface.address}: {problem}"
        # Packets to this host's own address go through loopback.
        fix = until_reboot(
            f"iptables -I INPUT -i lo -d {interface.address} -p tcp -j ACCEPT",
            "netfilter-persistent save",
            "for programs of this host only",
        )
        return fail(name, text, fix, **data)
    return ok(name, f"listens and connects on {interface.address}", **data)


def run(context: Context) -> list[Finding]:
    return [judge(i, measure(i.address, context.ports)) for i in context.paths]
