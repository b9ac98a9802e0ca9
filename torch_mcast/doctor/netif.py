"""Which network interface the library uses: the rules of csrc/core/transport/udp/netif.h, here also
with the reason. Enumeration asks the system; the choice is a pure function.

The same order as there matters, so interfaces are listed by getifaddrs(3), which Python does not
have, through ctypes."""

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
_SIOCGIFMTU = 0x8921
_RTF_UP, _RTF_REJECT = 0x1, 0x200
_BRIDGES = ("docker", "virbr", "br-", "cni", "lxc", "veth", "podman")


@dataclass
class Interface:
    name: str
    index: int = 0
    address: str = ""  # first IPv4 address, "" if there is none
    prefix: int = 32  # bits of its netmask
    mtu: int = 0  # bytes of IP packet
    up: bool = False
    loopback: bool = False
    multicast: bool = False
    default_route: bool = False

    @property
    def usable(self) -> bool:
        return self.up and self.address != ""

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
        ("ipv4", ctypes.c_ubyte * 4),
    ]


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
    """Rows of /proc/net/route whose route is up. Malformed rows are left out."""
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


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def list_interfaces(routes: list[Route] | None = None) -> list[Interface]:
    """All interfaces of this network namespace, in the system's order. OSError if it refuses."""
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
                    )
                if row.address and row.address.contents.family == socket.AF_INET:
                    text = socket.inet_ntoa(bytes(row.address.contents.ipv4))
                    if not interface.address and text != "0.0.0.0":
                        interface.address = text
                        if row.netmask:
                            mask = int.from_bytes(bytes(row.netmask.contents.ipv4), "big")
                            interface.prefix = mask.bit_count()
                entry = row.next
    finally:
        libc.freeifaddrs(head)
    return list(found.values())


@dataclass(frozen=True)
class Pattern:
    exclude: bool = False
    exact: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """ValueError for an empty name in the list, or a stripe ("eth0+eth1") that is not exact."""
        if not text:
            return cls()
        rest = text
        exclude = rest.startswith("^")
        rest = rest[exclude:]
        exact = rest.startswith("=")
        names = tuple(rest[exact:].split(","))
        problem = ""
        for entry in names:
            parts = entry.split("+")
            if len(parts) > 1 and (exclude or not exact):
                problem = "has a stripe that is not exact"
            elif len(set(parts)) < len(parts):
                problem = "has one name twice in a stripe"
            if "" in parts:
                problem = "has an empty name"
            if problem:
                raise ValueError(
                    f'interface pattern "{text}" {problem} (expected "eth,ib", "=eth0", '
                    '"=eth0+eth1", "^docker" or "^=eth1")'
                )
        return cls(exclude, exact, names)

    def match(self, name: str) -> int:
        """Position of the first entry that matches, or -1. Ignores `exclude`."""
        for i, wanted in enumerate(self.names):
            if name in wanted.split("+") if self.exact else name.startswith(wanted):
                return i
        return -1


def inventory(interfaces: list[Interface]) -> str:
    texts = []
    for i in interfaces:
        state = f" {i.address}" if i.address else ""
        state += "" if i.up else " (down)"
        state += " (no IPv4 address)" if i.up and not i.address else ""
        texts.append(i.name + state)
    return ", ".join(texts) or "none"


def _automatic(candidates: list[Interface]) -> tuple[Interface, str] | None:
    def ordinary(i: Interface) -> bool:
        return not i.loopback and not i.name.startswith(_BRIDGES)

    rules = (
        (lambda i: i.default_route and i.multicast, "it has the default route"),
        (lambda i: ordinary(i) and i.multicast, "the first with IPv4 and multicast"),
        (lambda i: i.default_route, "it has the default route (but no MULTICAST flag)"),
        (lambda i: i.loopback, "no other interface is usable"),
    )
    for good, why in rules:
        for interface in candidates:
            if good(interface):
                return interface, why
    return None


def choose_interface(interfaces: list[Interface], text: str) -> tuple[Interface, str]:
    """The interface the library takes for this pattern, and why: the multicast lane's, of a stripe the
    first. ValueError if there is none."""
    pattern = Pattern.parse(text)
    include = bool(pattern.names) and not pattern.exclude
    matching = [i for i in interfaces if (pattern.match(i.name) >= 0) == include]
    usable = [i for i in matching if i.usable]
    if pattern.exact and include:
        names = {i.name for i in usable}
        for part in (part for e in pattern.names if "+" in e for part in e.split("+")):
            if part not in names:
                raise ValueError(
                    f'interface pattern "{text}" stripes over {part}, which is not there, down or has '
                    f"no IPv4 address; this host has: {inventory(interfaces)}"
                )
        wanted = [part for entry in pattern.names for part in entry.split("+")]
        usable.sort(key=lambda i: wanted.index(i.name))
    if include and usable:
        chosen = min(usable, key=lambda i: pattern.match(i.name))
        return chosen, f'MCAST_SOCKET_IFNAME="{text}" matches it'
    if not include and (found := _automatic(usable)):
        chosen, why = found
        asked = f'MCAST_SOCKET_IFNAME="{text}" leaves it, and ' if text else ""
        return chosen, asked + why
    down = include and len(matching) > len(usable)
    problem = (
        "matches only interfaces that are down or have no IPv4 address"
        if down
        else "matches no usable interface"
    )
    raise ValueError(
        f'interface pattern "{text}" {problem}; this host has: {inventory(interfaces)}'
    )


def find_loopback(interfaces: list[Interface]) -> Interface | None:
    return next((i for i in interfaces if i.loopback and i.usable), None)
