"""Reads the status of services of this host: one JSON document from a unix socket. Also has the
commands that show it."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMEOUT_S = 5.0


class NoAnswer(Exception):
    """No service responds; the text lists the places that were tried."""


class Untrusted(PermissionError):
    """The process that listens at the socket may pose as the service; the text names its user."""


def _user_text(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def _uid_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        if user.isascii() and user.isdigit():
            return int(user)
    raise ValueError(f'this host has no user "{user}"')


def _check_listener(connection: socket.socket, path: Path, user: str) -> None:
    """Checks the listener's user, as TrustedUser of csrc/core/base/local_socket.h does."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")
    )
    _, uid, _ = struct.unpack("iII", credentials)
    if user:
        trusted, expected = {_uid_of(user)}, _user_text(_uid_of(user))
    else:
        owner = path.parent.stat().st_uid
        trusted = {0, os.geteuid(), owner}
        expected = f"root, {_user_text(os.geteuid())} as this process, or {_user_text(owner)}, who "
        expected += "owns the folder"
    if uid not in trusted:
        raise Untrusted(
            f"{_user_text(uid)} listens there, expected {expected}; --user sets another user"
        )


def ask(path: Path, user: str = "") -> Any:
    """Returns the status that the service at this socket reports. Raises OSError or ValueError if
    there is none. `user` is the name or number of the user whose process may listen there; ""
    allows root, this user, and the folder's owner."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(path))
        _check_listener(connection, path, user)
        pieces = []
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return json.loads(b"".join(pieces))


def status_command(
    service: str,
    arguments: list[str],
    socket_option: dict[str, Any],
    read: Callable[[Any, str], dict[str, Any]],
    show: Callable[[dict[str, Any]], None],
    user: str = "",
) -> int:
    """Runs `torch-mcast SERVICE status`. `socket_option` holds argparse's keywords for --socket.
    `read` gets its value and that of --user, which is `user` by default. `show` prints the status
    as text."""
    command = f"torch-mcast {service} status"
    parser = argparse.ArgumentParser(
        prog=command,
        description=f"Shows the status of the {service} of this host. Exit code 1: no {service} responds.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON document instead of tables"
    )
    parser.add_argument("--socket", metavar="PATH", **socket_option)
    parser.add_argument(
        "--user",
        default=user,
        help=f"user that must run the {service}: a name or a number [root, this user or the folder's owner]",
    )
    parsed = parser.parse_args(arguments)
    try:
        status = read(parsed.socket, parsed.user)
    except NoAnswer as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        print(json.dumps(status, indent=1))
    else:
        show(status)
    return 0
