"""Process groups of the measured backends, all in one process. Imports torch."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from torch_mcast.bench.plan import variant_settings

# PyTorch's backend whose operations end at once and move no data.
SILENT = "fake"


def _new_group(name: str, variant: str) -> Any:
    if name == SILENT:
        # This import registers the backend.
        import torch.testing._internal.distributed.fake_pg  # noqa: F401

    if not variant:
        return dist.new_group(backend=name)
    import torch_mcast

    settings: dict[str, Any] = variant_settings(
        f"{name}:{variant}", os.environ.get("MCAST_AGGREGATORS", "")
    )
    return dist.new_group(backend=name, pg_options=torch_mcast.Options(**settings))


class Groups:
    """The groups of one backend. `first` runs single operations. `second` runs the other one of two
    operations at once, since most backends serialize the operations of a group; mcast runs both in
    one group."""

    def __init__(self, spec: str, pair: bool) -> None:
        name, _, variant = spec.partition(":")
        self.spec = spec
        self.first = _new_group(name, variant)
        self.second = self.first if name == "mcast" or not pair else _new_group(name, variant)

        self._mcast = name == "mcast"

    def repairs(self) -> int | None:
        """Returns the number of chunks placed from a repair so far on this rank; None if the
        backend has no repairs."""
        if not self._mcast:
            return None
        import torch_mcast

        return torch_mcast.stats(self.first)["counters"].get("repair_chunks_received", 0)

    def path(self) -> str | None:
        """Returns how mcast moves data in this group: "multicast", "ring" or "local"; None for
        other backends."""
        if not self._mcast:
            return None
        import torch_mcast

        return torch_mcast.stats(self.first)["path"]
