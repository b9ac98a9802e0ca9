"""The network interfaces of this machine, and which one the library uses. The listing works without
the extension; the choice is the library's (csrc/core/transport/udp/netif.h), which gets the list.

The order matters, so interfaces are listed by getifaddrs(3), which Python lacks, through ctypes."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import socket
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

IFF_UP, IFF_LOOPBACK, IFF_MULTICAST = 0x1, 0x8, 0x1000
_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_GLINKSETTINGS = 0x4C  # linux/ethtool.h
_RTF_UP, _RTF_REJECT = 0x1, 0x200


@dataclass
class Interface:
    name: str
    index: int = 0
    address: str = ""  # first IPv4 address, else the first of IPv6 beyond the link; "": none
    prefix: int = 32  # bits of its netmask
    mtu: int = 0  # bytes of IP packet
    up: bool = False
    loopback: bool = False
    multicast: bool = False
    default_route: bool = False
    store_route: bool = False  # it leads to MASTER_ADDR
    speed: int = 0  # Mbit/s, 0 if it is not known

    @property
    def usable(self) -> bool:
        return self.up and self.address != ""

    @property
    def ipv6(self) -> bool:
        return ":" in self.address

    @property
    def subnet(self) -> str:
        if not self.address:
            return ""
        return str(ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Route:
    interface: str
    destination: int  # host byte order
    mask: int
    metric: int
    reject: bool


class _SockAddr(ctypes.Structure):
    _fields_ = [
        ("family", ctypes.c_ushort),
        ("port", ctypes.c_ushort),
        ("ipv4", ctypes.c_ubyte * 4),  # of IPv6: flow information, and the address behind it
    ]

    def address(self, family: int) -> bytes:
        """Of a row of this family (masks may leave their own open)."""
        if family == socket.AF_INET:
            return bytes(self.ipv4)
        return ctypes.string_at(ctypes.addressof(self) + 8, 16)


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.POINTER(_SockAddr)),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def parse_routes(text: str) -> list[Route]:
    """Returns the rows of /proc/net/route whose route is up. Malformed rows are left out."""
    routes = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        try:
            name, destination, _, flags, _, _, metric, mask = fields[:8]
            bits = int(flags, 16)
            # Addresses are printed as the little-endian reading of network order.
            to, of = (int.from_bytes(bytes.fromhex(x)[::-1], "big") for x in (destination, mask))
            if bits & _RTF_UP:
                routes.append(Route(name, to, of, int(metric), bool(bits & _RTF_REJECT)))
        except ValueError:
            continue
    return routes


def read_routes(path: str = "/proc/net/route") -> list[Route]:
    try:
        return parse_routes(Path(path).read_text())
    except OSError:
        return []


def default_route_interface(routes: list[Route]) -> str:
    best: Route | None = None
    for route in routes:
        if route.destination == 0 and route.mask == 0:
            best = route if best is None or route.metric < best.metric else best
    return best.interface if best else ""


def _mtu(probe: socket.socket, name: str) -> int:
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFMTU, struct.pack("16s240x", name.encode()[:15]))
    except OSError:
        return 0
    return max(struct.unpack_from("i", answer, 16)[0], 0)


def _speed(probe: socket.socket, name: str) -> int:
    """Returns the speed as the library determines it: the kernel first reports how many words of
    link modes follow."""
    room = ctypes.create_string_buffer(48 + 3 * 127 * 4)
    request = struct.pack("16sP16x", name.encode()[:15], ctypes.addressof(room))
    words = 0
    try:
        for _ in range(2):
            struct.pack_into("I11xb", room, 0, _GLINKSETTINGS, words)
            fcntl.ioctl(probe, _SIOCETHTOOL, request)
            words = -int(struct.unpack_from("b", room, 15)[0])
    except (OSError, struct.error):
        return 0
    speed = struct.unpack_from("i", room, 4)[0]
    return max(int(speed), 0)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _note_address(interface: Interface, row: _IfAddrs) -> None:
    """As the library prefers them: IPv4, else the first of IPv6 that is valid beyond its link."""
    family = row.address.contents.family if row.address else 0
    if family not in (socket.AF_INET, socket.AF_INET6):
        return
    address = ipaddress.ip_address(row.address.contents.address(family))
    better = not interface.address or (interface.ipv6 and address.version == 4)
    if not better or address.is_unspecified or (address.version == 6 and address.is_link_local):
        return
    interface.address = str(address)
    interface.prefix = address.max_prefixlen
    if row.netmask:
        mask = int.from_bytes(row.netmask.contents.address(family), "big")
        interface.prefix = mask.bit_count()


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def list_interfaces(routes: list[Route] | None = None) -> list[Interface]:
    """Returns all interfaces of this network namespace, in the system's order. Raises OSError if
    the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    default = default_route_interface(read_routes() if routes is None else routes)
    found: dict[str, Interface] = {}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            entry = head
            while entry:
                row = entry.contents
                name = row.name.decode(errors="replace")
                interface = found.get(name)
                if interface is None:
                    interface = found[name] = Interface(
                        name=name,
                        index=_index(name),
                        mtu=_mtu(probe, name),
                        up=bool(row.flags & IFF_UP),
                        loopback=bool(row.flags & IFF_LOOPBACK),
                        multicast=bool(row.flags & IFF_MULTICAST),
                        default_route=name == default,
                        speed=_speed(probe, name) if row.flags & IFF_UP else 0,
                    )
                _note_address(interface, row)
                entry = row.next
    finally:
        libc.freeifaddrs(head)
    return list(found.values())


def mark_store_route(interfaces: list[Interface], store: str) -> None:
    """Marks the interface whose address packets to the job's store would have. Connecting a UDP
    socket sends no packet."""
    try:
        family, kind, _, _, to = socket.getaddrinfo(store, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(to)
            source = probe.getsockname()[0]
    except OSError:
        return
    for interface in interfaces:
        interface.store_route = interface.address == source and not interface.loopback


def choose_interface(interfaces: list[Interface], text: str) -> tuple[Interface, str]:
    """Returns the interface that the library takes for this pattern, and the reason: the multicast
    lane's, and the first one of a stripe. The library itself decides: raises ImportError if it
    cannot be loaded, ValueError if there is no such interface."""
    from torch_mcast._load import extension

    names, why = extension().choose_interfaces(interfaces, text)
    return next(i for i in interfaces if i.name == names[0]), why


def named_interface(interfaces: list[Interface], text: str) -> tuple[Interface, str]:
    """Used if the library cannot be loaded: returns the usable interface that MCAST_SOCKET_IFNAME
    names, if it is the name of one. Raises ValueError if only the library can evaluate the pattern.
    """
    for interface in interfaces:
        if interface.usable and text.removeprefix("=") == interface.name:
            return interface, f'MCAST_SOCKET_IFNAME="{text}" names it'
    raise ValueError("not known: the library, which chooses the interface, cannot be loaded here")


def find_loopback(interfaces: list[Interface]) -> Interface | None:
    return next((i for i in interfaces if i.loopback and i.usable), None)
