"""Registration with torch.distributed: a name and a function that loads the rest when it is called."""

from __future__ import annotations

import os
from typing import Any

BACKEND = "mcast"
DEVICES = ["cpu", "cuda"]


def _create(group: Any, options: Any) -> Any:
    from torch_mcast._backend import create_in_group

    return create_in_group(group, options)


def register() -> None:
    """Makes "mcast" a backend of torch.distributed. Idempotent; nothing happens without distributed."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    plugin = dist.Backend._plugins.get(BACKEND.upper())
    if plugin is not None:
        if plugin.creator_fn is not _create:
            raise RuntimeError(
                f"torch.distributed already has a backend named {BACKEND!r}, from "
                f"{plugin.creator_fn.__module__}; torch_mcast does not replace it"
            )
        return
    # A list: torch up to 2.13 would take a str letter by letter.
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
    _let_timeouts_through()


def _let_timeouts_through() -> None:
    """`_set_pg_timeout` of torch looks for Gloo's and NCCL's classes and leaves out all other backends, with
    a warning at most: the one that takes its place tells ours too."""
    import functools

    from torch.distributed import distributed_c10d

    if hasattr(distributed_c10d, "set_timeout"):  # from torch 2.14 on: asks every backend
        return
    original = distributed_c10d._set_pg_timeout

    @functools.wraps(original)
    def set_pg_timeout(timeout: Any, group: Any = None) -> None:
        from torch_mcast._stats import split_backends

        ours, others = split_backends(group)
        for backend in ours:
            backend.set_timeout(timeout)
        if others or not ours:
            original(timeout, group)

    distributed_c10d._set_pg_timeout = set_pg_timeout


def use_arenas() -> None:
    """Where the environment says so, tensors that are made from now on lie where others map them: before
    the model is made, so at the import. Without an extension module nothing happens: groups say why."""
    if os.environ.get("MCAST_ENGINE_MEMORY", "").strip().lower() != "map":
        return
    from torch_mcast._load import extension

    try:
        extension().use_arenas()
    except ImportError:
        return
