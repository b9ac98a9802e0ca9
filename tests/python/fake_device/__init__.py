"""A device for tests of device tensors: asynchronous streams with random delays on host memory.

build() compiles it; load() makes it the device "fake" of the calling process. `python -m fake_device`
builds and prints the library's path: building in the test process would register the device there.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
BUILD = ROOT / "build" / "fake_device"

TO_HOST, TO_DEVICE = 0, 1  # directions of allow() and copies()


def build() -> str:
    """Compiles the extension in a process of its own; the path of the library."""
    done = subprocess.run(
        [sys.executable, "-m", "fake_device"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def compiler(*arguments: str) -> None:
    """Through ccache where it is there, as the build of the product: another clone may have done it."""
    cache = shutil.which("ccache")
    subprocess.run(
        [*([cache] if cache else []), *shlex.split(os.environ.get("CXX", "c++")), *arguments],
        check=True,
        cwd=ROOT,
        env={**os.environ, "CCACHE_BASEDIR": str(ROOT)},
    )


def linked(name: str, sources: list[Path], *options: str) -> Path:
    """The shared library of these sources against this torch; compiled where one of them is newer."""
    import torch
    from torch.utils import cpp_extension

    folder = BUILD / f"torch{torch.__version__}-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{name}.so"
    seen = [file for source in sources for file in source.parent.glob("*.*")]
    newest = max(file.stat().st_mtime for file in seen)
    with open(folder / f"{name}.lock", "w") as lock:  # tests in several processes build it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists() or library.stat().st_mtime < newest:
            # Not by cpp_extension.load(): it breaks in a folder with a space in its name.
            includes = [sysconfig.get_path("include"), *cpp_extension.include_paths()]
            objects = [folder / f"{source.stem}.o" for source in sources]
            for source, into in zip(sources, objects, strict=True):
                compiler("-c", "-fPIC", "-O1", "-std=c++20",
                         *(word for path in includes for word in ("-isystem", path)),
                         str(source), "-o", str(into))  # fmt: skip
            part = folder / f"{name}.part.so"
            compiler("-shared", *map(str, objects),
                     *(f"-L{path}" for path in cpp_extension.library_paths()),
                     "-lc10", "-ltorch_cpu", "-ltorch", *options, "-o", str(part))  # fmt: skip
            part.rename(library)
    return library


def compile_here() -> str:
    return str(linked("fake_device", [FOLDER / name for name in ("runtime.cpp", "device.cpp")]))


def load(library: str, gate: bool) -> types.ModuleType:
    """Registers the device and its gate (or none) with torch and torch_mcast. torch.ops.fake_device."""
    import torch

    from torch_mcast._load import extension

    if not hasattr(torch, "fake"):
        torch.ops.load_library(library)
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
    symbols = ctypes.CDLL(library)
    functions = [
        ctypes.cast(getattr(symbols, name), ctypes.c_void_p).value if gate else 0
        for name in ("fake_gate_wait", "fake_gate_signal")
    ]
    mode = ctypes.cast(symbols.fake_capture_mode, ctypes.c_void_p).value
    extension().set_gate("privateuseone", *functions, mode)
    return torch.ops.fake_device
