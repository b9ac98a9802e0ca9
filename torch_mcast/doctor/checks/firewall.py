"""The packet filter of this host and the packets that a job needs: UDP to its groups, the queries
of the network's IGMP querier, TCP connections of other hosts. Rules are read, not tested: a job
shows whether packets pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.filters import iptables, nft
from torch_mcast.doctor.filters.rules import Answer, Chain, Network, Packets, Rule, ask
from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.fixes import GROUPS, GROUPS6, UDP_PORTS, Opening
from torch_mcast.doctor.netif import Interface

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEGACY = Path("/proc/net/ip_tables_names")
_MODULES, _NF_TABLES = Path("/proc/modules"), Path("/sys/module/nf_tables")
_BUILT_IN = Path(f"/lib/modules/{os.uname().release}/modules.builtin")
_UFW, _FIREWALLD = Path("/etc/ufw/ufw.conf"), Path("/run/firewalld.pid")
_NOT_UNDERSTOOD = (ValueError, KeyError, TypeError)  # and the errors of json and ipaddress
_ANYWHERE = Network("0.0.0.0/0")


def packets_of(interface: Interface, tcp_ports: tuple[int, int]) -> list[Packets]:
    own, subnet = Network(f"{interface.address}/32"), Network(interface.subnet)
    name = interface.name
    return [
        Packets("multicast", "udp", Network(GROUPS), subnet, name, UDP_PORTS, multicast=True),
        # Queriers may have any address, or none.
        Packets("IGMP", "igmp", Network("224.0.0.1/32"), _ANYWHERE, name, multicast=True),
        Packets("TCP", "tcp", own, subnet, name, tcp_ports),
    ]


def manager_of(blame: str, chains: dict[str, Chain]) -> str:
    """Returns the program that manages the blamed rule: the fix has to be its command."""
    if blame.startswith("nftables"):
        return "firewalld" if "firewalld" in blame else "nft"
    names = " ".join(chains)
    if "ufw-" in names:
        return "ufw"
    return "firewalld" if "INPUT_ZONES" in names else "iptables"


def _chain_of(blame: str) -> str:
    return blame.partition(":")[0].removeprefix("nftables ")


def judge(
    chains: dict[str, Chain] | None, interface: Interface, tcp_ports: tuple[int, int], narrow: bool
) -> list[Finding]:
    """`chains`: None if the rules may not be read. `narrow`: TCP ports are those of MCAST_PORT_RANGE."""
    where = f"from {interface.subnet} on {interface.name}"
    if chains is None:
        return [
            ok(
                "firewall",
                "not known: only root can read the rules, with iptables or nft; the check of a job "
                "tries what passes",
                read=False,
            )
        ]
    found, fine = [], []
    for packets in packets_of(interface, tcp_ports):
        answer = ask(chains, packets)
        first, last = packets.ports
        told = f"{packets.name} ({GROUPS}, ports {first} to {last})"
        if packets.protocol == "tcp":
            told = f"TCP (ports {first} to {last})"
        elif packets.protocol == "igmp":
            told = "IGMP queries"
        if answer.accepted:
            fine.append(told)
            continue
        manager = manager_of(answer.blame, chains)
        found.append(_refused(answer, packets, told, where, manager, narrow))
    if not found:
        text = f"lets in {', '.join(fine)} {where}"
        return [ok("firewall", text, manager=manager_of("", chains), read=True)]
    return found


def _refused(
    answer: Answer, packets: Packets, told: str, where: str, manager: str, narrow: bool
) -> Finding:
    data = {"packets": packets.name, "blame": answer.blame, "manager": manager, "read": True}
    if not answer.dropped:
        text = f"not known whether it lets in {told} {where}: {answer.blame}"
        return ok("firewall", text, **data)
    effect = {
        "udp": "groups use the ring",
        "igmp": "a switch that snoops forgets this host after some minutes",
        "tcp": "no group with other hosts can be made",
    }[packets.protocol]
    ports = packets.ports if packets.protocol != "igmp" else (0, 0)
    opening = Opening(packets.protocol, str(packets.source), packets.interface, ports)
    fix = opening.command(manager, _chain_of(answer.blame))
    if packets.protocol == "tcp" and not narrow:
        fix = "export MCAST_PORT_RANGE=42000-42999  (on all hosts), then ask again for the rule"
    return warn("firewall", f"drops {told} {where}, so {effect}: {answer.blame}", fix, **data)


def _output(*command: str) -> str | None:
    tool = shutil.which(command[0], path=_PATH)
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def read_chains(interface: str) -> dict[str, Chain] | None:
    """Returns all IPv4 filters; a filter that this process may not read may have any effect. None
    if it may read none."""
    without: set[tuple[str, str]] = set()
    rules = _output("iptables", "-S")
    chains = iptables.read(rules or "")
    newer = "nf_tables" in (_output("iptables", "--version") or "") if rules is not None else True
    if newer:
        chains |= _legacy()
        if rules is not None:
            without.add(("ip", "filter"))
    ruleset = _output("nft", "-j", "list", "ruleset")
    if ruleset is not None:
        chains |= nft.read(ruleset, interface, frozenset(without))
    elif newer or _may_have_nf_tables():
        chains |= _unread("nftables", "nft lists none (is it installed?)")
    return None if rules is None and ruleset is None else chains


def _unread(name: str, why: str) -> dict[str, Chain]:
    """Returns a chain whose rules could not be read."""
    rule = Rule((), "unknown", "", f"there may be rules that could not be read: {why}")
    return {f"unread:{name}": Chain(name, [rule], "accept", name)}


def _may_have_nf_tables() -> bool:
    """Returns whether the kernel has it, as a module or built in; true if that cannot be determined."""
    try:
        if "nf_tables" in {line.partition(" ")[0] for line in _MODULES.read_text().splitlines()}:
            return True
        return _NF_TABLES.exists() or "/nf_tables.ko" in _BUILT_IN.read_text()
    except OSError:
        return True


def _legacy() -> dict[str, Chain]:
    """Returns rules of the older kind, if there are any: querying them loads their modules."""
    try:
        tables = _LEGACY.read_text().split()
    except OSError:
        return {}
    if "filter" not in tables:
        return {}
    if (rules := _output("iptables-legacy", "-S")) is None:
        return _unread("iptables-legacy", "iptables-legacy -S lists none (is it installed?)")
    chains = iptables.read(rules, "iptables-legacy")
    # Both kinds have the same chain names.
    mark = "legacy:"
    for chain in chains.values():
        chain.rules = [
            type(r)(
                r.conditions, r.verdict, mark + r.target if r.target in chains else r.target, r.text
            )
            for r in chain.rules
        ]
    return {mark + name: chain for name, chain in chains.items()}


def manager_here(interface: str) -> str:
    """Returns the program that manages this host's rules: ufw, firewalld or iptables."""
    try:
        manager = manager_of("", read_chains(interface) or {})
    except _NOT_UNDERSTOOD:
        manager = "iptables"
    if manager != "iptables":
        return manager
    # If the rules may not be read, its files show it.
    try:
        if re.search(r"^ENABLED=yes", _UFW.read_text(), re.M):
            return "ufw"
    except OSError:
        pass
    return "firewalld" if _FIREWALLD.exists() else "iptables"


