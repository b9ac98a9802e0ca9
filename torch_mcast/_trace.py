"""Record of what the engine did and when: the last operations of this process, up to a limit."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from torch_mcast._load import extension

_LANES = ("multicast", "reduce")


def trace() -> list[dict[str, Any]]:
    """Returns the last operations of all groups of this process, oldest first. `MCAST_TRACE` is the
    limit on their number.

    Each row has these keys:

    - `name`, `group`, `rank`, `sequence`, `bytes`, `ok`.
    - `lane`: `"multicast"` or `"reduce"`; each lane has its own sequence.
    - `posted`, `first_byte`, `last_byte`, `done`: ns of `time.monotonic_ns()`. `first_byte` and
      `last_byte` (of data, in or out) may be None; only `last_byte` is None if an operation failed
      half-way.
    """
    rows: list[dict[str, Any]] = extension().trace()
    return rows


def export_chrome_trace(path: str | os.PathLike[str]) -> None:
    """Writes `trace()` to `path` for chrome://tracing, Perfetto or TensorBoard.

    The file has a process per rank, a thread per lane, an event from post to completion
    (`mcast:reduce_scatter_tensor`), and inside it an event from the first byte to the last. Times
    are wall-clock times, as in torch.profiler's exports, so both files can be shown together.
    """
    offset = time.time_ns() - time.monotonic_ns()
    events: list[dict[str, Any]] = []
    seen: set[tuple[int, int]] = set()
    for op in trace():
        pid, tid = op["rank"], _LANES.index(op["lane"])
        if (pid, tid) not in seen:
            seen.add((pid, tid))
            events.append(_meta("process_name", pid, tid, f"torch-mcast rank {pid}"))
            events.append(_meta("thread_name", pid, tid, f"{op['lane']} lane"))
        args = {key: op[key] for key in ("group", "sequence", "bytes", "ok")}
        events.append(
            _span(f"mcast:{op['name']}", pid, tid, op["posted"], op["done"], offset, args)
        )
        if op["first_byte"] is not None:
            last = op["done"] if op["last_byte"] is None else op["last_byte"]
            events.append(_span("data", pid, tid, op["first_byte"], last, offset, {}))
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(
    name: str, pid: int, tid: int, start: int, end: int, offset: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "mcast", "name": name, "pid": pid, "tid": tid,
        "ts": (start + offset) / 1e3, "dur": max(0, end - start) / 1e3, "args": args,
    }  # fmt: skip
