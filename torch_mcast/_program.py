"""Programs that the build puts next to the extension."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_program(name: str) -> Path:
    """Returns the path of this program. Raises FileNotFoundError if there is none."""
    path = Path(__file__).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this installation of torch-mcast was built without it; run make build, or "
            "pip install . in its sources"
        )
    return path


def become(service: str, arguments: list[str]) -> int:
    """Replaces this process by the program of `torch-mcast SERVICE`. Returns 1 if there is no such
    program."""
    try:
        path = find_program(f"mcast-{service}")
    except FileNotFoundError as error:
        print(f"torch-mcast {service}: {error}", file=sys.stderr)
        return 1
    os.execv(path, [str(path), *arguments])
