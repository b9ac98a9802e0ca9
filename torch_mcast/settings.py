"""`torch-mcast settings`: prints the extension's table of settings, as text or as Markdown."""

from __future__ import annotations

import argparse
from typing import Any

_UNITS = {"U": "", "D": " ms", "S": ""}


def _number(value: float, kind: str) -> str:
    if kind == "D":
        return f"{value:g}"
    whole = int(value)
    for shift, suffix in ((30, "G"), (20, "M"), (10, "K")):
        if whole >= 1 << shift and whole % (1 << shift) == 0:
            return f"{whole >> shift}{suffix}"
    return str(whole)


def _range(row: dict[str, Any]) -> str:
    if row["kind"] == "S":
        return "text"
    unit = _UNITS[row["kind"]]
    return f"{_number(row['min'], row['kind'])} .. {_number(row['max'], row['kind'])}{unit}"


def _default(row: dict[str, Any]) -> str:
    if row["kind"] == "S":
        return row["default"] or "(empty)"
    return _number(float(row["default"]), row["kind"]) + _UNITS[row["kind"]]


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| option | environment | default | range | same on all ranks | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        agreed = "yes" if row["agreed"] else ""
        text = row["help"].replace("|", "\\|")
        lines.append(
            f"| `{row['name']}` | `{row['env']}` | {_default(row)} | {_range(row)} | {agreed} | {text} |"
        )
    return "\n".join(lines)


def plain(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        agreed = "; must be the same on all ranks" if row["agreed"] else ""
        lines.append(f"{row['name']}  ({row['env']})")
        lines.append(f"    {row['help']}")
        lines.append(f"    default {_default(row)}; {_range(row)}{agreed}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-mcast settings", description=__doc__)
    parser.add_argument(
        "--markdown", action="store_true", help="print a Markdown table, for the docs"
    )
    parsed = parser.parse_args(arguments)

    from torch_mcast._load import extension

    rows = extension().settings()
    print(markdown(rows) if parsed.markdown else plain(rows))
    return 0
