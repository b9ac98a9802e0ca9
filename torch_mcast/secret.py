"""`torch-mcast secret new [FILE]` creates a secret for a job, 32 random bytes. `torch-mcast secret aggregator
SECRET [FILE]` derives the secret for aggregators, with which they cannot act as ranks.

The text of a secret is mcast-secret-, 64 hex digits, a dash and the CRC-32C of the bytes in 8 hex digits.
Other texts are refused, because people would choose secrets that can be guessed."""

from __future__ import annotations

import argparse
import hashlib
import hmac
import os
import secrets
import sys
from pathlib import Path

BYTES = 32
PREFIX = "mcast-secret-"


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def text_of(secret: bytes) -> str:
    """Returns the text that ranks read (csrc/core/crypto/secret.h)."""
    assert len(secret) == BYTES
    return f"{PREFIX}{secret.hex()}-{_crc32c(secret):08x}"


def new() -> str:
    return text_of(secrets.token_bytes(BYTES))


def _bytes(text: str) -> bytes:
    """Returns the bytes of a secret from its text (csrc/core/crypto/secret.h). Raises ValueError."""
    text = text.strip()
    if not text.startswith(PREFIX):
        raise ValueError(
            f"it does not begin with {PREFIX}: torch-mcast did not make it, so others might guess it"
        )
    try:
        digits, check = text[len(PREFIX) :].split("-")
        found = bytes.fromhex(digits)
        good = len(found) == BYTES and int(check, 16) == _crc32c(found)
    except ValueError:
        good = False
    if not good:
        raise ValueError("its text is damaged: its length or its checksum is wrong")
    return found


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _root(secret: str) -> bytes:
    return _mac(b"torch-mcast secret 1", _bytes(secret))


def role(secret: str, number: int = 1, name: str = "aggregators") -> str:
    """Derives the secret of the daemons of a role (docs/security.md, role_key). Raises ValueError."""
    return text_of(_mac(_root(secret), b"mcast1 role\0" + bytes([number]) + name.encode() + b"\1"))


def check(secret: str, run: str) -> str:
    """Returns a value that is equal on all ranks of a run that have the same secret, and differs
    between runs. Raises ValueError."""
    return _mac(_root(secret), b"mcast1 doctor\0" + run.encode() + b"\1")[:8].hex()


def write(path: str, text: str = "") -> None:
    """Creates a file that only its owner can read. Raises FileExistsError, so that a secret in use
    is kept."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write((text or new()) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-mcast secret", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("new", help="print a secret, or write it to a file with mode 0600")
    make.add_argument(
        "file", nargs="?", metavar="FILE", help="new file for MCAST_SECRET_FILE [print]"
    )
    derive = commands.add_parser(
        "aggregator",
        help="print the aggregators' secret that is derived from the ranks' secret, or write it to a file",
    )
    derive.add_argument("secret", metavar="SECRET", help="file with the ranks' secret")
    derive.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="new file for MCAST_SECRET_FILE of aggregators [print]",
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
