"""A device for tests of device tensors: asynchronous streams with random delays on host memory.

library() is its path; load() makes it the device "fake" of the calling process.
"""

from __future__ import annotations

import ctypes
import types
from pathlib import Path

from built import built

FOLDER = Path(__file__).parent

TO_HOST, TO_DEVICE = 0, 1  # directions of allow() and copies()


def library() -> str:
    """Returns the path of the library, which also contains the backend of `batching`: they are
    built as one."""
    return str(
        built(
            "test_extensions.so",
            "tests/python/support/fake_device/*.cpp",
            "tests/python/support/fake_device/*.h",
            "tests/python/support/batching/*.cpp",
        )
    )


def load(path: str, gate: bool) -> types.ModuleType:
    """Registers the device and its gate (or none) with torch and torch_mcast. Returns
    torch.ops.fake_device."""
    import torch

    from torch_mcast._load import extension

    if not hasattr(torch, "fake"):
        torch.ops.load_library(path)
        torch.utils.rename_privateuse1_backend("fake")
        torch.ops.fake_device.init()
        module = types.ModuleType("torch.fake")
        module.is_available = lambda: True
        module.is_initialized = lambda: True
        module.current_device = lambda: 0
        module.device_count = lambda: 1
        module.set_device = lambda device: None
        module.synchronize = lambda device=None: torch.ops.fake_device.synchronize()
        module._is_in_bad_fork = lambda: False
        module.manual_seed_all = lambda seed: None
        torch._register_device_module("fake", module)
    symbols = ctypes.CDLL(path)
    functions = [
        ctypes.cast(getattr(symbols, name), ctypes.c_void_p).value if gate else 0
        for name in ("fake_gate_wait", "fake_gate_signal")
    ]
    mode, captured = (
        ctypes.cast(getattr(symbols, name), ctypes.c_void_p).value
        for name in ("fake_capture_mode", "fake_is_captured")
    )
    extension().set_gate("privateuseone", *functions, mode, captured)
    return torch.ops.fake_device
