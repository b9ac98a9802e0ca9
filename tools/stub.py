"""Writes the settings in torch_mcast/_C.pyi from the extension's table. `test_types.py` compares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

STUB = Path(__file__).parents[1] / "torch_mcast" / "_C.pyi"
# The parts between these lines are generated, with the indentation of the first.
PARTS = {"keywords": "# Settings as keywords:", "attributes": "# Settings as attributes:"}
END = "# End of settings."
# Kind in the table: the type of an attribute when read, and when assigned.
TYPES = {"U": ("int", "_Count"), "D": ("float", "_Milliseconds"), "S": ("str", "str | None")}


def lines_of(part: str, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    if part == "keywords":
        return [f"{row['name']}: {TYPES[row['kind']][1]} = None," for row in rows]
    return [f"{row['name']}: _Setting[{', '.join(TYPES[row['kind']])}]" for row in rows]


def made(text: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the stub with the settings of these rows. Raises ValueError if it lacks a part."""
    rows = list(rows)
    for part, begin in PARTS.items():
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(END)
        if not found or not closed:
            raise ValueError(f"{STUB.name} has no lines {begin!r} and {END!r}")
        indent = head.rpartition("\n")[2]
        body = "".join(f"\n{indent}{line}" for line in lines_of(part, rows))
        text = f"{head}{begin}{body}\n{indent}{END}{tail}"
    return text


def main() -> None:
    from torch_mcast._load import extension

    STUB.write_text(made(STUB.read_text(), extension().settings()))


if __name__ == "__main__":
    main()
