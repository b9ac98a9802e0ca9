"""`torch-mcast engine run`: becomes the engine's program; `torch-mcast engine status` asks one."""

from __future__ import annotations

import sys
from typing import Any

from torch_mcast._program import become
from torch_mcast._status_socket import status_command
from torch_mcast.engine.status import DEFAULT_SOCKET, read

USAGE = """usage: torch-mcast engine run [OPTIONS]
       torch-mcast engine status [--json] [--socket PATH]

torch-mcast engine run --help lists the options."""


def _show(status: dict[str, Any]) -> None:
    print(f"engine {status['version']}, process {status['pid']}, at {status['socket']}")
    rows = [("process", "user", "in flight", "shared memory", "groups")] + [
        (
            str(client["pid"]),
            str(client["uid"]),
            str(client["in_flight"]),
            f"{client['arena_bytes'] >> 20} MiB",
            ", ".join(client["groups"]),
        )
        for client in status["clients"]
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=False)), row[4]]))


def main(arguments: list[str] | None = None) -> int:
    """Runs `torch-mcast engine ARGUMENTS`; does not return where that is the program itself."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["status"]:
        option = {"default": DEFAULT_SOCKET, "help": "as given to it"}
        return status_command("engine", arguments[1:], option, read, _show)
    if arguments[:1] != ["run"]:
        print(USAGE, file=sys.stdout if arguments[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    return become("engine", arguments[1:])
