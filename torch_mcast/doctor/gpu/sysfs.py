"""Reads GPUs and network interfaces out of sysfs, and how far apart they are on PCIe."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NVIDIA, AMD = 0x10DE, 0x1002
_DISPLAY, _ACCELERATOR = 0x03, 0x12  # classes of PCI
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# How two devices are connected, nearest first; as nvidia-smi's PIX and PXB, PHB, NODE, SYS.
SAME, SWITCH, BRIDGE, NODE, SYSTEM = range(5)
NAMES = (
    "the same device",
    "the same PCIe switch",
    "the same PCIe host bridge",
    "the same NUMA node",
    "another NUMA node or socket",
)


@dataclass(frozen=True)
class PciDevice:
    """path: of the folders from the host bridge on, such as ("pci0000:16", "0000:16:01.0", "0000:17:00.0").
    numa: -1 if it has none. width: lanes of its link, now and at most; 0 if not known."""

    address: str
    path: tuple[str, ...]
    vendor: int = 0
    kind: int = 0  # the class
    numa: int = -1
    cpus: str = ""
    width: int = 0
    most_width: int = 0


@dataclass(frozen=True)
class Nic:
    """devices: one, those below a bond, or none (a virtual interface). rdma: names of RDMA devices."""

    name: str
    devices: tuple[PciDevice, ...] = ()
    rdma: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """readable: false where there is no sysfs with PCI devices, as in some containers."""

    readable: bool = False
    gpus: tuple[PciDevice, ...] = ()
    nics: tuple[Nic, ...] = ()
    driver: str = ""  # version of NVIDIA's kernel module
    nodes: tuple[str, ...] = ()  # names in /dev, such as "nvidiactl"

    def device(self, address: str) -> PciDevice | None:
        wanted = normal(address)
        return next((gpu for gpu in self.gpus if normal(gpu.address) == wanted), None)


def normal(address: str) -> tuple[int, ...]:
    """Returns the numbers of a PCI address. Drivers write its domain with 4 or 8 digits."""
    digits = re.split(r"[:.]", address.lower())
    try:
        return tuple(int(part, 16) for part in digits)
    except ValueError:
        return ()


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Folders that both paths begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def level(one: PciDevice, other: PciDevice) -> int:
    """One of SAME to SYSTEM."""
    if one.address.rpartition(".")[0] == other.address.rpartition(".")[0]:
        return SAME
    common = _common(one.path[:-1], other.path[:-1])
    if common > 1:  # a bridge below the host bridge
        return SWITCH
    if common == 1:
        return BRIDGE
    return NODE if one.numa == other.numa >= 0 else SYSTEM


def distance(gpu: PciDevice, nic: Nic) -> tuple[int, int] | None:
    """Sorts interfaces by how near they are: the level, then the longest common path. None: the interface
    has no PCI device."""
    rows = [(level(gpu, device), -_common(gpu.path, device.path)) for device in nic.devices]
    return min(rows, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path, default: int = 0) -> int:
    try:
        return int(_text(path), 0)
    except ValueError:
        return default


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _pci(folder: Path, root: Path) -> PciDevice | None:
    """Reads the function that a folder belongs to: its own, or one above it (a virtio device)."""
    real = Path(os.path.realpath(folder))
    try:
        parts = real.relative_to(os.path.realpath(root / "devices")).parts
    except ValueError:
        return None
    functions = [number for number, part in enumerate(parts) if _FUNCTION.fullmatch(part)]
    if not functions:
        return None
    last = functions[-1]
    device = real if last == len(parts) - 1 else real.parents[len(parts) - 2 - last]
    # Some host bridges lie below other buses: platform/..., VMBUS:00/...
    first = next((n for n, part in enumerate(parts[:last]) if part.startswith("pci")), 0)
    return PciDevice(
        parts[last],
        parts[first : last + 1],
        _number(device / "vendor"),
        _number(device / "class") >> 8,
        _number(device / "numa_node", -1),
        _text(device / "local_cpulist"),
        _number(device / "current_link_width"),
        _number(device / "max_link_width"),
    )


def _nic_devices(folder: Path, root: Path, depth: int = 3) -> tuple[PciDevice, ...]:
    """Returns the device of an interface, or those below a bond or a VLAN (its links lower_*)."""
    if (folder / "device").exists():
        device = _pci(folder / "device", root)
        return (device,) if device else ()
    if not depth:
        return ()
    lower = [entry for entry in _entries(folder) if entry.name.startswith("lower_")]
    found = [device for entry in lower for device in _nic_devices(entry, root, depth - 1)]
    return tuple(dict.fromkeys(found))


def read(root: Path = Path("/sys"), dev: Path = Path("/dev")) -> Machine:
    """The machine as this process sees it."""
    functions = _entries(root / "bus/pci/devices")
    devices = [device for entry in functions if (device := _pci(entry, root))]
    gpus = [
        device
        for device in devices
        if device.vendor in (NVIDIA, AMD) and device.kind >> 8 in (_DISPLAY, _ACCELERATOR)
    ]
    rdma: dict[str, list[str]] = {}
    for entry in _entries(root / "class/infiniband"):
        if device := _pci(entry / "device", root):
            rdma.setdefault(device.address, []).append(entry.name)
    nics = []
    for entry in _entries(root / "class/net"):
        if not entry.is_dir() or entry.name == "lo":
            continue
        below = _nic_devices(entry, root)
        names = tuple(name for device in below for name in rdma.get(device.address, ()))
        nics.append(Nic(entry.name, below, names))
    nodes = [
        entry.name
        for entry in _entries(dev)
        if entry.name.startswith("nvidia") or entry.name == "dxg"
    ]
    return Machine(
        bool(devices), tuple(gpus), tuple(nics), _text(root / "module/nvidia/version"), tuple(nodes)
    )
