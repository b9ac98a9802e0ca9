"""Turns reports of received datagrams into a matrix, the pairs without contact, and likely causes."""

from __future__ import annotations

from typing import Any

from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import RING, UDP_PORTS, Opening, link
from torch_mcast.doctor.job.compare import Facts, prefer_interface
from torch_mcast.doctor.job.ranks import label, spans
from torch_mcast.doctor.job.reach import Heard

_MATRIX = 40  # ranks; above it only the pairs are listed
_PAIRS = 12  # named in one row


NO_RANGE = "export MCAST_PORT_RANGE=42000-42999  (on all hosts), then let these in"

Pairs = list[tuple[int, int]]  # (sender, receiver) that multicast does not reach
Causes = list[tuple[str, str]]  # (likely cause, fix)


def let_in(rank: int, facts: Facts, *protocols: str) -> str:
    """Returns the commands with which the rank's host accepts these protocols from the hosts of its
    subnet."""
    interface = facts[rank]["interface"]
    if not interface:
        return "see the row firewall of that host"
    rows = [f for f in facts[rank]["findings"] if f["check"] == "firewall"]
    manager = next((f["data"]["manager"] for f in rows if "manager" in f["data"]), "iptables")
    if manager == "nft":
        return "see the row firewall of a check by root on that host  (its chain is not known here)"
    commands = []
    for protocol in protocols:
        ports = {"udp": UDP_PORTS, "igmp": (0, 0)}.get(protocol) or port_range(facts[rank])
        if ports is None:
            return NO_RANGE
        opening = Opening(protocol, interface["subnet"], interface["name"], ports)
        commands.append(opening.command(manager))
    return "; ".join(commands) + f"  (on {facts[rank]['host']})"


def port_range(fact: dict[str, Any]) -> tuple[int, int] | None:
    first, _, last = fact["values"].get("port_range", "").partition("-")
    return (int(first), int(last or first)) if first.isdigit() else None


def unreachable_pairs(reports: dict[int, Heard], ranks: list[int]) -> Pairs:
    """Returns (sender, receiver) where the receiver took part and did not receive full datagrams."""
    return [(s, r) for s in ranks for r in ranks if r in reports and s not in reports[r].full]


def matrix(reports: dict[int, Heard], ranks: list[int]) -> str:
    """Rows send, columns receive: "." heard, "s" small datagrams only, "x" not, "?" no report."""
    if len(ranks) > _MATRIX:
        return ""
    wide = len(str(max(ranks, default=0)))
    head = "sends \\ hears".ljust(14) + " ".join(str(r).rjust(wide) for r in ranks)
    lines = [head]
    for sender in ranks:
        cells = []
        for receiver in ranks:
            report = reports.get(receiver)
            if report is None:
                mark = "?"
            elif sender in report.full:
                mark = "."
            else:
                mark = "s" if sender in report.small else "x"
            cells.append(mark.rjust(wide))
        lines.append(f"rank {sender}".ljust(14) + " ".join(cells))
    lines.append('(".": heard, "s": only small datagrams, "x": not heard, "?": no report)')
    return "\n".join(lines)


def name_pairs(pairs: Pairs) -> str:
    """Groups pairs by receiver: "rank 2 does not hear ranks 0, 1"."""
    by_receiver: dict[int, list[int]] = {}
    for sender, receiver in pairs:
        by_receiver.setdefault(receiver, []).append(sender)
    texts = [f"rank {r} does not hear {label(s)}" for r, s in sorted(by_receiver.items())]
    more = len(texts) - _PAIRS
    return "; ".join(texts[:_PAIRS]) + (f"; and {more} more ranks" if more > 0 else "")


def causes(pairs: Pairs, reports: dict[int, Heard], ranks: list[int], facts: Facts) -> Causes:
    """Returns the likely causes, the most conclusive one first."""
    if any(s in reports[r].small for s, r in pairs):
        return [
            (
                "small datagrams arrive, full ones do not: the network's MTU is below the "
                "interfaces'",
                "export MCAST_MAX_MTU=1500  (or raise the MTU of switches and hosts)",
            )
        ]
    own = [r for s, r in pairs if s == r and not reports[r].problem]
    found = _not_even_itself(own, facts)
    pairs = [(s, r) for s, r in pairs if r not in own]
    if not pairs:
        return found
    host = {r: facts[r]["host_id"] for r in ranks}
    across = [(s, r) for s, r in pairs if host[s] != host[r]]
    if not across:
        packet_filter = "ranks of one host do not hear each other: a packet filter"
        return [*found, (packet_filter, let_in(pairs[0][1], facts, "udp"))]
    subnet = {r: (facts[r]["interface"] or {}).get("subnet") for r in ranks}
    apart = [(s, r) for s, r in across if subnet[s] != subnet[r]]
    if apart:
        found.append(
            (
                "different subnets: wrong interface, or routers do not forward multicast",
                f"{prefer_interface(facts)}  (the interface on the common network)",
            )
        )
        if apart == across:
            return found
    return found + _hosts_apart(across, reports, host, facts) + _of_the_network(across, host)


