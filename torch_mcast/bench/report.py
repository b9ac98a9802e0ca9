"""The table for people (rich) and the JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_mcast.bench import rows
from torch_mcast.bench.formulas import OPS
from torch_mcast.lab.units import format_size


def machine() -> dict[str, Any]:
    """What a reader must know of the machine."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def time_text(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor:
            return (
                f"{seconds / factor:.3g} {unit}"
                if seconds < 100 * factor
                else (f"{seconds / factor:.0f} {unit}")
            )
    return f"{seconds * 1e6:.0f} us"


def bytes_text(count: float | None) -> str:
    if count is None:
        return "-"
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count:.0f} B"


def _optional(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def table(document: dict[str, Any]) -> Table:
    """One line per operation, size and backend."""
    peer = document.get("peer")
    out = Table(title=document["title"], caption=document["caption"], header_style="bold")
    for name in ("op", "size", "backend"):
        out.add_column(name, no_wrap=True)
    names = [
        "median",
        "min",
        "p90",
        "algbw GB/s",
        "busbw GB/s",
        "% of bound",
        "sent/host",
        "x model",
        "recv/host",
        "fabric",
        "CPU s/GB",
        "repairs",
    ]
    for name in [*names, *([f"x {peer}"] if peer else [])]:
        out.add_column(name, justify="right")
    last = None
    for row in document["rows"]:
        if not row["supported"]:  # an external program that has no such operation
            continue
        case = (row["op"], row["size"])
        if last and last[0] != row["op"]:
            out.add_section()
        head = [OPS[row["op"]].name, format_size(row["wanted"]) if row["size"] else "-"]
        cells = (head if case != last else ["", ""]) + [_label(row)]
        last = case
        if not row["right"]:
            cells[-1] += " [red]WRONG RESULT[/red]"
        out.add_row(*cells, *_figures(row), *([_ratio(row)] if peer else []))
    return out


def _label(row: dict[str, Any]) -> str:
    """The backend, with the path that mcast took where the name does not say it."""
    path = row.get("path")
    return f"{row['backend']} ({path})" if path and path not in row["backend"] else row["backend"]


def _figures(row: dict[str, Any]) -> list[str]:
    sent, received = rows.host_bytes(row)
    model = row["model_send_bytes"]
    gb = [None if row[key] is None else row[key] / 1e9 for key in ("algbw", "busbw")]
    return [
        time_text(row["median_s"]),
        time_text(row["min_s"]),
        time_text(row["p90_s"]),
        _optional(gb[0], ".3g"),
        _optional(gb[1], ".3g"),
        _optional(row["bound_percent"], ".0f"),
        bytes_text(sent),
        _optional(sent / model if sent is not None and model else None, ".2f"),
        bytes_text(received),
        bytes_text((row.get("lab") or {}).get("fabric")),
        _optional(row["cpu_s_per_gb"], ".2f"),
        _optional(row["repairs"], ".3g"),
    ]


def _ratio(row: dict[str, Any]) -> str:
    ratio = row.get("ratio")
    if not ratio:
        return "1"
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def show(document: dict[str, Any], width: int | None = None) -> None:
    """Prints the table; at its full width where the output is no terminal."""
    console = Console()
    if not console.is_terminal or width:
        console = Console(width=width or 200)
    console.print(table(document))
    for note in document["notes"]:
        console.print(f"note: {note}", highlight=False)
