"""Machines as data: trees of sysfs, and drivers that answer as ctypes libraries do."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INT, TEXT = ctypes.POINTER(ctypes.c_int), ctypes.c_char_p
UNSIGNED, HANDLE = ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p)
GPU, NIC, SWITCH = "0x030200", "0x020000", "0x068000"


class Tree:
    """Writes /sys and /dev below a folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.dev = folder / "sys", folder / "dev"
        for path in (self.root / "devices", self.root / "bus/pci/devices", self.dev):
            path.mkdir(parents=True, exist_ok=True)

    def pci(self, path: str, vendor: str, kind: str, **files: object) -> Path:
        """A function of PCI: `path` below /sys/devices."""
        folder = self.root / "devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {"vendor": vendor, "class": kind, **files}.items():
            (folder / name).write_text(f"{content}\n")
        (self.root / "bus/pci/devices" / folder.name).symlink_to(folder)
        return folder

    def gpu(self, path: str, numa: int = 0, width: int = 16, vendor: str = "0x10de") -> None:
        self.pci(
            path, vendor, GPU, numa_node=numa, local_cpulist=f"{32 * numa}-{32 * numa + 31}",
            current_link_width=width, max_link_width=16,
        )  # fmt: skip

    def nic(self, name: str, path: str, numa: int = 0, rdma: str = "", below: str = "") -> None:
        """`below`: folders between the function and its network device, as virtio has them."""
        folder = self.pci(path, "0x15b3", NIC, numa_node=numa)
        device = folder / below
        device.mkdir(exist_ok=True)
        self.virtual(name, device)
        if rdma:
            (self.root / "class/infiniband" / rdma).mkdir(parents=True)
            (self.root / "class/infiniband" / rdma / "device").symlink_to(folder)

    def virtual(self, name: str, device: Path | None = None, lower: tuple[str, ...] = ()) -> None:
        folder = self.root / "class/net" / name
        folder.mkdir(parents=True)
        if device:
            (folder / "device").symlink_to(device)
        for other in lower:
            (folder / f"lower_{other}").symlink_to(self.root / "class/net" / other)

    def nodes(self, *names: str) -> None:
        for name in names:
            (self.dev / name).touch()


def behind_switch(host_bridge: str, bus: int, device: int) -> str:
    """A function below a switch with one port per device."""
    root_port, upstream = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
    port, function = f"0000:{bus + 2:02x}:{device:02x}.0", f"0000:{bus + 3 + device:02x}:00.0"
    return f"{host_bridge}/{root_port}/{upstream}/{port}/{function}"


@dataclass
class Device:
    """One GPU as the driver reports it."""

    name: str = "NVIDIA H100 80GB HBM3"
    pci: str = ""
    memory: int = 80 << 30
    attributes: dict[int, int] = field(
        default_factory=lambda: {18: 0, 20: 0, 75: 9, 76: 0, 102: 1, 103: 1}
    )


def c_function(*types: Any) -> Any:
    """Makes a function of C out of one of Python: arguments are converted as by the library."""
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)