def _not_even_itself(own: list[int], facts: Facts) -> Causes:
    if not own:
        return []
    names = ", ".join(sorted({facts[r]["host"] for r in own}))
    cause = f"{label(own)} ({names}) not even from itself: a packet filter on that host"
    return [(cause, let_in(own[0], facts, "udp"))]


def _hosts_apart(
    across: Pairs, reports: dict[int, Heard], host: dict[int, str], facts: Facts
) -> Causes:
    """A host without contact to any other is itself suspect; if no host has contact, the network is."""
    hosts = sorted(set(host.values()))
    if len(hosts) <= 2:
        return []
    found = []
    for name in hosts:
        mine = [r for r in host if host[r] == name]
        others = [r for r in host if host[r] != name]
        hears_none = all((s, r) in across for r in mine if r in reports for s in others)
        unheard = all((s, r) in across for s in mine for r in others if r in reports)
        involved = sum(s in mine or r in mine for s, r in across)
        if not (hears_none or unheard) or involved < len(across):
            continue
        if hears_none and unheard:
            what = "neither hears nor is heard"
        else:
            what = "hears no other host" if hears_none else "is heard by no other host"
        host_name = facts[mine[0]]["host"]
        found.append(
            (
                f"the host {host_name} ({label(mine)}) {what}: its firewall, its interface, or "
                "its switch port",
                let_in(mine[0], facts, "udp", "igmp"),
            )
        )
    return found


def _of_the_network(across: Pairs, host: dict[int, str]) -> Causes:
    found = []
    if len(across) == sum(a != b for a in host.values() for b in host.values()):
        found.append(
            (
                "no host hears another: a cloud or container network without multicast (AWS needs "
                "a Transit Gateway multicast domain, Docker's bridge passes none), or firewalls",
                "docker run --network host ...  (for that container, which then has all of the host's "
                "network); else " + RING,
            )
        )
    found.append(
        (
            "IGMP snooping without a querier: the switch forgets which hosts listen",
            "enable an IGMP querier in the VLAN; on a Linux bridge: "
            + link(
                "ip link set BRIDGE type bridge mcast_querier 1",
                "it asks every host for its groups every two minutes",
            ),
        )
    )
    return found


def judge_reach(
    plan: dict[str, Any], reports: dict[int, Heard], facts: Facts, algorithm: str
) -> list[Finding]:
    ranks = plan["ranks"]
    found = []
    silent = [r for r in ranks if r not in reports]
    if silent:
        text = f"{label(silent)} did not report whom they heard"
        found.append(fail("reach", text, "look at the output of these ranks", ranks=silent))
    for rank, report in reports.items():
        if report.problem:
            found.append(warn("reach", f"rank {rank}: {report.problem}", RING, rank=rank))
    pairs = unreachable_pairs(reports, ranks)
    where = "loopback" if plan["path"] == "loopback" else "the chosen interfaces"
    data = {"pairs": pairs, "size": plan["size"], "path": plan["path"]}
    if not ranks:
        found.append(fail("reach", "not tried: no rank has an interface", **data))
    elif not pairs and not silent:
        text = f"every rank hears every rank by multicast on {where}, {plan['size']} bytes"
        found.append(ok("reach", text, **data))
    elif pairs:
        judge = fail if algorithm == "multicast" else ok if algorithm == "ring" else warn
        result = {
            "multicast": "making a group fails (MCAST_ALGORITHM=multicast)",
            "ring": "no matter, MCAST_ALGORITHM=ring",
        }.get(algorithm, "groups with these ranks use the ring, which is slower")
        likely = causes(pairs, reports, ranks, facts)
        text = f"{name_pairs(pairs)} on {where}: {result}"
        found.append(judge("reach", text, RING if algorithm == "auto" else "", **data))
        found += [judge("likely cause", cause, fix) for cause, fix in likely]
    return found


def judge_tcp(plan: dict[str, Any], reports: dict[int, Heard], facts: Facts) -> Finding:
    refused = {r: report.refused for r, report in reports.items() if report.refused}
    data = {"refused": {str(r): {str(k): v for k, v in row.items()} for r, row in refused.items()}}
    if not refused:
        return ok("tcp between ranks", "every rank connects to every rank", **data)
    texts = []
    for rank, row in sorted(refused.items())[:_PAIRS]:
        why = "; ".join(sorted(set(row.values()))[:3])
        texts.append(f"rank {rank} to {spans(row)} ({why})")
    deaf = sorted({other for row in refused.values() for other in row})
    fix = let_in(deaf[0], facts, "tcp") if deaf[0] in facts else NO_RANGE
    text = f"no connection from {', '.join(texts)}: a group cannot be made"
    return fail("tcp between ranks", text, fix, **data)