def _local_ports() -> tuple[int, int]:
    """Returns the range of ports that the kernel assigns to clients."""
    try:
        first, last = map(int, _LOCAL_PORTS.read_text().split())
    except (OSError, ValueError):
        return (32768, 60999)
    return (first, last)


def _not_read(interface: Interface, tcp_ports: tuple[int, int]) -> Finding:
    """Rules of IPv6 are not read: it lists what they must let in."""
    text = (
        f"rules of IPv6 are not read; they must let in from {interface.subnet} on {interface.name}: "
        f"UDP to {GROUPS6}, ports {UDP_PORTS[0]} to {UDP_PORTS[1]}; TCP, ports {tcp_ports[0]} to "
        f"{tcp_ports[1]}; ICMPv6 types 130 (MLD queries), 135 and 136 (neighbour discovery)"
    )
    return ok("firewall", text, read=False)


def run(context: Context) -> list[Finding]:
    chosen = context.chosen
    if chosen is None or chosen.loopback or not chosen.address:
        return [ok("firewall", "not looked at: ranks of one host use loopback")]
    ports = context.ports
    if chosen.ipv6:
        return [_not_read(chosen, ports or _local_ports())]
    try:
        chains = read_chains(chosen.name)
    except _NOT_UNDERSTOOD as error:
        return [ok("firewall", f"not known: its rules were not understood ({error})", read=False)]
    return judge(chains, chosen, ports or _local_ports(), ports is not None)
