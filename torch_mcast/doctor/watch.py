"""`torch-mcast doctor watch`: shows which hosts join multicast groups in this network segment.

Reads IGMP membership reports (versions 1 to 3) on an interface, so it needs CAP_NET_RAW. On a switch with
IGMP snooping it needs a port that receives the reports: they go to the querier and to routers, not to
hosts. A host that joins a job's group without being one of its ranks can read all traffic that is not
sealed."""

from __future__ import annotations

import argparse
import ipaddress
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

_ETH_P_IP = 0x0800
_IGMP = 2
_V1_REPORT, _V2_REPORT, _V2_LEAVE, _V3_REPORT = 0x12, 0x16, 0x17, 0x22
# Modes of a version 3 record: INCLUDE lists mean "from these sources only"; an empty one leaves.
_MODE_IS_INCLUDE, _MODE_IS_EXCLUDE, _TO_INCLUDE, _TO_EXCLUDE, _ALLOW = 1, 2, 3, 4, 5
# Limit of the stored state: any host in the segment can report memberships endlessly, under any
# name.
_MOST_KNOWN = 4096
# linux/if_packet.h
_SOL_PACKET, _ADD_MEMBERSHIP, _ALL_MULTICAST = 263, 1, 2


@dataclass(frozen=True)
class Membership:
    source: str  # the reporting host
    group: str
    joined: bool  # False: left


def parse(packet: bytes) -> Iterator[Membership]:
    """Yields the memberships that an IP packet reports; none if it is not a report."""
    if len(packet) < 20 or packet[0] >> 4 != 4 or packet[9] != _IGMP:
        return
    header = (packet[0] & 15) * 4
    if header < 20:
        return
    source = socket.inet_ntoa(packet[12:16])
    igmp = packet[header:]
    if len(igmp) < 8:
        return
    kind = igmp[0]
    if kind in (_V1_REPORT, _V2_REPORT, _V2_LEAVE):
        yield Membership(source, socket.inet_ntoa(igmp[4:8]), kind != _V2_LEAVE)
    if kind != _V3_REPORT:
        return
    (records,) = struct.unpack_from("!H", igmp, 6)
    at = 8
    for _ in range(records):
        if len(igmp) < at + 8:
            return
        mode, auxiliary, sources = struct.unpack_from("!BBH", igmp, at)
        group = socket.inet_ntoa(igmp[at + 4 : at + 8])
        at += 8 + 4 * sources + 4 * auxiliary
        if mode in (_MODE_IS_EXCLUDE, _TO_EXCLUDE, _ALLOW):
            yield Membership(source, group, True)
        elif mode in (_MODE_IS_INCLUDE, _TO_INCLUDE):
            yield Membership(source, group, sources > 0)


class Watch:
    """Reports changes. `allowed`: networks of expected hosts; if empty, no host is a stranger."""

    def __init__(self, allowed: list[ipaddress.IPv4Network]) -> None:
        self._allowed = allowed
        self._known: dict[tuple[str, str], None] = {}  # oldest first
        self.strangers: set[str] = set()  # the first _MOST_KNOWN of them

    def note(self, change: Membership) -> str | None:
        """Returns a line, or None for known memberships and groups that no job uses (239.0.0.0/8)."""
        if not change.group.startswith("239."):
            return None
        key = (change.source, change.group)
        if change.joined == (key in self._known):
            return None
        if not change.joined:
            del self._known[key]
            return f"{change.source} has left {change.group}"
        if len(self._known) >= _MOST_KNOWN:  # a forgotten one is reported again
            del self._known[next(iter(self._known))]
        self._known[key] = None
        address = ipaddress.IPv4Address(change.source)
        if self._allowed and not any(address in network for network in self._allowed):
            if len(self.strangers) < _MOST_KNOWN:
                self.strangers.add(change.source)
            return (
                f"STRANGER {change.source} has joined {change.group}: it reads what is sent there"
            )
        return f"{change.source} has joined {change.group}"


def _open(interface: str) -> socket.socket:
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
    listener.bind((interface, _ETH_P_IP))
    index = socket.if_nametoindex(interface)
    request = struct.pack("iHH8s", index, _ALL_MULTICAST, 0, b"")
    listener.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
    return listener


def _networks(text: str) -> list[ipaddress.IPv4Network]:
    return [ipaddress.IPv4Network(part.strip()) for part in text.split(",") if part.strip()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-mcast doctor watch", description=__doc__)
    parser.add_argument(
        "interface", metavar="INTERFACE", help="interface to the job's hosts, such as eth0"
    )
    parser.add_argument(
        "--allow",
        default=os.environ.get("MCAST_ALLOW", ""),
        metavar="NETWORKS",
        help="networks of the job's hosts, such as 10.1.0.0/24,10.2.0.0/24 [MCAST_ALLOW]",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="stop after this time; exit code 1 if a stranger joined [no limit]",
    )
    parsed = parser.parse_args(arguments)
    try:
        watch = Watch(_networks(parsed.allow))
        listener = _open(parsed.interface)
    except PermissionError:
        print("torch-mcast doctor watch needs CAP_NET_RAW (root) to see IGMP", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"torch-mcast doctor watch: {error}", file=sys.stderr)
        return 2
    end = None if parsed.seconds is None else time.monotonic() + parsed.seconds
    with listener:
        while end is None or time.monotonic() < end:
            listener.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            try:
                packet = listener.recv(65536)
            except TimeoutError:
                break
            except KeyboardInterrupt:
                break
            for change in parse(packet):
                line = watch.note(change)
                if line:
                    print(line, flush=True)
    return 1 if watch.strangers else 0
