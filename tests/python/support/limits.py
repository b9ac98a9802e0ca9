"""Time limits for groups whose calls end soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d


def limit(seconds: float, group: ProcessGroup | None = None) -> Any:
    """Sets the time limit of the group's calls from now on. The group was created within its own,
    longer limit: on a busy machine these few seconds may not suffice for that, and the creation is
    not under test."""
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
    return group
