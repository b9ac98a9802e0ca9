"""Groups whose calls end soon."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import ProcessGroup, distributed_c10d


def limit(seconds: float, group: ProcessGroup | None = None) -> Any:
    """Lets calls of the group take this long from now on. It was made within its own, longer limit: on a busy
    machine the same few seconds may be too short for that, which is not what the test is about."""
    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
    return group
