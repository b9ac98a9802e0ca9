"""`torch-mcast aggregator`: becomes the aggregator's program; `torch-mcast aggregator status` asks one."""

from __future__ import annotations

import argparse
import json
import os
import sys

from torch_mcast.aggregator.program import find_program
from torch_mcast.aggregator.status import NoAggregator, read


def _status(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torch-mcast aggregator status",
        description="What the aggregator of this host does. Exit code 1: none answers.",
    )
    parser.add_argument("--json", action="store_true", help="a JSON document instead of tables")
    parser.add_argument("--socket", metavar="PATH", help="as given to it with --status")
    parsed = parser.parse_args(arguments)
    try:
        status = read(parsed.socket)
    except NoAggregator as error:
        print(f"torch-mcast aggregator status: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(status, indent=1))
        return 0
    from torch_mcast.aggregator.table import show

    show(status)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs `torch-mcast aggregator ARGUMENTS`; does not return where that is the program itself."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["status"]:
        return _status(arguments[1:])
    try:
        path = find_program()
    except FileNotFoundError as error:
        print(f"torch-mcast aggregator: {error}", file=sys.stderr)
        return 1
    os.execv(path, [str(path), *arguments])
