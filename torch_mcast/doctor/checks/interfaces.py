"""Interfaces of this machine, and the one that the library takes."""

from __future__ import annotations

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import MULTICAST_ON, for_shell, link
from torch_mcast.doctor.netif import Interface

# Equal to csrc/core/transport/udp/netif.cpp.
_OF_CONTAINERS = (
    *("docker", "virbr", "br-", "cni", "lxc", "veth", "podman", "weave", "flannel", "cali"),
    "ovs",
)
_UP = link(
    "ip link set DEV up && ip addr add ADDRESS/BITS dev DEV",
    "hosts of that network then reach this one",
)


def describe(interface: Interface) -> str:
    flags = [
        name
        for name, on in (
            ("up", interface.up),
            ("down", not interface.up),
            ("multicast", interface.multicast),
            ("loopback", interface.loopback),
            ("default route", interface.default_route),
            ("leads to MASTER_ADDR", interface.store_route),
        )
        if on
    ]
    address = f"{interface.address}/{interface.prefix}" if interface.address else "no IP address"
    speed = f" {interface.speed} Mbit/s" if interface.speed else ""
    return f"{interface.name} {address} mtu {interface.mtu}{speed} ({', '.join(flags)})"


def suggestion(interfaces: list[Interface]) -> str:
    """Returns an export line that would work, for a pattern that does not."""
    usable = [i for i in interfaces if i.usable]
    good = [i for i in usable if i.multicast and not i.loopback] or usable
    if not good:
        return _UP
    return f'export MCAST_SOCKET_IFNAME="={good[0].name}"'


def judge_chosen(
    chosen: Interface | None, why: str, interfaces: list[Interface], algorithm: str
) -> Finding:
    if chosen is None:
        return fail("interface used", why, suggestion(interfaces))
    text = f"{describe(chosen)}: {why}"
    data = {"name": chosen.name, "why": why}
    if chosen.loopback and any(i.usable and not i.loopback for i in interfaces):
        return ok("interface used", text + "; only ranks on this host can take part", **data)
    if chosen.loopback:
        fix = _UP
        return warn("interface used", text + "; only ranks on this host", fix, **data)
    if not chosen.multicast:
        judge = fail if algorithm == "multicast" else warn
        text += "; without the flag MULTICAST datagrams may not leave it: groups then use the ring"
        fix = link(f"ip link set {chosen.name} multicast on", MULTICAST_ON)
        return judge("interface used", text, fix, **data)
    return ok("interface used", text, **data)


def judge_faster(chosen: Interface | None, interfaces: list[Interface]) -> list[Finding]:
    """Finds an interface that is up, faster than the one in use, and not a bridge of containers."""
    if chosen is None or not chosen.speed or chosen.loopback:
        return []
    others = [i for i in interfaces if i.usable and i.multicast and not i.loopback]
    others = [i for i in others if not i.name.startswith(_OF_CONTAINERS)]
    fastest = max(others, key=lambda i: i.speed, default=chosen)
    if fastest.speed <= chosen.speed:
        return []
    text = (
        f"{fastest.name} {fastest.address} ({fastest.speed} Mbit/s) is up and not used; "
        f"{chosen.name} has {chosen.speed} Mbit/s"
    )
    fix = for_shell(
        f'export MCAST_SOCKET_IFNAME="{fastest.subnet}"',
        "if all hosts of the job have an address there and reach each other by it",
    )
    return [warn("faster interface", text, fix, name=fastest.name, speed=fastest.speed)]


def judge_loopback(loopback: Interface | None) -> list[Finding]:
    if loopback is not None:
        return []
    fix = link("ip link set lo up", "programs of this host may then talk to each other by it")
    return [fail("loopback", "no loopback interface that is up", fix)]


def run(context: Context) -> list[Finding]:
    listing = [ok("interface", describe(i), **i.to_json()) for i in context.interfaces]
    if context.chosen is None and context.extension_error:
        chosen = warn("interface used", context.why, "see the check of versions")
    else:
        chosen = judge_chosen(
            context.chosen, context.why, context.interfaces, context.values["algorithm"]
        )
    faster = judge_faster(context.chosen, context.interfaces)
    return [*listing, chosen, *faster, *judge_loopback(context.loopback)]
