"""Programs that the build puts beside the extension."""

from __future__ import annotations

from pathlib import Path


def find_program(name: str) -> Path:
    """The program of this name; FileNotFoundError without one."""
    path = Path(__file__).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this installation of torch-mcast was built without it"
        )
    return path
