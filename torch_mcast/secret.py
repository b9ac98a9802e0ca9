"""`torch-mcast secret new [FILE]`: a secret for a job, 32 random bytes in hex."""

from __future__ import annotations

import argparse
import os
import secrets
import sys

BYTES = 32


def new() -> str:
    return secrets.token_hex(BYTES)


def write(path: str) -> None:
    """A new file that only its owner can read. FileExistsError: a secret that is in use stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w") as file:
        file.write(new() + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-mcast secret", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("new", help="print a secret, or write it to a file with mode 0600")
    make.add_argument("file", nargs="?", help="for MCAST_SECRET_FILE; must not exist yet")
    parsed = parser.parse_args(arguments)
    if parsed.file is None:
        print(new())
        return 0
    try:
        write(parsed.file)
    except OSError as error:
        print(f"torch-mcast secret: {parsed.file}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
