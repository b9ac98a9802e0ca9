"""The flight recorder in the format of torch's, so that torch's tools read it: `torchfrtrace` (or
`python -m torch.distributed.flight_recorder.fr_trace`) on the files of all ranks reports which rank
is in which call."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_mcast._load import extension

VERSION = "2.10"  # of the format
# torch's tools know the names of a few backends and refuse others.
_PREFIX = "gloo"


def flight_recorder() -> dict[str, Any]:
    """Returns the last operations of this process in the format of torch's flight recorder.

    `TORCH_FR_BUFFER_SIZE` (2,000) is the number of operations.

    - `entries`: operations, oldest first, with group, sequence, name, sizes and dtypes, times, state
      (`"started"` or `"completed"`) and `retired`. An operation that is retired but not completed has
      failed.
    - `pg_config`: the ranks of each group.
    """
    config = {}
    for group, name in distributed_c10d._world.pg_names.items():
        ranks = dist.get_process_group_ranks(group)
        config[str(name)] = {"name": str(name), "desc": group.group_desc, "ranks": str(ranks)}
    return {
        "version": VERSION,
        "pg_config": config,
        "pg_status": {},
        # Only groups that still exist: the tools look up the ranks of each.
        "entries": [
            entry
            for entry in extension().flight_entries(_PREFIX)
            if entry["process_group"][0] in config
        ],
    }


def dump_flight_recorder(path: str | os.PathLike[str] | None = None) -> Path:
    """Writes `flight_recorder()` to a file and returns its path.

    Without `path` the file is where torch would write it: `TORCH_FR_DUMP_TEMP_FILE`, or
    `comm_lib_trace_rank_` in torch's cache folder, followed by the rank.
    """
    if path is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch"
        prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or str(cache / "comm_lib_trace_rank_")
        rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
        path = f"{prefix}{rank}"
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(pickle.dumps(flight_recorder()))
    part.rename(path)
    return path


def dump_if_asked() -> None:
    """Writes the record after the first failure of a group if the environment asks for it, as for
    NCCL's groups."""
    for name in ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
        if name in os.environ:
            if os.environ[name].lower() in ("1", "true", "yes", "y", "on"):
                dump_flight_recorder()
            return
