"""Programs that the build puts beside the extension."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_program(name: str) -> Path:
    """The program of this name; FileNotFoundError without one."""
    path = Path(__file__).parent / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this installation of torch-mcast was built without it: make build, or "
            "pip install . in its sources"
        )
    return path


def become(service: str, arguments: list[str]) -> int:
    """Replaces this process by the program of `torch-mcast SERVICE`. Returns 1 where there is none."""
    try:
        path = find_program(f"mcast-{service}")
    except FileNotFoundError as error:
        print(f"torch-mcast {service}: {error}", file=sys.stderr)
        return 1
    os.execv(path, [str(path), *arguments])
