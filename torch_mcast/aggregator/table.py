"""Shows the status as text."""

from __future__ import annotations

from typing import Any

from torch_mcast.aggregator.units import amount, duration


def _waits(job: dict[str, Any]) -> str:
    """Describes the oldest operation and the ranks it waits for, on the station that has waited longest."""
    oldest = [s["oldest"] for s in job["stations"] if "oldest" in s]
    if not oldest:
        return ""
    worst = max(oldest, key=lambda o: o["ms"])
    ranks = ",".join(map(str, worst["waits_for_ranks"])) or "nobody"
    return f"op {worst['operation']}: rank {ranks}, {worst['ms']:.0f} ms"


def job_rows(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(job["job"]),
            job["name"],
            f"{job['ranks']} on {job['hosts']}",
            f"{amount(job['quota_used'])}B of {amount(job['quota'])}B",
            f"{amount(8 * job['rate_in'], 1000)}bit/s",
            f"{amount(8 * job['rate_out'], 1000)}bit/s",
            str(job["operations"]),
            _waits(job),
        )
        for job in status["jobs"]
    ]


JOB_HEADER = ("job", "group", "ranks", "memory", "in", "out", "operations", "waits for")


def station_rows(status: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(job["job"]),
            station["address"],
            f"{station['connected']} of {job['ranks']}",
            f"{100 * station['cpu_share']:.0f} %",
            f"{amount(station['folded_bytes'])}B",
            f"{100 * station['staged_share']:.0f} %",
            str(station["blocks"]),
            str(station["declined"]),
            str(station["repeated"] + station["stale"] + station["malformed"]),
        )
        for job in status["jobs"]
        for station in job["stations"]
    ]


STATION_HEADER = (
    *("job", "station", "ranks", "CPU", "folded", "staged"),
    *("blocks", "declined", "odd frames"),
)


def summary(status: dict[str, Any]) -> list[str]:
    limits = status["limits"]
    lines = [
        f"torch-mcast aggregator {status['version']} at {status['address']}, "
        f"up {duration(status['uptime_s'])}" + (", draining" if status["draining"] else ""),
        f"{len(status['jobs'])} of {limits['jobs']} jobs, {amount(status['quota_used'])}B of "
        f"{amount(limits['quota'])}B reserved, {status['accepted']} jobs since it began",
    ]
    refused = [f"{count} {code}" for code, count in status["refused"].items() if count]
    if refused:
        lines.append("refused: " + ", ".join(refused))
    lines += [
        f"job {job['job']} ({job['name']}) ended {duration(job['ago_s'])} ago: {job['why']}"
        for job in status["ended"][-5:]
    ]
    return lines


def show(status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for line in summary(status):
        console.print(line, markup=False, highlight=False)
    for header, rows in (
        (JOB_HEADER, job_rows(status)),
        (STATION_HEADER, station_rows(status)),
    ):
        if rows:
            table = Table(*header)
            for row in rows:
                table.add_row(*(cell.replace("[", r"\[") for cell in row))
            console.print(table)
