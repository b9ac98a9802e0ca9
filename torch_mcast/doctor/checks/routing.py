"""Routes and packet filters that may keep multicast out. Only hints: whether it passes is tried.

The library gives the outgoing interface by index, so a route for 224.0.0.0/4 is not needed; a
reject route or a filter is a reason why datagrams do not arrive all the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.netif import Route

_MULTICAST = 0xE0000000
_ALLOW = "iptables -I INPUT -p udp -d 224.0.0.0/4 -j ACCEPT && iptables -I INPUT -p igmp -j ACCEPT"
_ALLOW_NFT = "nft insert rule {family} {table} {chain} ip daddr 224.0.0.0/4 accept"
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def best_route(routes: list[Route]) -> Route | None:
    """The route that 239.0.0.0 takes: longest mask, then lowest metric."""
    fitting = [r for r in routes if (_MULTICAST | 0x0F000000) & r.mask == r.destination]
    return max(fitting, key=lambda r: (r.mask, -r.metric), default=None)


def judge_route(routes: list[Route], chosen: str) -> Finding:
    route = best_route(routes)
    data = {"route": route.interface if route else "", "interface": chosen}
    if route is None:
        text = f"none; not needed, sent by interface index on {chosen}" if chosen else "none"
        return ok("route 224.0.0.0/4", text, **data)
    if route.reject:
        return warn(
            "route 224.0.0.0/4",
            "a route rejects multicast: groups use the ring",
            f"ip route replace 224.0.0.0/4 dev {chosen or 'DEV'}",
            **data,
        )
    if chosen and route.interface != chosen:
        text = f"by {route.interface}; ignored, sent by interface index on {chosen}"
        return ok("route 224.0.0.0/4", text, **data)
    return ok("route 224.0.0.0/4", f"by {route.interface}", **data)


def dropping_chains(ruleset: str) -> list[tuple[str, str, str]]:
    """(family, table, chain) of input chains whose policy is drop, in `nft list ruleset`."""
    found, family, table, chain = [], "", "", ""
    for line in ruleset.splitlines():
        if m := re.match(r"table (\S+) (\S+) \{", line):
            family, table = m.groups()
        elif m := re.match(r"\s+chain (\S+) \{", line):
            chain = m[1]
        elif re.search(r"hook input .*policy drop", line) and family != "ip6":
            found.append((family, table, chain))
    return found


def iptables_drops(rules: str) -> bool:
    """True if `iptables -S INPUT` ends in dropping what no rule took."""
    lines = rules.splitlines()
    if "-P INPUT DROP" in lines:
        return True
    return any(re.fullmatch(r"-A INPUT -j (DROP|REJECT)( .*)?", line) for line in lines)


def dropping_rule(rules: str) -> str:
    """The rule of `iptables -S INPUT` that drops multicast, or ""."""
    for line in rules.splitlines():
        if re.search(r"-d (22[4-9]|23\d)\.", line) and re.search(r"-j (DROP|REJECT)", line):
            return line
    return ""


def judge_filter(nft: str | None, iptables: str | None) -> Finding:
    """Texts of both tools; None: the tool is missing or may not be used."""
    if nft is None and iptables is None:
        return ok("firewall", "rules not readable here (no nft or iptables, or not root)")
    if rule := dropping_rule(iptables or ""):
        text = f"a rule drops multicast: {rule}"
        return warn("firewall", text, "iptables " + rule.replace("-A", "-D", 1), rule=rule)
    if nft and re.search(r"\bdaddr (22[4-9]|23\d)\.\S+.*\b(drop|reject)\b", nft):
        text = "a rule of nftables drops multicast"
        return warn("firewall", text, "nft -a list ruleset  (then nft delete rule ... handle N)")
    allowed = re.compile(r"\b(224\.0\.0\.0/4|239\.\S+)\b.*accept", re.IGNORECASE)
    if any(allowed.search(text) for text in (nft or "", iptables or "")):
        return ok("firewall", "a rule accepts multicast")
    if chains := dropping_chains(nft or ""):
        family, table, chain = chains[0]
        text = f"input chain {family} {table} {chain} drops what no rule accepts; none names 224/4"
        fix = _ALLOW_NFT.format(family=family, table=table, chain=chain)
        return warn("firewall", text, fix)
    if iptables is not None and iptables_drops(iptables):
        return warn("firewall", "INPUT drops what no rule accepts; none names 224.0.0.0/4", _ALLOW)
    return ok("firewall", "input is not dropped by default")


def judge_rp_filter(strict: list[str], chosen: str) -> list[Finding]:
    """Strict reverse path filtering drops multicast from senders of other subnets."""
    if not strict:
        return []
    text = (
        f"strict on {', '.join(strict)}: drops multicast of senders that are routed by another "
        "interface"
    )
    fix = f"sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{chosen}.rp_filter=2"
    return [warn("rp_filter", text, fix)]


def _output(*command: str) -> str | None:
    tool = shutil.which(command[0], path=_PATH)
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


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
    findings = [
        judge_route(context.routes, chosen),
        judge_filter(_output("nft", "list", "ruleset"), _output("iptables", "-S", "INPUT")),
    ]
    # On one subnet sender and route agree; beyond it (ttl over 1) they may not.
    if chosen and context.number("ttl") > 1:
        findings += judge_rp_filter(_strict(["all", chosen]), chosen)
    return findings
