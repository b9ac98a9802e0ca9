"""Shows results of the simulator for people (rich) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_mcast.bench.report import bytes_text, time_text
from torch_mcast.lab.units import format_rate, format_size
from torch_mcast.simulate import helper

# Algorithms that may serve as the ring of a ratio: the first one in the results is used.
_RINGS = ("ring", "ring-schedule", "chain")
CAPTION = "link-bound model, cost of the host not included"


def bound_s(result: dict[str, Any]) -> float:
    """Returns the least seconds for all operations of a result (bound_of() in
    csrc/sim/world/experiment.h)."""
    return float(result["ops"][0]["bound"]) / 1e9


def option(result: dict[str, Any], name: str, default: str = "") -> str:
    """Returns an option's value in the experiment's text."""
    words = dict(word.split("=", 1) for word in result["spec"].split())
    return words.get(name, default)


def payload(result: dict[str, Any], kind: str = "", switches: bool = False) -> int:
    """Returns the bytes of data, without headers, that crossed links: each crossing counts. `kind`:
    only links whose class begins so; `switches`: only bytes that switches sent."""
    framing, total = result["framing"], 0
    for name, links in result["links"].items():
        if not name.startswith(kind) or (switches and name.startswith("host-") and "up" in name):
            continue
        for traffic, overhead in (("data", "datagram"), ("ring", "stream"), ("reduce", "stream")):
            amount = links["by"].get(traffic, {"bytes": 0, "packets": 0})
            total += amount["bytes"] - amount["packets"] * framing[f"{overhead}_overhead"]
    return total


def wire(result: dict[str, Any], kind: str = "") -> int:
    """Returns the bytes on links whose class begins so, including control and acknowledgements."""
    return sum(links["bytes"] for name, links in result["links"].items() if name.startswith(kind))


def document(results: Sequence[dict[str, Any]], command: str) -> dict[str, Any]:
    """Returns the document for --json: the results, each with the ratio of its bytes to the ring's
    for as many hosts."""
    rings: dict[int, int] = {}
    for name in reversed(_RINGS):
        for row in results:
            if row.get("algorithm") == name:
                rings[row["hosts"]] = row["fabric_bytes"]
    rows = []
    for result in results:
        row = dict(result)
        if "error" not in row and row["hosts"] in rings:
            row["ring_ratio"] = round(row["fabric_bytes"] / rings[row["hosts"]], 4)
        rows.append(row)
    return {"schema": helper.SCHEMA, "command": command, "caption": CAPTION, "rows": rows}


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def title(row: dict[str, Any]) -> str:
    """Returns the parameters that all rows have in common."""
    ops = "+".join(op["op"] for op in row["ops"])
    block = option(row, "block")
    size = f"{block} of each rank" if block else format_size(row["size"])
    return (
        f"{ops} {size}, {option(row, 'topology', 'star')}, "
        f"{format_rate(round(row['rate']))}, mtu {row['mtu']}, "
        f"chunk {row['framing']['datagram_payload']}, wake {row['wake'] / 1e3:g} us, "
        f"seed {row['seed']}"
    )


def inner_kinds(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns kinds of links between switches: "leaf-spine", ..."""
    names = [name.split()[0] for row in rows for name in row["links"]]
    return [kind for kind in dict.fromkeys(names) if not kind.startswith("host-")]


def algorithm_text(row: dict[str, Any]) -> str:
    """Returns the name with the number of aggregators, and the rate of their links if it differs."""
    served_by = row.get("aggregators")
    if not served_by:
        return str(row["algorithm"])
    rate = served_by["rate"]
    fast = f" at {format_rate(round(rate))}" if rate != row["rate"] else ""
    return f"{row['algorithm']} {served_by['count']}{fast}"


def _aggregator_cells(row: dict[str, Any], columns: Sequence[str]) -> list[str]:
    if columns[-1] != "NIC down/aggregator":
        return []
    amounts = row.get("aggregators")
    return [bytes_text(amounts[way]) if amounts else "-" for way in ("up", "down")]


def table(document: dict[str, Any]) -> Table:
    """Returns a table with one line per number of hosts and algorithm."""
    rows = [row for row in document["rows"] if "error" not in row]
    kinds = inner_kinds(rows)
    out = Table(
        title=title(rows[0]) if rows else "nothing was run",
        caption=document["caption"],
        header_style="bold",
    )
    out.add_column("hosts", justify="right")
    out.add_column("algorithm", no_wrap=True)
    columns = ["time", "bound (of it)", "NIC up/host", "NIC down/host", *kinds]
    if any("aggregators" in row for row in rows):
        columns += ["NIC up/aggregator", "NIC down/aggregator"]
    for name in [*columns, "fabric", "x ring", "hottest link (use)"]:
        out.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in rows:
        if last not in (None, row["hosts"]):
            out.add_section()
        bound = bound_s(row)
        taken = row["time"] / 1e9
        hosts = f"{row['hosts']} x {row['ranks']}" if row["ranks"] > 1 else str(row["hosts"])
        out.add_row(
            hosts if row["hosts"] != last else "",
            algorithm_text(row),
            time_text(taken),
            f"{time_text(bound)} ({100 * bound / taken:.0f} %)",
            bytes_text(row["host_up"]),
            bytes_text(row["host_down"]),
            *(bytes_text(wire(row, kind)) for kind in kinds),
            *_aggregator_cells(row, columns),
            bytes_text(row["fabric_bytes"]),
            f"{row['ring_ratio']:.2f}" if "ring_ratio" in row else "-",
            f"{row['hottest']['link']} ({100 * row['hottest']['use']:.0f} %)",
        )
        last = row["hosts"]
    return out