class CudaLibrary:
    """libcuda.so.1. unreachable: pairs without peer access. failing: {function: error}. missing: functions
    that an old library does not have."""

    def __init__(
        self,
        devices: list[Device],
        unreachable: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]
        failing: Mapping[str, int] = {},
        missing: tuple[str, ...] = (),
        version: int = 13000,
    ) -> None:
        self._devices, self._unreachable, self._version = devices, unreachable, version
        functions = {
            "cuDriverGetVersion": c_function(INT)(self._driver_version),
            "cuInit": c_function(ctypes.c_uint)(lambda flags: flags),
            "cuDeviceGetCount": c_function(INT)(self._count),
            # Handles are not ordinals: who confuses them finds no device.
            "cuDeviceGet": c_function(INT, ctypes.c_int)(lambda out, n: self._set(out, n + 100)),
            "cuDeviceGetName": self._text_function(lambda device: device.name),
            "cuDeviceGetPCIBusId": self._text_function(lambda device: device.pci.upper()),
            "cuDeviceTotalMem_v2": c_function(ctypes.POINTER(ctypes.c_size_t), ctypes.c_int)(
                lambda out, n: self._set(out, self._device(n).memory)
            ),
            "cuDeviceGetAttribute": c_function(INT, ctypes.c_int, ctypes.c_int)(self._attribute),
            "cuDeviceCanAccessPeer": c_function(INT, ctypes.c_int, ctypes.c_int)(self._peer),
            "cuGetErrorString": c_function(ctypes.c_int, ctypes.POINTER(TEXT))(self._error),
        }
        for name, function in functions.items():
            if name not in missing:
                setattr(self, name, function)
        for name, code in failing.items():
            setattr(self, name, lambda *arguments, code=code: code)

    def _device(self, handle: int) -> Device:
        return self._devices[handle - 100]

    @staticmethod
    def _set(out: Any, value: int) -> int:
        out[0] = value
        return 0

    def _driver_version(self, out: Any) -> int:
        return self._set(out, self._version)

    def _count(self, out: Any) -> int:
        return self._set(out, len(self._devices))

    def _text_function(self, text: Any) -> Any:
        def write(buffer: Any, size: int, handle: int) -> int:
            value = text(self._device(handle)).encode()
            if not value:
                return 1  # CUDA_ERROR_INVALID_VALUE
            ctypes.memmove(buffer, value + b"\0", min(size, len(value) + 1))
            return 0

        return c_function(ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(write)

    def _attribute(self, out: Any, attribute: int, handle: int) -> int:
        value = self._device(handle).attributes.get(attribute)
        return 1 if value is None else self._set(out, value)

    def _peer(self, out: Any, one: int, other: int) -> int:
        if one == other:
            return 101  # CUDA_ERROR_INVALID_DEVICE
        self._device(one), self._device(other)
        return self._set(out, (one - 100, other - 100) not in self._unreachable)

    def _error(self, code: int, out: Any) -> int:
        out[0] = {
            100: b"no CUDA-capable device is detected",
            802: b"system not yet initialized",
        }.get(code, b"unknown error")
        return 0


class NvmlLibrary:
    """libnvidia-ml.so.1. mig: addresses of GPUs; nvlink: {pair of addresses: status}, 0 is NVLink."""

    def __init__(
        self,
        addresses: list[str],
        mig: tuple[str, ...] = (),
        nvlink: bool = True,
        broken: bool = False,
    ) -> None:
        self._addresses = addresses
        self.nvmlInit_v2 = lambda: 9 if broken else 0
        self.nvmlSystemGetDriverVersion = c_function(ctypes.c_void_p, ctypes.c_uint)(
            lambda buffer, size: ctypes.memmove(buffer, b"580.159.04\0", 11) and 0
        )
        self.nvmlDeviceGetHandleByPciBusId_v2 = c_function(TEXT, HANDLE)(self._find)
        self.nvmlDeviceGetMigMode = c_function(ctypes.c_void_p, UNSIGNED, UNSIGNED)(
            lambda handle, now, pending: CudaLibrary._set(now, self._addresses[handle - 1] in mig)
        )
        self.nvmlDeviceGetP2PStatus = c_function(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, INT
        )(lambda one, other, index, out: CudaLibrary._set(out, 0 if nvlink and index == 2 else 1))

    def _find(self, address: bytes, out: Any) -> int:
        if address.decode() not in self._addresses:
            return 6  # NVML_ERROR_NOT_FOUND
        out[0] = self._addresses.index(address.decode()) + 1
        return 0


def loader(cuda: Any = None, nvml: Any = None) -> Any:
    """ctypes.CDLL of a machine that has these libraries."""

    def load(name: str) -> Any:
        found = {"libcuda.so.1": cuda, "libnvidia-ml.so.1": nvml}[name]
        if found is None:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return found

    return load
