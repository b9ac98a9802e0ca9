"""Socket buffers: the sizes that the kernel grants, compared with those that the library requests."""

from __future__ import annotations

import socket

from torch_mcast.doctor import udp
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import sysctl


def size_text(size: int) -> str:
    for shift, suffix in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {suffix}"
    return f"{size} B"


def judge(receive: bool, asked: int, reported: int) -> Finding:
    """`reported`: the kernel's figure, which is twice what it granted."""
    granted = reported // 2
    name = "receive buffer" if receive else "send buffer"
    limit = "net.core.rmem_max" if receive else "net.core.wmem_max"
    data = {"asked": asked, "granted": granted}
    if granted >= asked:
        return ok(name, f"{size_text(asked)} asked and granted", **data)
    effect = (
        "fewer bytes in flight, and loss when this rank is descheduled"
        if receive
        else "shorter bursts"
    )
    text = f"{size_text(asked)} asked, {size_text(granted)} granted: {effect}"
    cost = "each socket of any user may then hold that much kernel memory"
    return warn(name, text, sysctl(limit, asked, cost), **data)


def measure(receive: bool, asked: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return udp.set_buffer(s, receive, asked)


def run(context: Context) -> list[Finding]:
    rcvbuf, sndbuf = context.number("rcvbuf"), context.number("sndbuf")
    return [
        judge(True, rcvbuf, measure(True, rcvbuf)),
        judge(False, sndbuf, measure(False, sndbuf)),
    ]
