"""Services of this host tell how they are: one JSON document from a unix socket, and the commands that
ask for it."""

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
    """Nobody answers; the text says where it was tried."""


class Untrusted(PermissionError):
    """A process listens at the socket that may pose as the service; the text says whose."""


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
    """As TrustedUser of csrc/core/host/local_socket.h."""
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
            f"{_user_text(uid)} listens there, expected {expected}; --user names another"
        )


def ask(path: Path, user: str = "") -> Any:
    """What the service at this socket tells of itself; OSError or ValueError where none does. `user`: whose
    process may listen there, a name or a number; "": root's, this user's, or that of the folder's owner."""
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
    """`torch-mcast SERVICE status`: `socket_option` are argparse's keywords of --socket, whose value `read`
    gets, with that of --user, by default `user`; `show` is for people."""
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
        help=f"whose {service} may answer, a name or a number (root, this user, the folder's owner)",
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
