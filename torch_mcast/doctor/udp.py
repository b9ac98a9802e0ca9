"""Sockets set up as the library's are (csrc/core/transport/udp), in plain Python."""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterator

from torch_mcast.doctor.netif import Interface, family_of

MAX_PAYLOAD = 65507
UDP_SEGMENT, UDP_GRO = 103, 104
_IP_MULTICAST_ALL, _IP_MTU_DISCOVER, _PMTUDISC_PROBE = 49, 10, 3
_IPV6_MULTICAST_ALL, _IPV6_MTU_DISCOVER = 29, 23
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def random_group(ipv6: bool) -> str:
    """An address of the scope that the engine uses, from another part of it."""
    b, c = secrets.token_bytes(2)
    return f"ff15::6d63:6173:74ff:{b:x}{c:02x}" if ipv6 else f"239.255.{b}.{c}"


def overhead(interface: Interface) -> int:
    """IP and UDP headers."""
    return 48 if interface.ipv6 else 28


def payload_limit(interface: Interface, max_mtu: int) -> int:
    mtu = min(interface.mtu, max_mtu)
    return min(max(mtu - overhead(interface), 0), MAX_PAYLOAD) if mtu else 0


def _mreqn(group: str, interface: Interface) -> bytes:
    if interface.ipv6:
        return struct.pack("16sI", socket.inet_pton(socket.AF_INET6, group), interface.index)
    address = socket.inet_aton(interface.address)
    return struct.pack("4s4si", socket.inet_aton(group), address, interface.index)


def open_sender(interface: Interface, ttl: int = 1) -> socket.socket:
    s = socket.socket(family_of(interface.address), socket.SOCK_DGRAM)
    try:
        if interface.ipv6:
            s.bind((interface.address, 0))
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface.index)
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, ttl)
            s.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            mreqn = _mreqn("0.0.0.0", interface)
            s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, mreqn)
            s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            s.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        s.setblocking(False)
    except OSError:
        s.close()
        raise
    return s


def open_receiver(interface: Interface, group: str, port: int = 0) -> socket.socket:
    """Returns a socket bound to the group (port 0: a free one) and joined on the interface."""
    s = socket.socket(family_of(group), socket.SOCK_DGRAM)
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if interface.ipv6:
            s.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        else:
            s.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        s.bind((group, port))
        mreqn = _mreqn(group, interface)
        if interface.ipv6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, mreqn)
        else:
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, mreqn)
        s.setblocking(False)
    except OSError:
        s.close()
        raise
    return s


def listen(address: str, ports: tuple[int, int] | None, backlog: int = 16) -> socket.socket:
    """Listens on one of these ports, both ends included; None: any. Raises OSError if none is free."""
    first, last = ports or (0, 0)
    count = last - first + 1
    start = secrets.randbelow(count)
    for i in range(count):
        try:
            at = (address, first + (start + i) % count)
            return socket.create_server(at, family=family_of(address), backlog=backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"all ports from {first} to {last} are taken")


def set_buffer(s: socket.socket, receive: bool, size: int) -> int:
    """Sets the size as the library does. Returns the size that the kernel reports (it counts double)."""
    force = _SO_RCVBUFFORCE if receive else _SO_SNDBUFFORCE
    plain = socket.SO_RCVBUF if receive else socket.SO_SNDBUF
    size = min(size, (2**31 - 1) // 2)
    try:
        s.setsockopt(socket.SOL_SOCKET, force, size)
    except OSError:
        with contextlib.suppress(OSError):  # the size that is read back is the result
            s.setsockopt(socket.SOL_SOCKET, plain, size)
    return s.getsockopt(socket.SOL_SOCKET, plain)


def send_segments(s: socket.socket, payload: bytes, segment: int, to: tuple[str, int]) -> int:
    """Sends one super-packet, which the kernel splits into datagrams of `segment` bytes."""
    control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", segment))]
    return s.sendmsg([payload], control, 0, to)


def receive(s: socket.socket, deadline: float) -> Iterator[tuple[bytes, int]]:
    """Yields (payload, segment size or 0) of the datagrams that arrive before the deadline
    (time.monotonic)."""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([s], [], [], left)[0]:
            return
        try:
            payload, control, _, _ = s.recvmsg(65536, socket.CMSG_SPACE(4))
        except BlockingIOError:  # a bad checksum: selected, but nothing to read
            continue
        segment = 0
        for level, kind, value in control:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO and len(value) >= 4:
                segment = struct.unpack("i", value[:4])[0]
        yield payload, segment
