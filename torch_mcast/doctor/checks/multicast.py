"""Multicast on this machine: one socket receives the datagram that another one sends, on the chosen
interface and on loopback; and enough groups can be joined. Only a second machine can show how the
network handles it: see torch_mcast.doctor.job."""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from pathlib import Path

from torch_mcast.doctor import udp
from torch_mcast.doctor.checks import firewall
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import MULTICAST_ON, UDP_PORTS, Opening, for_shell, link, sysctl
from torch_mcast.doctor.netif import Interface

_LIMIT_S = 1.0
_JOINED = 16  # addresses that the engine receives at once, each with its own socket
_MEMBERSHIPS = Path("/proc/sys/net/ipv4/igmp_max_memberships")


def round_trip(interface: Interface, ttl: int, limit: float = _LIMIT_S) -> tuple[bool, str]:
    """Returns (received, error)."""
    group, token = udp.random_group(interface.ipv6), secrets.token_bytes(16)
    try:
        with (
            udp.open_receiver(interface, group) as receiver,
            udp.open_sender(interface, ttl) as sender,
        ):
            sender.sendto(token, (group, receiver.getsockname()[1]))
            deadline = time.monotonic() + limit
            if any(payload == token for payload, _ in udp.receive(receiver, deadline)):
                return True, ""
    except OSError as error:
        return False, f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"
    return False, f"sent, but not received within {limit:g} s"


def not_tried(check: str, interface: Interface) -> Finding:
    """Returns the row of checks that need multicast to arrive: they would blame the wrong cause."""
    text = f"not tried: multicast does not arrive, see the row multicast on {interface.name}"
    return warn(check, text, interface=interface.name)


def judge_round_trip(
    interface: Interface, received: bool, problem: str, algorithm: str, manager: str = "iptables"
) -> Finding:
    """`manager`: of this host's packet filter."""
    name = f"multicast on {interface.name}"
    data = {"interface": interface.name, "received": received}
    if received:
        where = "" if interface.loopback else "; other machines: run under torchrun"
        return ok(name, f"sent and received on this host{where}", **data)
    who = "ranks of one host" if interface.loopback else "groups"
    text = f"{problem}: {who} use the ring"
    opening = Opening("udp", interface.subnet, interface.name, UDP_PORTS)
    fix = f"{opening.command(manager)}  if the row firewall says that it drops multicast"
    if interface.ipv6:
        fix = "let in what the row firewall lists"
    if not interface.multicast and not interface.loopback:
        fix = link(f"ip link set {interface.name} multicast on", MULTICAST_ON)
    return (fail if algorithm == "multicast" else warn)(name, text, fix, **data)


def try_joins(interface: Interface, count: int = _JOINED) -> tuple[int, str]:
    """Returns how many of `count` groups could be joined, a socket each, and the error of the next one."""
    with contextlib.ExitStack() as stack:
        for done in range(count):
            try:
                stack.enter_context(udp.open_receiver(interface, udp.random_group(interface.ipv6)))
            except OSError as error:
                return done, str(error.strerror)
    return count, ""


def judge_memberships(limit: int | None, joined: int, problem: str) -> Finding:
    text = f"{joined} of {_JOINED} groups joined; igmp_max_memberships {limit} per socket"
    data = {"joined": joined, "limit": limit}
    if joined == _JOINED:
        return ok("memberships", text, **data)
    cost = "each user's sockets may join that many groups"
    fix = sysctl("net.ipv4.igmp_max_memberships", 20, cost)
    if limit is not None and limit > _JOINED:  # the limit is then on open files
        fix = for_shell("ulimit -n 65536", "each of these processes may open as many files")
    judge = warn if joined else fail
    return judge("memberships", f"{text}: {problem}", fix, **data)


def _limit() -> int | None:
    try:
        return int(_MEMBERSHIPS.read_text())
    except (OSError, ValueError):
        return None


def run(context: Context) -> list[Finding]:
    findings = []
    for interface in context.paths:
        received, problem = round_trip(interface, context.number("ttl"))
        if not received:
            context.unreached.add(interface.name)
        manager = "iptables" if received else firewall.manager_here(interface.name)
        algorithm = context.values["algorithm"]
        findings.append(judge_round_trip(interface, received, problem, algorithm, manager))
    if context.loopback is not None:  # joins there send no report to a network
        findings.append(judge_memberships(_limit(), *try_joins(context.loopback)))
    return findings
