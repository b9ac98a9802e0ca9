"""Public helpers that report what a process group did; they take an ordinary torch.distributed group."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast import _fallback
from torch_mcast._load import extension
from torch_mcast._stats_types import Stats


def backend_of(group: Any = None) -> Any:
    """Returns the ProcessGroupMcast of `group` (None: the default group). Raises ValueError if it
    has none."""
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise ValueError(
            "torch_mcast: there is no default process group; call init_process_group()"
        )
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("torch_mcast: this rank is not a member of the group")
    ours, others = split_backends(group)
    if ours:
        return ours[0]
    raise ValueError(f"torch_mcast: the group has no mcast backend (it has {_names(others)})")


def split_backends(group: Any) -> tuple[list[Any], list[Any]]:
    """Returns the backends of `group` (None: the default group): ours, and the others."""
    if group is None:
        group = dist.group.WORLD
    kind = extension().ProcessGroupMcast
    candidates = [group]
    if isinstance(group, dist.ProcessGroup):
        candidates = [group._get_backend(torch.device(d)) for d in _device_types(group)]
    ours: list[Any] = []
    others: list[Any] = []
    for candidate in candidates:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking wrapper around the backend.
        while not isinstance(candidate, kind) and hasattr(candidate, "wrapped_pg"):
            candidate = candidate.wrapped_pg
        found = ours if isinstance(candidate, kind) else others
        if candidate not in found:
            found.append(candidate)
    return ours, others


def _device_types(group: Any) -> list[str]:
    return sorted({device.type for device in group._device_types})


def _names(candidates: list[Any]) -> str:
    return ", ".join(sorted({candidate.name() for candidate in candidates})) or "none"


def stats(group: Any = None) -> Stats:
    """Returns facts and counters of `group` on this rank, since it was made.

    `torch_mcast.Stats` describes each field. May be called from any thread.

    Raises:
        ValueError: The group has no mcast backend.
    """
    told: Stats = backend_of(group)._stats()
    # The fallback is never NCCL if it would send a group's traffic unencrypted, so these calls are
    # Gloo's.
    clear = _fallback.in_clear("gloo", told["security"]["mode"], told["path"], os.environ)
    calls = sum(row["fallback"] for row in told["calls"].values()) if clear else 0
    told["security"]["clear_fallback_calls"] = calls
    return told


def config(group: Any = None) -> dict[str, str]:
    """Returns the settings that `group` was made with, as text (durations in ms)."""
    settings: dict[str, str] = backend_of(group)._config()
    return settings


def contributors(work: Any) -> int:
    """Returns the number of ranks whose inputs are in the result of a complete reduction.

    This is the group's size, unless the setting `partial` let the reduction end without late ranks.
    AVG divides by the same number.
    """
    count: int = extension().contributors(work)
    return count


def abort(group: Any = None) -> None:
    """Fails all operations in flight on all ranks of `group`, and all later calls.

    May be called from any thread.
    """
    backend_of(group).abort()


def clear_failure(device: torch.device | str | int | None = None) -> None:
    """Allows calls on `device` (None: on any) again after a failure with `device_failure=raise`.

    Call it once the undefined tensors, and everything computed from them, have been restored. An
    int is the index of a device of the current accelerator, as for `torch.device()`.
    """
    extension().clear_failure(None if device is None else str(torch.device(device)))
