"""Whoever waits for a lane has given up Python's lock: the lane may want it, to let go of a tensor, and
each would wait for the other.

Such a wait shows seldom (one run in fifty of eight ranks that ask for stats() after every operation), so
the sources are read."""

from __future__ import annotations

import re
from pathlib import Path

TORCH = Path(__file__).resolve().parents[2] / "csrc" / "torch"
# What asks lanes, or waits for them.
WAITS = re.compile(r"\w(?:->|\(\)\.)(?:stats|trace|close|give_up|shutdown)\(")
GIVES_UP = re.compile(r"WithoutGil \w+;|gil_scoped_release")
# Run where Python's lock is not held: on threads of Background, at exit, on what is no group.
ELSEWHERE = {
    ("fallback.cpp", "failure_of"),
}
FUNCTION = re.compile(r"^[\w:<>,&* ~]*?(\w+)\([^;]*$")


def functions(text: str) -> dict[str, list[str]]:
    """Lines of each function that begins in the first column, by its name and its line."""
    found: dict[str, list[str]] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (match := FUNCTION.match(line)) and not line.startswith((" ", "//", "#", "}")):
            name = f"{match.group(1)}:{number}"
        found.setdefault(name, []).append(line)
    return found


def offenders(file: str, text: str) -> list[str]:
    return [
        f"{file}: {name}"
        for name, lines in functions(text).items()
        if (file, name.split(":")[0]) not in ELSEWHERE
        for first in [next((i for i, line in enumerate(lines) if WAITS.search(line)), None)]
        if first is not None and not any(GIVES_UP.search(line) for line in lines[: first + 1])
    ]


def test_nobody_waits_for_a_lane_with_the_lock():
    found = [offenders(file.name, file.read_text()) for file in sorted(TORCH.glob("*.cpp"))]
    assert not [text for texts in found for text in texts]


def test_it_would_be_seen():
    held = "int f() {\n  return group->stats().size;\n}\n"
    given = "int f() {\n  const WithoutGil nogil;\n  return group->stats().size;\n}\n"
    after = "int f() {\n  use(group->stats());\n  const WithoutGil nogil;\n}\n"
    assert [offenders("a.cpp", text) for text in (held, given, after)] == [
        ["a.cpp: f:1"], [], ["a.cpp: f:1"]
    ]  # fmt: skip
