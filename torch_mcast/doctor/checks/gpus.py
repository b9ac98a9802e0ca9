"""GPUs: what of them this process sees, how they reach each other and the network, and whether torch and the
driver fit. Rows are in doctor/gpu."""

from __future__ import annotations

import os
from typing import Any

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding
from torch_mcast.doctor.gpu import driver, judge, sysfs
from torch_mcast.doctor.gpu.judge import Facts, Torch

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # linux/proc_ns.h: PROC_PID_INIT_INO
_NOTHING: dict[str, Any] = {
    "problem": "", "code": 0, "cuda": 0, "driver": "", "devices": [], "peers": [],
}  # fmt: skip


def torch_facts() -> Torch:
    """Without torch.cuda's initialization, which would take memory on a GPU."""
    try:
        import torch
    except Exception:  # noqa: BLE001 - the row "torch" reports whatever a broken torch raises
        return Torch()
    nccl = ""
    if (
        torch.version.cuda
        and torch.distributed.is_available()
        and torch.distributed.is_nccl_available()
    ):
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    cuda, hip = torch.version.cuda or "", torch.version.hip or ""
    return Torch(str(torch.__version__), cuda, hip, nccl)


def pid_namespace() -> str:
    """Its number; "" if it is the machine's own."""
    try:
        number = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return "" if number == _FIRST_PID_NAMESPACE else str(number)


def run(context: Context) -> list[Finding]:
    machine, torch = sysfs.read(), torch_facts()
    ask = context.gpu or judge.expected(machine) or "dxg" in machine.nodes
    return judge.judge(
        Facts(
            machine,
            driver.read() if ask and not torch.hip else _NOTHING,
            torch,
            context.environment,
            [interface.name for interface in context.interfaces if interface.usable],
            context.chosen.name if context.chosen else "",
            pid_namespace(),
            context.gpu,
        )
    )
