"""Differences between the ranks of a job that use GPUs. Facts in, findings out."""

from __future__ import annotations

from typing import Any

from torch_mcast.doctor.findings import Finding, ok, warn
from torch_mcast.doctor.job.compare import Facts, by_value, describe
from torch_mcast.doctor.job.ranks import label


def _row(facts: dict[str, Any], check: str) -> dict[str, Any]:
    """Data of a rank's own row, {} if it has none."""
    return next((row["data"] for row in facts["findings"] if row["check"] == check), {})


def _apart(facts: Facts) -> list[Finding]:
    """Ranks of one machine that count as several hosts, since each has a network of its own."""
    machines = by_value(facts, lambda f: str(f["host_id"]).partition("/")[0])
    found = []
    for boot, ranks in machines.items():
        hosts = by_value({rank: facts[rank] for rank in ranks}, lambda f: f["host_id"])
        if boot != "unknown" and len(hosts) > 1:
            found.append(
                warn(
                    "gpus",
                    f"{label(ranks)} are on one machine in {len(hosts)} network namespaces: each is a host "
                    "of its own, and their GPUs exchange over the network",
                    "run the ranks of a machine in one container or pod, or with its network: docker run "
                    "--network host ...",
                    ranks=ranks,
                )
            )
    return found


def gpus(facts: Facts) -> list[Finding]:
    """No row where no rank has a usable GPU."""
    having = {rank: f for rank, f in facts.items() if _row(f, "gpus").get("devices")}
    if not having:
        return []
    found = _apart(having)
    without = sorted(set(facts) - set(having))
    if without:
        text = f"without a usable GPU: {label(without)}; with one: {label(having)}"
        found.append(warn("gpus", text, "see the row gpus of these ranks", ranks=without))
    versions = by_value(having, lambda f: _row(f, "nccl").get("nccl") or "none")
    if len(versions) > 1:
        text = f"NCCL differs: {describe(versions)}; a group that uses it may fail or hang"
        found.append(warn("nccl", text, "install the same torch on all hosts", versions=versions))
    hosts = by_value(having, lambda f: f["host_id"])
    counts = {facts[ranks[0]]["host"]: len(ranks) for ranks in hosts.values()}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{count} on {name}" for name, count in counts.items())
        text = (
            f"ranks with GPUs differ in number: {text}; large broadcasts and all-gathers are slower"
        )
        found.append(warn("gpus", text, "start as many ranks on each host", ranks=counts))
    each = next(iter(counts.values()))
    return found or [
        ok("gpus", f"{len(having)} ranks with GPUs, {each} on each of {len(hosts)} host(s)")
    ]