def _by_most(what: str, most: dict[str, Any], text: str) -> str:
    return f"{what} (rank {most['rank']}: {text})"


def _sent(name: str, row: dict[str, Any]) -> str:
    """Returns what one class sent: the mean of the ranks, and the largest of them."""
    of = row["ranks_sent"].get(name)
    if of is None:
        return f"{name} 0 B"

    def amount(sent: dict[str, Any]) -> str:
        bytes_ = bytes_text(sent["bytes"])
        return f"{bytes_} in {sent['frames']:.0f} frames" if sent["frames"] else bytes_

    return _by_most(f"{name} {amount(of['mean'])}", of["most"], amount(of["most"]))


def _peaks(row: dict[str, Any]) -> str:
    peaks = row["peaks"]
    parts = [f"port {bytes_text(peaks['port'])} ({peaks['port_link'] or 'none'})"]
    for name in ("inbox", "staging") if row["state"]["peak"] else ():
        peak = peaks[name]
        text = f"{name} {bytes_text(peak['mean'])}"
        parts.append(_by_most(text, peak, bytes_text(peak["most"])) if peak["most"] else text)
    return "peaks: " + ", ".join(parts)


def _states(state: dict[str, Any]) -> str:
    """Returns idle and peak state, of the mean rank and of some by their place in the control tree."""
    parts = [f"{bytes_text(state['idle'])} idle, {bytes_text(state['peak'])} at most"]
    for place in ("top", "inner", "leaf"):
        if of := state.get(place):
            grown = f"{bytes_text(of['idle'])} to {bytes_text(of['peak'])}"
            parts.append(f"{place} (rank {of['rank']}) {grown}")
    return "state per rank: " + "; ".join(parts)


def _guarded(cost: dict[str, Any]) -> str:
    """Returns the traffic that guarding a group adds."""

    def part(what: str, unit: str) -> str:
        count = cost[what]
        each = f" of {cost[f'{unit}_bytes'] / count:.0f} B" if count else ""
        return f"{bytes_text(cost[f'{unit}_bytes'])} in {count} {what}{each}"

    more = [part("datagrams", "datagram"), part("records", "record")]
    return f"guarded: {' and '.join(more)} more; handshakes {bytes_text(cost['handshake_bytes'])}"


def _run(row: dict[str, Any]) -> str:
    parts = []
    if served_by := row.get("aggregators"):
        parts.append(
            f"aggregators fold {100 * served_by['part']:.0f} %"
            if served_by["part"]
            else f"aggregators fold nothing: {served_by['plan']}"
        )
    drops = sum(links["drops"] + links["lost"] for links in row["links"].values())
    if drops:
        parts.append(f"{drops} packets lost")
    parts.append(f"trace {row['trace_hash']}")
    if "wall" in row:
        parts.append(f"computed in {time_text(row['wall'])}")
    return ", ".join(parts)


# Kinds of traffic that ranks send besides data; the last ones are named only if they occur.
_ALWAYS, _SOMETIMES = ("repair", "control"), ("position", "probe", "ack")


def details(row: dict[str, Any]) -> list[str]:
    """Returns further facts, one per line."""
    engine = bool(row["state"]["peak"])
    names = [name for name in _SOMETIMES if name in row["ranks_sent"]]
    sent = "; ".join(_sent(name, row) for name in [*(_ALWAYS if engine else ()), *names])
    count = row["frames"]
    mean = count["all"] / (row["hosts"] * row["ranks"])
    frames = _by_most(f"{mean:.0f} frames in all", count, str(count["most"]))
    name = f"{row['hosts']} {algorithm_text(row)}"
    lines = [f"{name}: a mean rank (the busiest) sent {sent}; {frames}", _peaks(row)]
    if engine:
        lines.append(_states(row["state"]))
    if cost := row.get("security"):
        lines.append(_guarded(cost))
    return [*lines, _run(row)]


def show(document: dict[str, Any], width: int | None = None) -> None:
    """Prints table and details; at full width if the output is not a terminal."""
    console = Console()
    if not console.is_terminal or width:
        console = Console(width=width or 200)
    rows = [row for row in document["rows"] if "error" not in row]
    if rows:
        console.print(table(document))
    for row in rows:
        for i, line in enumerate(details(row)):
            console.print("  " * (i > 0) + line, highlight=False, style="dim")
