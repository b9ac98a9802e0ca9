"""Turns the ranks' reports into result rows: statistics, bandwidths, bounds, ratios."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from torch_mcast.bench import formulas
from torch_mcast.bench.samples import paired_ratio, percentile, slowest
from torch_mcast.lab.units import format_size

GB = 1e9


def finish(
    raw: dict[str, Any], world: int, hosts: int, rate: int | None, mtu: int
) -> dict[str, Any]:
    """Builds a result row. Times in seconds, bandwidths in bytes/s, bytes per operation.

    rate: bits/s of the slowest link (None: no bound). hosts: machines (or namespaces).
    """
    op, size = raw["op"], raw["size"]
    row: dict[str, Any] = {
        "op": op,
        "size": size,
        "wanted": raw["wanted"],
        "backend": raw["backend"],
        "world": world,
        "hosts": hosts,
        "right": raw["right"],
        "supported": "rank_times" in raw,
    }
    if raw.get("partial"):
        row["partial"] = True
    row["model_send_bytes"] = formulas.multicast_send_bytes(op, size, hosts)
    row["bound_s"] = formulas.bound_s(op, size, hosts, rate, mtu)
    if not row["supported"]:
        return row
    times = slowest(raw["rank_times"])
    cpus = [per_rank for per_rank in zip(*raw["rank_cpu"], strict=True) if None not in per_rank]
    cpu = median([sum(per_rank) for per_rank in cpus]) if cpus else None
    by_engine = [sum(per_rank) for per_rank in zip(*raw.get("engine_cpu", []), strict=True)]
    engine_cpu = median(by_engine) if by_engine and any(by_engine) else None
    factor = formulas.bus_factor(op, world)
    middle = median(times)
    row.update(
        times_s=times,
        n=len(times),
        inner=raw["inner"],
        median_s=middle,
        min_s=min(times),
        p90_s=percentile(times, 90),
        algbw=size / middle if size and factor is not None else None,
        busbw=size / middle * factor if size and factor is not None else None,
        bound_percent=100 * row["bound_s"] / middle if row["bound_s"] else None,
        cpu_s=cpu,
        cpu_s_per_gb=(cpu + (engine_cpu or 0)) / (size / GB) if size and cpu is not None else None,
        engine_cpu_s=engine_cpu,
        # Share of one CPU, the mean of the ranks.
        rank_cpu_share=cpu / world / middle if cpu is not None and middle else None,
        path=raw.get("path"),
        algorithm=raw.get("algorithm"),
        repairs=raw.get("repairs"),
        nic=raw.get("nic"),
        lab=raw.get("lab"),
    )
    if raw.get("rank_silent"):
        silent = slowest(raw["rank_silent"])
        row["silent_s"] = median(silent)
        # Time that communication adds to a step, compared with a step that moves no data.
        row["exposed_times_s"] = [t - c for t, c in zip(times, silent, strict=True)]
        row["exposed_s"] = median(row["exposed_times_s"])
    return row


def partial(
    raws: list[dict[str, Any]], world: int, hosts: int, rate: int | None, mtu: int
) -> list[dict[str, Any]]:
    """Builds the rows of a case that was not measured to its end."""
    return [finish(raw, world, hosts, rate, mtu) for raw in raws if raw["rank_times"][0]]


def partial_notes(rows: list[dict[str, Any]]) -> list[str]:
    cases = dict.fromkeys(_name(row) for row in rows if row.get("partial"))
    return [
        f"{name}: stopped during this case, so its results were not checked and its bytes not counted"
        for name in cases
    ]


def engine_notes(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a line per case in which host engines had work, with the CPU time of ranks and engines."""
    notes = []
    for key in dict.fromkeys((row["op"], row["size"]) for row in rows if row.get("engine_cpu_s")):
        found = [row for row in rows if (row["op"], row["size"]) == key and row.get("cpu_s")]
        parts = [
            f"{row['backend']}: a rank {100 * row['rank_cpu_share']:.1f} % of a CPU, "
            f"all ranks {row['cpu_s'] * 1e3:.1f} ms, engines {(row['engine_cpu_s'] or 0) * 1e3:.1f} ms"
            for row in found
        ]
        notes.append(f"{key[0]} of {key[1]} bytes, CPU per operation: {'; '.join(parts)}")
    return notes


def exposed_notes(rows: list[dict[str, Any]], peer: str | None) -> list[str]:
    """Returns a line per case that is a training step: how much of each backend's communication is
    exposed, and its ratio to the peer's, repetition by repetition."""
    cases: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if "exposed_s" in row:
            cases.setdefault((row["op"], row["size"]), []).append(row)
    notes = []
    for (op, size), found in cases.items():
        other = next((row for row in found if row["backend"] == peer), None)
        parts = []
        for row in found:
            text = f"{row['backend']} {row['exposed_s'] * 1e3:.0f} ms"
            if other and other is not row:
                pairs = zip(row["exposed_times_s"], other["exposed_times_s"], strict=True)
                text += f" ({median([a / b for a, b in pairs]):.2f} of {peer}'s)"
            parts.append(text)
        notes.append(
            f"{op} of {size} bytes: without communication {found[0]['silent_s'] * 1e3:.0f} ms; "
            f"communication exposed (step time minus that): {', '.join(parts)}"
        )
    return notes


def _name(row: dict[str, Any]) -> str:
    return f"{row['op']} of {format_size(row['wanted'])}" if row["size"] else row["op"]


