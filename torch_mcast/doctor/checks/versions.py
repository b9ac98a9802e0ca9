"""Versions: torch_mcast, torch (built for, and installed), Python, kernel, and whether they match."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys

from torch_mcast._load import REINSTALL
from torch_mcast.doctor import fixes
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, fail, ok, warn

_LEAST_PYTHON = (3, 10)
_LEAST_KERNEL = (5, 0)  # UDP_SEGMENT came with 4.18, UDP_GRO with 5.0


def judge_torch(
    built: str, present: str, distributed: bool, error: str, broken: str = ""
) -> Finding:
    """`built`, `present`: versions, "" if unknown; `error`: why the extension does not load; `broken`: why
    torch cannot be imported."""
    data = {"built": built, "running": present}
    if broken and present:
        text = f"torch {present} is installed and cannot be imported: {broken}"
        fix = f"{fixes.torch(present, '--force-reinstall')}  (in this environment)"
        return fail("torch", text, fix, **data)
    if not present:
        text = "torch is not installed for this Python" + (f": {broken}" if broken else "")
        also = "" if built else f"; for CPUs alone: --index-url {fixes.TORCH_INDEX}cpu"
        fix = f"{fixes.torch(built)}  (in this environment{also})"
        return fail("torch", text, fix, **data)
    if not distributed:
        return fail("torch", f"torch {present} was built without torch.distributed", **data)
    if error:
        return fail("torch", f"torch {present}; extension not loadable: {error}", REINSTALL, **data)
    if built != present:
        return ok("torch", f"built for {built}, running {present}: same minor version", **data)
    return ok("torch", f"{present}, the one it was built for", **data)


def judge_package(version: str, binary: str) -> Finding:
    if binary and binary != version:
        return fail(
            "torch_mcast",
            f"Python files are {version}, the extension is {binary}",
            REINSTALL,
            version=version,
            extension=binary,
        )
    return ok("torch_mcast", version, version=version, extension=binary)


def judge_python(version: tuple[int, int], text: str) -> Finding:
    if version < _LEAST_PYTHON:
        return fail("python", f"{text}; 3.10 or later is needed", python=text)
    return ok("python", text, python=text)


def judge_kernel(system: str, release: str) -> Finding:
    data = {"system": system, "release": release}
    if system != "Linux":
        return fail("kernel", f"{system} {release}: torch-mcast runs on Linux", **data)
    found = re.match(r"(\d+)\.(\d+)", release)
    if found and (int(found[1]), int(found[2])) < _LEAST_KERNEL:
        return warn(
            "kernel",
            f"Linux {release}: no UDP_GRO before 5.0; each datagram costs a system call",
            "use a kernel from 5.0 on",
            **data,
        )
    return ok("kernel", f"Linux {release}", **data)


def _torch() -> tuple[str, bool, str]:
    """Returns (version, has torch.distributed, why it cannot be imported)."""
    if importlib.util.find_spec("torch") is None:
        return "", False, ""
    try:
        import torch

        return str(torch.__version__), torch.distributed.is_available(), ""
    except Exception as error:  # noqa: BLE001 - every error of a broken torch is reported
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        return version, False, f"{type(error).__name__}: {error}"


def run(context: Context) -> list[Finding]:
    from torch_mcast import __version__

    present, distributed, broken = _torch()
    built = binary = ""
    if importlib.util.find_spec("torch_mcast._build_info") is not None:
        from torch_mcast import _build_info

        built, binary = _build_info.TORCH_VERSION, _build_info.VERSION
    return [
        judge_package(__version__, binary),
        judge_torch(built, present, distributed, context.extension_error, broken),
        judge_python(sys.version_info[:2], f"{platform.python_version()} at {sys.executable}"),
        judge_kernel(os.uname().sysname, os.uname().release),
    ]
