"""Differences between ranks. Turns facts into findings, without querying the system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch_mcast._load import REINSTALL
from torch_mcast.doctor.findings import Finding, fail, ok, warn
from torch_mcast.doctor.fixes import link
from torch_mcast.doctor.fixes import torch as install_torch
from torch_mcast.doctor.job.ranks import label, spans

Facts = dict[int, dict[str, Any]]  # of the ranks that reported

# Settings of a single machine: naturally different between hosts.
_LOCAL = {"interface", "debug", "pin"}


def by_value(facts: Facts, value: Callable[[dict[str, Any]], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(facts):
        groups[value(facts[rank])].append(rank)
    return dict(groups)


def value_of(setting: str) -> Callable[[dict[str, Any]], str]:
    return lambda f: f["values"][setting]


def describe(groups: dict[str, list[int]]) -> str:
    return "; ".join(f"{value or '(empty)'} on {label(ranks)}" for value, ranks in groups.items())


def newest(groups: dict[str, list[int]]) -> str:
    """Returns the newest version; a text that is not a version is older than all others."""
    from packaging.version import InvalidVersion, Version

    def order(text: str) -> tuple[bool, Version]:
        try:
            return (True, Version(text))
        except InvalidVersion:
            return (False, Version("0"))

    return max(groups, key=order)


def describe_others(groups: dict[str, list[int]], value: str) -> str:
    return label(
        sorted(rank for other, ranks in groups.items() if other != value for rank in ranks)
    )


def presence(facts: Facts, size: int) -> Finding:
    missing = sorted(set(range(size)) - set(facts))
    if not missing:
        return ok("ranks", f"all {size} reported", missing=[])
    return fail(
        "ranks",
        f"{label(missing)} of {size} did not report in time",
        "look at the output of these ranks; is MASTER_ADDR reachable from their hosts?",
        missing=missing,
    )


def versions(facts: Facts) -> list[Finding]:
    mine = by_value(facts, lambda f: f["version"])
    torch = by_value(facts, lambda f: f["torch"])
    python = by_value(facts, lambda f: f["python"])
    if len(mine) > 1:
        best = newest(mine)
        fix = f"{REINSTALL}, with the sources of {best}, on {describe_others(mine, best)}"
        return [fail("versions", f"torch_mcast differs: {describe(mine)}", fix, versions=mine)]
    found = []
    if len(torch) > 1:
        best = newest(torch)
        fix = f"{install_torch(best)} && {REINSTALL}, on {describe_others(torch, best)}"
        found.append(warn("versions", f"torch differs: {describe(torch)}", fix, versions=torch))
    if len(python) > 1:
        text = f"Python differs: {describe(python)}"
        found.append(warn("versions", text, "use one environment on all hosts", versions=python))
    return found or [ok("versions", f"torch_mcast {next(iter(mine))} and one torch on all ranks")]


def settings(facts: Facts) -> list[Finding]:
    known = [f for f in facts.values() if f["values"]]
    agreed = {name for f in known for name in f["agreed"]}
    names = sorted({name for f in known for name in f["values"]} - _LOCAL)
    found = []
    for name in names:
        having = {rank: f for rank, f in facts.items() if name in f["values"]}
        groups = by_value(having, value_of(name))
        if len(groups) < 2:
            continue
        variable = f"MCAST_{name.upper()}"
        common = max(groups.items(), key=lambda item: len(item[1]))[0]
        fix = f'export {variable}="{common}"  (on all ranks)'
        text = f"{name} differs: {describe(groups)}"
        if name in agreed:
            text += "; making a group raises an error"
        found.append((fail if name in agreed else warn)("settings", text, fix, setting=name))
    return found or [ok("settings", "the same on all ranks")]


def secrets(facts: Facts) -> list[Finding]:
    """A rank without a secret reports that itself, or uses its engine's."""
    having = {r: f for r, f in facts.items() if f.get("secret_check")}
    groups = list(by_value(having, lambda f: f["secret_check"]).values())
    if len(groups) < 2:
        return [ok("secrets", f"the same on {label(ranks)}") for ranks in groups]
    told = "; ".join(f"one on {label(ranks)}" for ranks in groups)
    text = f"{len(groups)} secrets: {told}; making a group raises an error"
    fix = "copy one file of MCAST_SECRET_FILE to all hosts"
    return [fail("secrets", text, fix, ranks=groups)]


