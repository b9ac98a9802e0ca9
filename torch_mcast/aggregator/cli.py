"""`torch-mcast aggregator` executes the aggregator's program; `torch-mcast aggregator status` queries one."""

from __future__ import annotations

import sys
from typing import Any

from torch_mcast._program import become
from torch_mcast._status_socket import status_command
from torch_mcast.aggregator.status import read


def _show(status: dict[str, Any]) -> None:
    from torch_mcast.aggregator.table import show

    show(status)


def main(arguments: list[str] | None = None) -> int:
    """Runs `torch-mcast aggregator ARGUMENTS`; does not return if that executes the program itself."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["status"]:
        return status_command(
            "aggregator",
            arguments[1:],
            {"help": "socket of the aggregator, its option --status"},
            read,
            _show,
        )
    return become("aggregator", arguments)
