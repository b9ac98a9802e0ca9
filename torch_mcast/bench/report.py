"""The table for people (rich): five columns, or all of them."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from torch_mcast.bench import rows
from torch_mcast.lab.units import format_size

_WIDE = (
    "n",
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
)


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


def table(document: dict[str, Any], wide: bool = False) -> Table:
    """Builds the table, with one line per operation, size and backend."""
    peer = document.get("peer")
    out = Table(title=document["title"], caption=document["caption"], header_style="bold")
    out.add_column("operation", no_wrap=True)
    # Includes the algorithm that a program chose, which may be long, so only this column shrinks,
    # down to a limit.
    out.add_column("backend", min_width=16)
    bound = any(row.get("bound_percent") for row in document["rows"])
    names = [*_WIDE] if wide else ["median (n)", "% of bound" if bound else "GB/s"]
    best = wide and any(row.get("ratio_best") for row in document["rows"])
    for name in [*names, *([f"x {peer}"] if peer else []), *(["x best peer"] if best else [])]:
        out.add_column(name, justify="right", no_wrap=True)
    last = None
    for row in document["rows"]:
        if not row["supported"]:  # an external program that lacks the operation
            continue
        case = (row["op"], row["size"])
        if last and last[0] != row["op"]:
            out.add_section()
        size = f" {format_size(row['wanted'])}" if row["size"] else ""
        backend = _label(row) + ("" if row["right"] else " [red]WRONG RESULT[/red]")
        figures = _all_figures(row) if wide else _figures(row, bound)
        ratio = [_ratio(row)] if peer else []
        if best:
            ratio.append(_best_ratio(row))
        out.add_row(f"{row['op']}{size}" if case != last else "", backend, *figures, *ratio)
        last = case
    return out


def _label(row: dict[str, Any]) -> str:
    """Returns the backend, with the path that mcast took or the algorithm that a program chose."""
    path = row.get("path") or row.get("algorithm")
    return f"{row['backend']} ({path})" if path and path not in row["backend"] else row["backend"]


def _figures(row: dict[str, Any], bound: bool) -> list[str]:
    share = row["bound_percent"] if bound else row["algbw"] and row["algbw"] / 1e9
    return [
        f"{time_text(row['median_s'])} ({row['n']})",
        _optional(share, ".0f" if bound else ".3g"),
    ]


def _all_figures(row: dict[str, Any]) -> list[str]:
    sent, received = rows.host_bytes(row)
    model = row["model_send_bytes"]
    gb = [None if row[key] is None else row[key] / 1e9 for key in ("algbw", "busbw")]
    return [
        str(row["n"]) if row["inner"] == 1 else f"{row['n']} x {row['inner']}",
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
    return _quartiles(row["ratio"]) if row.get("ratio") else "1"


def _best_ratio(row: dict[str, Any]) -> str:
    ratio = row.get("ratio_best")
    if not ratio:
        return "-"
    if ratio["peer"] == row["backend"]:
        return "1"
    return f"{_quartiles(ratio)} {ratio['peer']}"


def _quartiles(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def show(document: dict[str, Any], width: int | None = None, wide: bool = False) -> None:
    """Prints the table; at its full width if the output is not a terminal."""
    console = Console(emoji=False)  # else ":ring:" of "mcast:ring:" would be an emoji
    if not console.is_terminal or width:
        console = Console(emoji=False, width=width or (300 if wide else 200))
    console.print(table(document, wide))
    for note in document["notes"]:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
