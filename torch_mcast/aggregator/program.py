"""Where the aggregator's program is."""

from __future__ import annotations

from pathlib import Path


def find_program() -> Path:
    """The program, which the build puts beside the extension; FileNotFoundError without one."""
    path = Path(__file__).parents[1] / "mcast-aggregator"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this installation of torch-mcast was built without it"
        )
    return path
