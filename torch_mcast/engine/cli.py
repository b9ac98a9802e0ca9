"""`torch-mcast engine run` and `drain` execute the engine's program; `status` queries an engine; `install`
prints the files that run an engine on a host."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from torch_mcast._program import become
from torch_mcast._status_socket import status_command
from torch_mcast.engine.status import DEFAULT_SOCKET, read

USAGE = """usage: torch-mcast engine run [OPTIONS]
       torch-mcast engine drain [--socket PATH] [--limit SECONDS] [--user USER]
       torch-mcast engine status [--json] [--socket PATH] [--user USER]
       torch-mcast engine install [OPTIONS]

Run `torch-mcast engine run --help` for the options."""


def _show(status: dict[str, Any]) -> None:
    print(f"engine {status['version']}, process {status['pid']}, at {status['socket']}")
    if status["draining"]:
        print(
            f"draining: no new clients or groups; {status['drain_left_s']:.0f} s of "
            f"{status['drain_limit_s']:.0f} s are left"
        )
    # Older engines do not report this.
    guards = status.get("security", {"modes": ["off"], "secret": False})
    known = "" if guards["secret"] else ": it has no secret"
    print(f"security: {', '.join(guards['modes'])}{known}")
    rows = [("process", "user", "in flight", "shared memory", "copies", "security", "groups")] + [
        (
            str(client["pid"]),
            str(client["uid"]),
            str(client["in_flight"]),
            f"{client['arena_bytes'] >> 20} MiB",
            f"{client['copies']}, {client['bounce_bytes'] >> 20} MiB",
            ", ".join(client.get("security", [])),
            ", ".join(client["groups"]),
        )
        for client in status["clients"]
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        print("  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=False)), row[6]]))


def _status(arguments: list[str]) -> int:
    option = {"default": DEFAULT_SOCKET, "help": "socket of the engine [%(default)s]"}
    user = os.environ.get("MCAST_ENGINE_USER", "").strip()
    return status_command("engine", arguments, option, read, _show, user)


def _install(arguments: list[str]) -> int:
    from torch_mcast.engine.install import main as install

    return install(arguments)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": lambda arguments: become("engine", arguments),
    "drain": lambda arguments: become("engine", ["drain", *arguments]),
    "status": _status,
    "install": _install,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs `torch-mcast engine ARGUMENTS`; does not return if that executes the program itself."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command = _COMMANDS.get(arguments[0]) if arguments else None
    if command is not None:
        return command(arguments[1:])
    asked = arguments[:1] in (["-h"], ["--help"])
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2
