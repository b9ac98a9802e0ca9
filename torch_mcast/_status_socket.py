"""Services of this host tell how they are: one JSON document from a unix socket, and the commands that
ask for it."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMEOUT_S = 5.0


class NoAnswer(Exception):
    """Nobody answers; the text says where it was tried."""


def ask(path: Path) -> Any:
    """What the service at this socket tells of itself; OSError or ValueError where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(path))
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return json.loads(b"".join(pieces))


def status_command(
    service: str,
    arguments: list[str],
    socket_option: dict[str, Any],
    read: Callable[[Any], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
) -> int:
    """`torch-mcast SERVICE status`: `socket_option` are argparse's keywords of --socket, whose value `read`
    gets; `show` is for people."""
    command = f"torch-mcast {service} status"
    parser = argparse.ArgumentParser(
        prog=command,
        description=f"Shows the status of the {service} of this host. Exit code 1: no {service} responds.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON document instead of tables"
    )
    parser.add_argument("--socket", metavar="PATH", **socket_option)
    parsed = parser.parse_args(arguments)
    try:
        status = read(parsed.socket)
    except NoAnswer as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(status, indent=1))
    else:
        show(status)
    return 0
