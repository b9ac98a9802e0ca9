"""Waiting for GPU tensors in wait(): CUDA_DEVICE_MAX_CONNECTIONS, which Megatron sets to 1."""

from __future__ import annotations

from collections.abc import Mapping

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, ok, warn

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"


def judge_connections(environment: Mapping[str, str], device_wait: str) -> list[Finding]:
    """Returns no row if the variable is not set: CUDA's default is 8."""
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return []
    if text != "1" or device_wait == "host":
        return [ok("gpu queues", f"{VARIABLE}={text}, device_wait={device_wait}")]
    if device_wait == "auto":
        return [
            ok(
                "gpu queues",
                f"{VARIABLE}=1: wait() on GPU tensors blocks the calling thread (device_wait=auto), so "
                "that a stream that waits for the network does not hold up all others",
            )
        ]
    return [
        warn(
            "gpu queues",
            f"{VARIABLE}=1 and device_wait=stream: while a stream waits for the network, no kernel "
            "of this process runs",
            f"MCAST_DEVICE_WAIT=auto, or {VARIABLE} unset",
        )
    ]


def run(context: Context) -> list[Finding]:
    return judge_connections(context.environment, context.values.get("device_wait", "auto"))
