"""`torch-mcast secret new [FILE]`: a secret for a job, 32 random bytes in hex. `torch-mcast secret
aggregator SECRET [FILE]`: what aggregators get of it, with which they cannot be ranks."""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path

BYTES = 32
LEAST = 16


def new() -> str:
    return secrets.token_hex(BYTES)


def _bytes(text: str) -> bytes:
    """Of a secret as ranks read it (csrc/core/crypto/secret.h). ValueError."""
    text = text.strip()
    try:
        found = bytes.fromhex(text)
    except ValueError:
        text = text.rstrip("=").translate(str.maketrans("-_", "+/"))
        try:
            found = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            raise ValueError("it is neither hex nor base64") from None
    if len(found) < LEAST:
        raise ValueError(f"it has {len(found)} bytes; at least {LEAST} are needed")
    return found


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _root(secret: str) -> bytes:
    return _mac(b"torch-mcast secret 1", _bytes(secret))


def role(secret: str, number: int = 1, name: str = "aggregators") -> str:
    """What follows from a secret for the daemons of a role (docs/security.md, role_key). ValueError."""
    return _mac(_root(secret), b"mcast1 role\0" + bytes([number]) + name.encode() + b"\1").hex()


def public_id(secret: str) -> str:
    """What tells one secret from another and may be shown (docs/security.md, secret_id). ValueError."""
    return _mac(_root(secret), b"mcast1 id\0\1")[:4].hex()


def write(path: str, text: str = "") -> None:
    """A new file that only its owner can read. FileExistsError: a secret that is in use stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write((text or new()) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-mcast secret", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("new", help="print a secret, or write it to a file with mode 0600")
    make.add_argument("file", nargs="?", help="for MCAST_SECRET_FILE; must not exist yet")
    derive = commands.add_parser(
        "aggregator", help="print what aggregators get of a secret, or write it"
    )
    derive.add_argument("secret", help="file of the ranks' secret")
    derive.add_argument(
        "file", nargs="?", help="for MCAST_SECRET_FILE of aggregators; must not exist yet"
    )
    parsed = parser.parse_args(arguments)
    try:
        text = new() if parsed.command == "new" else role(Path(parsed.secret).read_text())
        if parsed.file is None:
            print(text)
        else:
            write(parsed.file, text)
    except OSError as error:
        print(f"torch-mcast secret: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"torch-mcast secret: {parsed.secret}: {error}", file=sys.stderr)
        return 1
    return 0
