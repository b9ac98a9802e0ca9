"""Reads what NVIDIA's driver knows of the GPUs, by libcuda and, if it is there, by NVML. No context is made,
so no memory of a GPU is taken.

This file also runs as a script, `python -I -S driver.py`, which prints JSON: a library that crashes or a GPU
that hangs then ends or delays that process only. So it imports nothing but the standard library."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
from typing import Any

LIMIT_S = 30.0

_NO_DEVICE = 100
_ATTRIBUTES = {  # CUdevice_attribute
    "integrated": 18,
    "compute_mode": 20,
    "major": 75,
    "minor": 76,
    "vmm": 102,  # cuMemCreate and cuMemMap
    "posix_fd": 103,  # and memory exported as a file descriptor
}
_NVML_NVLINK, _NVML_OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK


class DriverError(Exception):
    """code: the driver's, 0 if the library could not be called at all."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Cuda:
    """Calls of libcuda. `library` is a ctypes library, or an object with the same functions."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"libcuda has no function {name}") from None
        code = function(*arguments)
        if code:
            raise DriverError(f"{name}: {self._text(code)} (error {code})", code)

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        try:
            self._library.cuGetErrorString(code, ctypes.byref(text))
        except AttributeError:
            return "unknown error"
        return (text.value or b"unknown error").decode(errors="replace")

    def number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def text(self, name: str, device: int, size: int = 256) -> str:
        buffer = ctypes.create_string_buffer(size)
        self.call(name, buffer, size, device)
        return buffer.value.decode(errors="replace")

    def attribute(self, device: int, name: str) -> int | None:
        """None: this driver does not know the attribute."""
        try:
            return self.number("cuDeviceGetAttribute", _ATTRIBUTES[name], device)
        except DriverError:
            return None

    def device(self, ordinal: int) -> dict[str, Any]:
        handle = self.number("cuDeviceGet", ordinal)
        memory = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), handle)
        try:
            pci = self.text("cuDeviceGetPCIBusId", handle, 32).lower()
        except DriverError:  # integrated GPUs have none
            pci = ""
        found: dict[str, Any] = {
            "name": self.text("cuDeviceGetName", handle),
            "pci": pci,
            "memory": memory.value,
        }
        return {**found, **{name: self.attribute(handle, name) for name in _ATTRIBUTES}}

    def peers(self, count: int) -> list[list[Any]]:
        """[GPU, GPU, whether each can read the other] of all pairs."""
        handles = [self.number("cuDeviceGet", ordinal) for ordinal in range(count)]

        def reaches(a: int, b: int) -> bool:
            return bool(self.number("cuDeviceCanAccessPeer", handles[a], handles[b]))

        return [
            [a, b, reaches(a, b) and reaches(b, a)]
            for a in range(count)
            for b in range(a + 1, count)
        ]


class Nvml:
    """Calls of NVML, whose functions return 0 for success."""

    def __init__(self, library: Any) -> None:
        self._library = library
        if library.nvmlInit_v2():
            raise OSError("nvmlInit_v2 failed")

    def version(self) -> str:
        buffer = ctypes.create_string_buffer(96)
        failed = self._library.nvmlSystemGetDriverVersion(buffer, len(buffer))
        return "" if failed else buffer.value.decode(errors="replace")

    def _handle(self, pci: str) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        get = self._library.nvmlDeviceGetHandleByPciBusId_v2
        return None if get(pci.encode(), ctypes.byref(handle)) else handle

    def mig(self, pci: str) -> bool | None:
        handle = self._handle(pci)
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        if handle is None or self._library.nvmlDeviceGetMigMode(
            handle, ctypes.byref(now), ctypes.byref(pending)
        ):
            return None
        return bool(now.value)

    def nvlink(self, one: str, other: str) -> bool | None:
        first, second = self._handle(one), self._handle(other)
        status = ctypes.c_int()
        if first is None or second is None:
            return None
        if self._library.nvmlDeviceGetP2PStatus(first, second, _NVML_NVLINK, ctypes.byref(status)):
            return None
        return status.value == _NVML_OK


def answers(load: Any = ctypes.CDLL) -> dict[str, Any]:
    """Returns what the driver reports, as JSON has it. problem: why there are no devices, or ""; code: the
    driver's error; peers: [GPU, GPU, whether they reach each other, whether by NVLink (null: not known)]."""
    found: dict[str, Any] = {
        "problem": "", "code": 0, "cuda": 0, "driver": "", "devices": [], "peers": [],
    }  # fmt: skip
    try:
        cuda = Cuda(load("libcuda.so.1"))
    except OSError as error:
        return {**found, "problem": f"libcuda.so.1 cannot be loaded: {error}"}
    try:
        found["cuda"] = cuda.number("cuDriverGetVersion")
        cuda.call("cuInit", 0)
        count = cuda.number("cuDeviceGetCount")
        found["devices"] = [cuda.device(ordinal) for ordinal in range(count)]
        found["peers"] = [[*pair, None] for pair in cuda.peers(count)]
    except DriverError as error:
        found.update(problem=str(error), code=error.code)
    with contextlib.suppress(OSError, AttributeError):  # without NVML, NVLink and MIG are not known
        _add_nvml(Nvml(load("libnvidia-ml.so.1")), found)
    return found


def _add_nvml(nvml: Nvml, found: dict[str, Any]) -> None:
    found["driver"] = nvml.version()
    devices = found["devices"]
    for device in devices:
        if device["pci"]:
            device["mig"] = nvml.mig(device["pci"])
    for pair in found["peers"]:
        one, other = (devices[ordinal]["pci"] for ordinal in pair[:2])
        if one and other and one != other:
            pair[3] = nvml.nvlink(one, other)


def read(limit_s: float = LIMIT_S, program: str = __file__) -> dict[str, Any]:
    """Returns the answers() of another process, with this one's environment (CUDA_VISIBLE_DEVICES)."""
    nothing = {"code": 0, "cuda": 0, "driver": "", "devices": [], "peers": []}
    command = [sys.executable, "-I", "-S", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        problem = f"the driver did not answer within {limit_s:g} s"
    except (OSError, ValueError) as error:
        problem = f"the driver could not be queried: {error}"
    else:
        lines = done.stderr.strip().splitlines()
        ended = f"status {done.returncode}"
        if done.returncode < 0:
            ended = signal.Signals(-done.returncode).name
        problem = f"the query of the driver ended with {ended}{': ' + lines[-1] if lines else ''}"
    return {**nothing, "problem": problem}


if __name__ == "__main__":
    print(json.dumps(answers()))