def path_text(rows: list[dict[str, Any]]) -> str:
    """Returns how mcast's data travelled, for the title, if the backend's name does not tell: ";
    mcast by multicast"."""
    paths = dict.fromkeys(
        (row["backend"], row["path"])
        for row in rows
        if row.get("path") and row["path"] not in row["backend"]
    )
    return "".join(f"; {name} by {path}" for name, path in paths)


def few_notes(rows: list[dict[str, Any]], wanted: int) -> list[str]:
    """Names the cases that were repeated less often than requested."""
    whole = [row for row in rows if not row.get("partial")]
    fewer = {_name(row): row["n"] for row in whole if row.get("n", wanted) < wanted}
    if not fewer:
        return []
    cases = ", ".join(f"{name} {n}" for name, n in fewer.items())
    return [
        f"cases with fewer than {wanted} timings because they take long (--case-seconds): {cases}"
    ]


def above_bound_notes(
    rows: list[dict[str, Any]], rate: int | None, mtu: int, burst: int
) -> list[str]:
    """Explains why a row may take less than the bound: that many bytes pass a shaper at full speed."""
    notes = []
    for row in rows:
        if rate is None or row.get("bound_percent") is None or row["bound_percent"] <= 100:
            continue
        least = formulas.bound_s(row["op"], row["size"], row["hosts"], rate, mtu, burst) or 0.0
        text = f"{_name(row)}, {row['backend']}: {row['bound_percent']:.0f} % of the bound, "
        if row["median_s"] >= least:
            text += f"since {format_size(burst)} pass a shaper at full speed (--burst)"
        else:
            text += f"and the shaper's burst of {format_size(burst)} does not explain it: please investigate"
        notes.append(text)
    return notes


def rival_notes(rows: list[dict[str, Any]], peer: str | None) -> list[str]:
    """If Open MPI is faster than the peer of the ratios, compares the first backend with it, too."""
    notes = []
    by_case: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["supported"]:
            by_case.setdefault((row["op"], row["size"]), []).append(row)
    for found in by_case.values():
        rivals = [row for row in found if row["backend"].startswith("openmpi")]
        other = next((row for row in found if row["backend"] == peer), None)
        if not rivals or other is None or found[0] in (*rivals, other):
            continue
        best = min(rivals, key=lambda row: row["median_s"])
        if best["median_s"] >= other["median_s"]:
            continue
        mine = paired_ratio(found[0]["times_s"], best["times_s"])
        notes.append(
            f"{_name(best)}: {best['backend']} is {other['median_s'] / best['median_s']:.2f} x as fast as "
            f"{peer}; {found[0]['backend']} is {mine.median:.2f} ({mine.low:.2f}-{mine.high:.2f}) x as "
            "fast as that"
        )
    return notes


def add_ratios(rows: list[dict[str, Any]], peer: str) -> None:
    """Adds to each row how many times faster than the peer it is, repetition by repetition."""
    peers = {
        (row["op"], row["size"]): row for row in rows if row["backend"] == peer and row["supported"]
    }
    for row in rows:
        other = peers.get((row["op"], row["size"]))
        if other and other is not row and row["supported"]:
            row["ratio"] = {"peer": peer, **asdict(paired_ratio(row["times_s"], other["times_s"]))}


def is_peer(backend: str) -> bool:
    """Returns whether the backend is not mcast but makes the same guarantees."""
    return backend.partition(":")[0] not in ("mcast", "blaster")


def add_best_ratios(rows: list[dict[str, Any]]) -> None:
    """Adds to each row how many times faster it is than the fastest peer of its case, if two or
    more were measured."""
    by_case: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        if row["supported"]:
            by_case.setdefault((row["op"], row["size"]), []).append(row)
    for found in by_case.values():
        peers = [row for row in found if is_peer(row["backend"])]
        if len(peers) < 2:
            continue
        best = min(peers, key=lambda row: row["median_s"])
        for row in found:
            ratio = paired_ratio(row["times_s"], best["times_s"])
            row["ratio_best"] = {"peer": best["backend"], **asdict(ratio)}


def lab_traffic(moved: Any, idle: Any, workers: list[str]) -> dict[str, Any]:
    """Returns the wire bytes of one operation from differences of the lab's Counters: `moved` with
    the operation, and `idle` of the counting alone, which is subtracted."""
    sent = [max(0, moved.sent(host) - idle.sent(host)) for host in workers]
    received = [max(0, moved.received(host) - idle.received(host)) for host in workers]
    return {
        "sent_mean": sum(sent) / len(sent),
        "sent_max": max(sent),
        "received_max": max(received),
        "fabric": max(0, moved.fabric_bytes - idle.fabric_bytes),
        "queue_drops": sum(
            port.queue_drops for group in (moved.nics, moved.ports) for port in group.values()
        ),
    }


def host_bytes(row: dict[str, Any]) -> tuple[float | None, float | None]:
    """Returns (mean sent, largest received) bytes per host and operation; None if they were not
    counted. They are bytes as framed from the lab's counters, else from the NICs' own."""
    if row.get("lab"):
        return row["lab"]["sent_mean"], row["lab"]["received_max"]
    if row.get("nic"):
        moved = list(row["nic"].values())
        return sum(sent for sent, _ in moved) / len(moved), max(got for _, got in moved)
    return None, None
