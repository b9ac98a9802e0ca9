"""Addresses of a job on this host."""

from __future__ import annotations

import socket
import struct
from pathlib import Path


def _hex_address(text: str) -> tuple[str, int]:
    address, port = text.split(":")
    return socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)


def sockets(table: str, listening: bool) -> list[tuple[str, int]]:
    """Returns the local addresses in /proc/net/udp or /proc/net/tcp of this host, by port: of the
    groups' lanes, that of all-gathers comes first."""
    rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    found = {_hex_address(row[1]) for row in rows if not listening or row[3] == "0A"}
    return sorted(found, key=lambda place: (place[1], place[0]))


def targets() -> dict:
    """Returns the addresses that an attacker finds by listening (IGMP) and by a port scan."""
    return {
        "groups": [a for a in sockets("udp", False) if a[0].startswith("239.")],
        "streams": [a for a in sockets("tcp", True) if a[0].startswith("10.")],
    }


def memberships() -> set[str]:
    """Returns the multicast groups that this host has joined."""
    words = Path("/proc/net/igmp").read_text().split()
    hexadecimal = [
        word for word in words if len(word) == 8 and set(word) <= set("0123456789ABCDEF")
    ]
    return {socket.inet_ntoa(struct.pack("<I", int(word, 16))) for word in hexadecimal}
