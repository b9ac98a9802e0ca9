"""Finds the aggregator's program."""

from __future__ import annotations

from pathlib import Path

from torch_mcast import _program


def find_program() -> Path:
    """Returns the path of the program, which the build puts next to the extension. Raises
    FileNotFoundError if there is none."""
    return _program.find_program("mcast-aggregator")
