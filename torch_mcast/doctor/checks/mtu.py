"""MTU: the largest datagram leaves without being fragmented and arrives, and one byte more is
refused, so that "don't fragment" is really in force."""

from __future__ import annotations

import errno
import secrets
import time
from dataclasses import dataclass

from torch_mcast.doctor import udp
from torch_mcast.doctor.checks.multicast import not_tried
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import link
from torch_mcast.doctor.netif import Interface

_ETHERNET = 1500


@dataclass(frozen=True)
class Result:
    size: int  # payload bytes tried
    received: bool = False
    problem: str = ""
    fragments: bool = False  # a datagram beyond the MTU was accepted


def measure(interface: Interface, max_mtu: int, limit: float = 1.0) -> Result:
    size = udp.payload_limit(interface, max_mtu)
    group = udp.random_group(interface.ipv6)
    payload = secrets.token_bytes(16) + bytes(max(size - 16, 0))
    fragments = False
    try:
        with udp.open_receiver(interface, group) as receiver, udp.open_sender(interface) as sender:
            to = (group, receiver.getsockname()[1])
            sender.sendto(payload, to)
            deadline = time.monotonic() + limit
            received = any(p == payload for p, _ in udp.receive(receiver, deadline))
            beyond = interface.mtu - udp.overhead(interface) + 1
            if beyond <= udp.MAX_PAYLOAD:
                try:
                    sender.sendto(bytes(beyond), to)
                    fragments = True
                except OSError as error:
                    if error.errno != errno.EMSGSIZE:
                        raise
    except OSError as error:
        return Result(size, problem=str(error.strerror))
    return Result(size, received, "" if received else "not received within 1 s", fragments)


def judge(interface: Interface, max_mtu: int, result: Result) -> Finding:
    name = f"mtu of {interface.name}"
    data = {"mtu": interface.mtu, "datagram": result.size, "received": result.received}
    cost = "only if the network carries it: otherwise all programs lose larger packets"
    larger = link(f"ip link set {interface.name} mtu 1500", cost)
    if result.size < 64 + 32:  # one chunk, one header
        text = f"{interface.mtu}: no room for a datagram"
        return fail(name, text, larger, **data)
    if not result.received:
        text = f"{interface.mtu}, but a full datagram of {result.size} bytes: {result.problem}"
        return warn(name, text, f"export MCAST_MAX_MTU={min(interface.mtu, _ETHERNET)}", **data)
    text = f"{interface.mtu}; a datagram of {result.size} bytes passes unfragmented"
    if result.fragments:
        return warn(name, text + ", but larger ones are fragmented, which hides loss", **data)
    if max_mtu < interface.mtu:
        text += f" (MCAST_MAX_MTU is {max_mtu})"
    elif interface.mtu < _ETHERNET:
        return warn(
            name,
            text + "; below Ethernet's 1500: more datagrams for the same data",
            larger,
            **data,
        )
    elif interface.mtu == _ETHERNET:
        text += "; jumbo frames (9000) cost less CPU where all switches carry them"
    return ok(name, text, **data)


def run(context: Context) -> list[Finding]:
    max_mtu = context.number("max_mtu")
    return [
        not_tried(f"mtu of {i.name}", i)
        if i.name in context.unreached
        else judge(i, max_mtu, measure(i, max_mtu))
        for i in context.paths
    ]
