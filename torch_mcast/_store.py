"""The store of a job whose ranks have no network: init_process_group(init_method="engine://")."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch_mcast._names import SCHEME

PORT = 7118  # `torch-mcast engine run --store-port`, if the URL names no port

_made = 0  # number of groups created by this process, equal on all ranks of a job


def _socket() -> str:
    from torch_mcast.engine.status import DEFAULT_SOCKET

    return os.environ.get("MCAST_ENGINE", "").partition(":")[2] or DEFAULT_SOCKET


def _needed(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ValueError(f"init_method='{SCHEME}://': the environment variable {name} is not set")
    return value


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, timeout: timedelta | None = None, **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """Yields the store of engine://[HOST[:PORT]][/NAME], which the engine of HOST keeps, the rank
    and the world size. Defaults: MASTER_ADDR, port 7118, and a name made of the job's environment;
    rank and number of ranks are found as for env://."""
    from torch.distributed.constants import default_pg_timeout

    from torch_mcast._load import extension

    global _made
    parsed = urlparse(url)
    query = dict(part.split("=", 1) for part in parsed.query.split("&") if "=" in part)
    rank = int(query.get("rank", rank))
    world_size = int(query.get("world_size", world_size))
    if rank < 0:
        rank = int(_needed("RANK"))
    if world_size < 0:
        world_size = int(_needed("WORLD_SIZE"))
    host = parsed.hostname or _needed("MASTER_ADDR")
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    name = parsed.path.strip("/") or "|".join(os.environ.get(n, "") for n in names)
    _made += 1
    if not hasattr(extension(), "EngineStore"):
        raise RuntimeError(
            "this build of torch-mcast has no engine of the host (MCAST_HOST_ENGINE), which keeps "
            "stores of mcast://"
        )
    yield (
        extension().EngineStore(
            _socket(),
            host,
            parsed.port or PORT,
            f"{name}|{_made}",
            timeout or default_pg_timeout,
            os.environ.get("MCAST_ENGINE_USER", "").strip(),
        ),
        rank,
        world_size,
    )
    raise RuntimeError(
        "a job whose store is at an engine cannot make its process group a second time"
    )