def hosts(facts: Facts) -> list[Finding]:
    groups = by_value(facts, lambda f: f["host_id"])
    names = [f"{facts[ranks[0]]['host']} ({label(ranks)})" for ranks in groups.values()]
    found = [ok("hosts", f"{len(groups)}: {', '.join(names)}", hosts=groups)]
    owners: dict[str, list[int]] = defaultdict(list)
    for ranks in groups.values():
        interface = facts[ranks[0]]["interface"]
        if interface and not interface["loopback"]:
            owners[interface["address"]].append(ranks[0])
    for address, ranks in owners.items():
        if len(ranks) > 1:
            text = f"hosts of {label(ranks)} have the same address {address}"
            fix = 'export MCAST_SOCKET_IFNAME="=DEV"  (an interface whose address is unique)'
            found.append(fail("hosts", text, fix, address=address, ranks=ranks))
    return found


def prefer_interface(facts: Facts) -> str:
    """Returns an export line for the interface name that most ranks on a real network use."""
    names = [f["interface"]["name"] for f in facts.values() if f["interface"]]
    local = {f["loopback"]["name"] for f in facts.values() if f["loopback"]}
    outside = [name for name in names if name not in local]
    name = max(sorted(set(outside)), key=outside.count, default="DEV")
    return f'export MCAST_SOCKET_IFNAME="={name}"'


def networks(facts: Facts) -> list[Finding]:
    """Interfaces, subnets and MTU; only between several hosts."""
    without = [rank for rank, f in facts.items() if f["interface"] is None]
    having = {rank: f for rank, f in facts.items() if f["interface"] is not None}
    found = []
    if without:
        text = f"{label(without)}: no usable interface"
        fix = "see the row interface used of these ranks"
        found.append(fail("subnets", text, fix, ranks=without))
    if len(by_value(having, lambda f: f["host_id"])) < 2:
        return found or [ok("subnets", "one host: ranks use loopback")]
    local = [rank for rank, f in having.items() if f["interface"]["loopback"]]
    if local:
        text = f"{label(local)} would use loopback, but the job has several hosts"
        fix = f"{prefer_interface(facts)}  (the interface that leads to the other hosts)"
        found.append(fail("subnets", text, fix, ranks=local))
    outside = {rank: f for rank, f in having.items() if rank not in local}
    subnets = by_value(outside, lambda f: f["interface"]["subnet"])
    ttl = max((int(f["values"].get("ttl", 1)) for f in outside.values()), default=1)
    if len(subnets) > 1:
        text = f"several: {describe(subnets)}"
        fix = f"{prefer_interface(facts)}  (the interface on the common network)"
        if ttl <= 1:
            text += "; multicast with MCAST_TTL=1 does not pass routers"
            fix += ", or MCAST_TTL=8 with multicast routing"
        found.append(warn("subnets", text, fix, subnets=subnets))
    elif subnets:
        found.append(ok("subnets", f"all in {next(iter(subnets))}", subnets=subnets))
    mtus = by_value(outside, lambda f: str(f["interface"]["mtu"]))
    if len(mtus) > 1:
        names = {r: f["interface"]["name"] for r, f in outside.items()}
        least = min(mtus, key=int)
        largest = max(mtus, key=int)
        text = f"differs: {describe(mtus)}; all use {least}"
        fix = link(
            f"ip link set {names[mtus[least][0]]} mtu {largest}",
            f"on {label(mtus[least])}, only if the network carries it: otherwise all programs lose "
            "larger packets",
        )
        found.append(warn("mtu", text, fix, mtu=mtus))
    elif mtus:
        found.append(ok("mtu", f"{next(iter(mtus))} on all", mtu=mtus))
    return found


def of_others(facts: Facts, own: int = 0) -> list[Finding]:
    """Returns the findings that are not ok on ranks other than `own`; equal rows of several ranks
    become one."""
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for rank in sorted(set(facts) - {own}):
        for row in facts[rank]["findings"]:
            if row["verdict"] != "ok":
                key = (row["check"], row["finding"], row["verdict"], row["fix"])
                groups[key].append(rank)
    found = []
    for (check, text, verdict, fix), ranks in groups.items():
        judge = {"warn": warn, "fail": fail}[verdict]
        found.append(judge(f"[{spans(ranks)}] {check}", text, fix, ranks=ranks))
    return found


def compare(facts: Facts, size: int) -> list[Finding]:
    return [
        presence(facts, size),
        *versions(facts),
        *settings(facts),
        *secrets(facts),
        *hosts(facts),
        *networks(facts),
    ]
