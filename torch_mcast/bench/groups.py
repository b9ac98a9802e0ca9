"""Process groups of the measured backends, all in one process. Imports torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _new_group(name: str, variant: str) -> Any:
    if name == "mcast":
        import torch_mcast

        # Settings are read at group creation; an Options field wins over its variable.
        options_type = getattr(torch_mcast, "Options", None) if variant else None
        if options_type is not None:
            return dist.new_group(backend="mcast", pg_options=options_type(algorithm=variant))
        if variant:
            with _environment("MCAST_ALGORITHM", variant):
                return dist.new_group(backend="mcast")
    elif variant:
        raise ValueError(f"{name}:{variant}: only mcast has variants")
    return dist.new_group(backend=name)


class Groups:
    """The groups of one backend: `first` for single operations; for two operations at once
    `second`, another group, since most backends serialize the operations of a group. mcast runs
    both in one group."""

    def __init__(self, spec: str, pair: bool) -> None:
        name, _, variant = spec.partition(":")
        self.spec = spec
        self.first = _new_group(name, variant)
        self.second = self.first if name == "mcast" or not pair else _new_group(name, variant)

    def repairs(self) -> int | None:
        """Chunks placed from a repair so far on this rank; None if the backend has no repairs."""
        if not self.spec.startswith("mcast"):
            return None
        import torch_mcast

        return _sum_counter(torch_mcast.stats(self.first), "repair_chunks_received")


def _sum_counter(tree: Any, name: str) -> int:
    """Sum of every entry `name` in nested dictionaries and lists."""
    if isinstance(tree, dict):
        return sum(
            int(value)
            if key == name and isinstance(value, int | float)
            else _sum_counter(value, name)
            for key, value in tree.items()
        )
    if isinstance(tree, list | tuple):
        return sum(_sum_counter(value, name) for value in tree)
    return 0
