"""Registration with torch.distributed: a name and a function that loads the rest when it is called."""

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

    # torch refuses a second handler of a scheme.
    with contextlib.suppress(RuntimeError):
        register_rendezvous_handler(SCHEME, _rendezvous)


def register() -> None:
    """Makes `"mcast"` a backend of torch.distributed, and registers `engine://` as a rendezvous.

    Importing the package does this already. Further calls do nothing; nor does a call where torch has no
    distributed package.
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


class _Watch:
    """A finder of modules that finds torch.distributed as the others do, and registers once it has been
    executed."""

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
            ):  # `import torch` must not fail; register() says why
                register()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_DISTRIBUTED = "torch.distributed"


def register_with_torch() -> None:
    """Registers now if torch.distributed is there already, else when it is imported. So a command that
    needs no torch does not wait for it, and the one that says what is wrong with torch can run."""
    if _DISTRIBUTED in sys.modules:
        register()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def replace_cpu_allocator() -> None:
    """Where the environment says so, tensors that are made from now on lie where others map them: before
    the model is made, so at the import. Without an extension module nothing happens: groups say why."""
    if os.environ.get("MCAST_ENGINE_MEMORY", "").strip().lower() != "map_all":
        return
    from torch_mcast._load import extension

    try:
        extension().replace_cpu_allocator()
    except ImportError:
        return
