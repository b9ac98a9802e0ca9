"""A group made from a store alone: torch.distributed keeps nothing of it, so a process may have any number
of them, with or without a default group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast._backend import create_on
from torch_mcast._load import extension
from torch_mcast._names import DEVICES


def group_of_store(
    store: Any, rank: int, size: int, name: str, timeout: timedelta, options: Any = None
) -> Any:
    """Returns a ProcessGroup whose ranks are those that call this with the same store.

    `name` is the group's in errors and logs, `timeout` the limit of each operation, `options` a
    torch_mcast.Options. The group ends with abort() or shutdown(), or when nothing refers to it any more.
    """
    backend = create_on(store, rank, list(range(size)), name, timeout, options)
    group = extension().named_group(store, rank, size)
    custom = dist.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(custom)
    for device in DEVICES:
        group._register_backend(torch.device(device), custom, backend)
    return group
