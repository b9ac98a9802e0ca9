"""Registers the backend with torch.distributed: a name and a function that loads the rest when it
is called."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch_mcast._names import BACKEND, DEVICES, SCHEME


def _create(group: Any, options: Any) -> Any:
    from torch_mcast._backend import create_in_group

    return create_in_group(group, options)


def _rendezvous(*args: Any, **kwargs: Any) -> Any:
    from torch_mcast._store import rendezvous

    return rendezvous(*args, **kwargs)


def _register_store() -> None:
    from torch.distributed.rendezvous import register_rendezvous_handler

    # torch refuses a second handler for a scheme.
    with contextlib.suppress(RuntimeError):
        register_rendezvous_handler(SCHEME, _rendezvous)


def register() -> None:
    """Makes `"mcast"` a backend of torch.distributed, and registers `engine://` as a rendezvous.

    Importing the package already does this. Further calls have no effect, nor has a call if torch
    has no distributed package.
    """
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
    # A list: torch up to 2.13 would iterate over the characters of a str.
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
    _let_timeouts_through()


def _let_timeouts_through() -> None:
    """Wraps torch's `_set_pg_timeout`, which looks for Gloo's and NCCL's classes and skips all
    other backends, with a warning at most. The wrapper also sets the timeout of our backends."""
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


class _Watch:
    """Finds torch.distributed through the other finders, and registers the backend once the module
    has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with contextlib.suppress(
                Exception
            ):  # `import torch` must not fail; register() reports the reason
                register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_DISTRIBUTED = "torch.distributed"


def register_with_torch() -> None:
    """Registers now if torch.distributed has been imported, else when it is imported. So commands
    that do not need torch do not wait for it, and the doctor can run when torch is broken."""
    if _DISTRIBUTED in sys.modules:
        register()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def replace_cpu_allocator() -> None:
    """Allocates tensors in memory that other processes can map, if the environment asks for it.
    This happens at import, before the model is created. Without an extension module it has no
    effect: creating a group reports the reason."""
    if os.environ.get("MCAST_ENGINE_MEMORY", "").strip().lower() != "map_all":
        return
    from torch_mcast._load import extension

    try:
        extension().replace_cpu_allocator()
    except ImportError:
        return
