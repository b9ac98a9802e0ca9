"""Routes, and the IGMP version of the network's queriers. These are only hints: other checks test
whether multicast passes.

The library sets the outgoing interface by index, so a route for 224.0.0.0/4 is not needed, and a
rejecting route does no harm if datagrams pass anyway."""

from __future__ import annotations

import re
from pathlib import Path

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import GROUPS, link, sysctl
from torch_mcast.doctor.netif import Route

_MULTICAST = 0xE0000000
_IGMP = Path("/proc/net/igmp")


def best_route(routes: list[Route]) -> Route | None:
    """Returns the route that 239.0.0.0 takes: longest mask, then lowest metric."""
    fitting = [r for r in routes if (_MULTICAST | 0x0F000000) & r.mask == r.destination]
    return max(fitting, key=lambda r: (r.mask, -r.metric), default=None)


def judge_route(routes: list[Route], chosen: str, passes: bool) -> Finding:
    """`passes`: multicast was sent and received on the chosen interface."""
    route = best_route(routes)
    data = {"route": route.interface if route else "", "interface": chosen}
    if route is None:
        text = f"none; not needed, sent by interface index on {chosen}" if chosen else "none"
        return ok("route 224.0.0.0/4", text, **data)
    if route.reject and passes:
        text = f"a route rejects multicast; ignored, sent by interface index on {chosen}"
        return ok("route 224.0.0.0/4", text, **data)
    if route.reject:
        cost = (
            f"all programs' datagrams to {GROUPS} then leave there, unless they name an interface"
        )
        fix = link(f"ip route replace {GROUPS} dev {chosen or 'DEV'}", cost)
        return warn(
            "route 224.0.0.0/4", "a route rejects multicast: groups use the ring", fix, **data
        )
    if chosen and route.interface != chosen:
        text = f"by {route.interface}; ignored, sent by interface index on {chosen}"
        return ok("route 224.0.0.0/4", text, **data)
    return ok("route 224.0.0.0/4", f"by {route.interface}", **data)


def judge_rp_filter(strict: list[str], chosen: str) -> list[Finding]:
    """Strict reverse path filtering drops multicast from senders of other subnets."""
    if not strict:
        return []
    text = (
        f"strict on {', '.join(strict)}: drops multicast of senders that are routed by another "
        "interface"
    )
    # The kernel takes the larger of the values for "all" and for the interface.
    fix = sysctl(
        f"net.ipv4.conf.{chosen}.rp_filter",
        2,
        "packets with forged sender addresses of other subnets are then accepted there",
    )
    return [warn("rp_filter", text, fix)]


def igmp_version(text: str, interface: str) -> int:
    """Returns the IGMP version that queriers on this interface use, from /proc/net/igmp; 0 if the
    interface is not listed."""
    for line in text.splitlines()[1:]:
        m = re.match(r"\d+\s+(\S+?)\s*:\s+\d+\s+V(\d)", line)
        if m and m[1] == interface:
            return int(m[2])
    return 0


def judge_igmp(version: int, interface: str, forced: bool) -> list[Finding]:
    """In versions 1 and 2 a host that receives another's report suppresses its own. A switch that
    floods reports (a Linux bridge does until its querier has waited once) then removes members."""
    if version in (0, 3):
        return []
    why = "net.ipv4.conf.*.force_igmp_version" if forced else "a querier of this network"
    text = (
        f"{why} asks for version {version}, in which switches that snoop may lose members: repairs, then "
        "the ring"
    )
    fix = (
        sysctl(
            f"net.ipv4.conf.{interface}.force_igmp_version",
            0,
            "it then reports in version 3, which a switch that only knows version 2 ignores",
        )
        if forced
        else "version 3 for the querier of this VLAN, on the switch; a Linux bridge: "
        + link(
            "ip link set BRIDGE type bridge mcast_igmp_version 3",
            "all hosts behind it then report in version 3",
        )
        + "; docs/cluster.md has other switches, and clouds, whose gateways do not snoop"
    )
    return [warn("igmp", text, fix, version=version)]


def _forced(interface: str) -> bool:
    for name in ("all", interface):
        try:
            value = Path(f"/proc/sys/net/ipv4/conf/{name}/force_igmp_version").read_text().strip()
        except OSError:
            continue
        if value in ("1", "2"):
            return True
    return False


def _strict(names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            value = Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").read_text().strip()
        except OSError:
            continue
        if value == "1":
            found.append(name)
    return found


def run(context: Context) -> list[Finding]:
    chosen = context.chosen.name if context.chosen else ""
    passes = bool(chosen) and chosen not in context.unreached
    if context.chosen is not None and context.chosen.ipv6:
        return [ok("route ff15::/16", f"not needed, sent by interface index on {chosen}")]
    findings = [judge_route(context.routes, chosen, passes)]
    try:
        version = igmp_version(_IGMP.read_text(), chosen)
    except OSError:
        version = 0
    findings += judge_igmp(version, chosen, _forced(chosen))
    # On one subnet sender and route agree; beyond it (ttl over 1) they may not.
    if chosen and context.number("ttl") > 1:
        findings += judge_rp_filter(_strict(["all", chosen]), chosen)
    return findings
