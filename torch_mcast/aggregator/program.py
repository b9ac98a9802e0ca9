"""Where the aggregator's program is."""

from __future__ import annotations

from pathlib import Path

from torch_mcast import _program


def find_program() -> Path:
    """The program, which the build puts beside the extension; FileNotFoundError without one."""
    return _program.find_program("mcast-aggregator")
