"""A network namespace of its own for each process that runs tests, so that workers side by side
share neither ports nor multicast groups of loopback.

A namespace belongs to a thread: the main thread enters it before it starts a process or another
thread, and they inherit it. It contains the links of labs; names of namespaces (`ip netns`) are
still the machine's."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914  # linux/sockios.h
_IFF_UP = 1  # linux/if.h

_NIC = "eth0"
_TEST_NET = "192.0.2.1/24"  # RFC 5737, for a machine that has only loopback addresses

_libc = ctypes.CDLL(None, use_errno=True)
_machine: int | None = None  # descriptor of the machine's namespace, once this process has left it


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _bring_up(name: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh22x", name.encode(), 0)
        _, flags = struct.unpack("16sh22x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))
        fcntl.ioctl(
            any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", name.encode(), flags | _IFF_UP)
        )


def _ip(*arguments: str, lines: Iterable[str] = ()) -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    tool = shutil.which("ip", path=path) or "ip"
    done = subprocess.run(
        [tool, *arguments], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return done.stdout


def _addresses() -> list[str]:
    """Returns the IPv4 addresses of this machine with their prefixes, without those of loopback."""
    return [
        f"{address['local']}/{address['prefixlen']}"
        for link in json.loads(_ip("-j", "-4", "addr", "show", "up") or "[]")
        for address in link.get("addr_info", [])
        if link.get("ifname") != "lo"
    ]


def _add_nic(addresses: list[str]) -> None:
    """Adds an interface with these addresses: the name of this machine often resolves to such an
    address, and the doctor looks for an interface that may reach other hosts. It has no routes, so
    that a query to a name server, which cannot be reached from here, fails at once."""
    _ip(
        "-batch", "-",
        lines=[
            f"link add {_NIC} type veth peer name {_NIC}_peer",
            f"link set {_NIC}_peer up",
            f"link set {_NIC} up",
            *(f"addr add {address} dev {_NIC} noprefixroute" for address in addresses),
        ],
    )  # fmt: skip


def unshare() -> None:
    """Moves the calling thread into a new namespace, where all interfaces are down. Raises OSError."""
    _check(_libc.unshare(_CLONE_NEWNET), "unshare")


def join(path: str) -> None:
    """Moves the calling thread into the namespace of this file. OSError."""
    with open(path) as file:
        _check(_libc.setns(file.fileno(), _CLONE_NEWNET), f"setns {path}")


def enter() -> bool:
    """Moves the calling thread into a new namespace, with loopback and an interface that has the
    machine's addresses. Returns false if that is impossible (no root, no `ip`): the machine's
    network is used then."""
    global _machine
    try:
        addresses = _addresses() or [_TEST_NET]
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        unshare()
    except (OSError, subprocess.CalledProcessError):
        return False
    _machine = before
    _bring_up("lo")
    _add_nic(addresses)
    return True


@contextlib.contextmanager
def of_the_machine() -> Iterator[None]:
    """In this block the calling thread, and the processes it starts, use the machine's network: for
    tests that need another host, such as a package index."""
    if _machine is None:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(_machine, _CLONE_NEWNET), "setns")
        try:
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWNET), "setns")
    finally:
        os.close(own)
