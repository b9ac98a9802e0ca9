"""Registration with torch.distributed: a name and a function that loads the rest when it is called."""

from __future__ import annotations

import contextlib
import os
from typing import Any

BACKEND = "mcast"
SCHEME = "engine"  # of URLs: torch_mcast/_store.py
DEVICES = ["cpu", "cuda"]


def _create(group: Any, options: Any) -> Any:
    from torch_mcast._backend import create

    return create(group, options)


def _rendezvous(*args: Any, **kwargs: Any) -> Any:
    from torch_mcast._store import rendezvous

    return rendezvous(*args, **kwargs)


def _register_store() -> None:
    from torch.distributed.rendezvous import register_rendezvous_handler

    # torch refuses a second handler of a scheme.
    with contextlib.suppress(RuntimeError):
        register_rendezvous_handler(SCHEME, _rendezvous)


def register() -> None:
    """Makes "mcast" a backend of torch.distributed, and stores at engines a way to meet (engine://).
    Idempotent; nothing happens without distributed."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    _register_store()
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
