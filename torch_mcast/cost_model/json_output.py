"""The option --json of the estimates, with the meaning it has in `bench` and `simulate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_STDOUT = Path("-")  # --json without a file


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_STDOUT,
        metavar="FILE",
        help="print JSON instead of the table; with FILE, write it there as well as the table",
    )


def write(target: Path | None, document: dict[str, Any]) -> bool:
    """Writes the document if --json asks for it. Returns true if it was printed, so that no table
    is. Raises ValueError if the file cannot be written."""
    if target is None:
        return False
    text = json.dumps(document, indent=1)
    if target == _STDOUT:
        print(text)
        return True
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    except OSError as error:
        raise ValueError(f"--json {target}: {error.strerror}") from error
    return False
