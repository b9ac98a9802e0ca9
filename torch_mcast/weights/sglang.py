"""Weights for SGLang: an engine whose updates come over a channel.

    engine = McastEngine(sglang.Engine(model_path=...))       # beside the engine of each inference host
    engine.init_weights_update_group("trainer", 29600, rank_offset=1 + host, world_size=1 + hosts, ...)
    engine.update_weights_from_distributed(names, dtypes, shapes)    # while the trainer calls channel.send()

The methods have the signatures of SGLang's Engine (python/sglang/srt/entrypoints/engine.py) and what they
return is that of its ModelRunner (python/sglang/srt/model_executor/model_runner.py): success and a message.
Tested with a stand-in of the engine, not with SGLang itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_mcast.weights._channel import Channel
from torch_mcast.weights._errors import WeightsError

_BATCH = 256 << 20  # bytes of tensors in one call of update_weights_from_tensor()


class McastEngine:
    """Wraps an engine. All other attributes are the engine's.

    Args:
        engine: An `sglang.Engine`, or anything with its `update_weights_from_tensor()`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._channels: dict[str, Channel] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def init_weights_update_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str = "weight_update_group",
        backend: str = "mcast",
    ) -> tuple[bool, str]:
        """Connects to the trainer, which calls `Channel.connect(master_address, master_port, 0, world_size)`.

        One process per engine is a worker: it has rank `rank_offset`, and the engine hands the tensors to its
        tensor-parallel ranks.
        """
        if backend != "mcast":
            return False, f"weights: expected the backend mcast, got {backend!r}"
        if group_name in self._channels:
            return False, f"weights: there is a group named {group_name!r} already"
        try:
            channel = Channel.connect(master_address, master_port, rank_offset, world_size)
        except (RuntimeError, ValueError) as error:
            return False, f"weights: cannot connect to {master_address}:{master_port}: {error}"
        self._channels[group_name] = channel
        return True, "connected to the trainer"

    def destroy_weights_update_group(
        self, group_name: str = "weight_update_group"
    ) -> tuple[bool, str]:
        channel = self._channels.pop(group_name, None)
        if channel is None:
            return False, f"weights: there is no group named {group_name!r}"
        channel.close()
        return True, "left the group"

    def update_weights_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        group_name: str = "weight_update_group",
        flush_cache: bool = True,
        load_format: str | None = None,
    ) -> tuple[bool, str]:
        """Receives a version, and loads it by `update_weights_from_tensor()`.

        Nothing is loaded before the whole version was verified, so `success` is false with the old weights
        in place, unless the engine fails while it loads.

        Args:
            names: Names of the version's tensors, in the sender's order. Empty: whatever the version has.
            dtypes: Not used: dtypes and shapes travel with the version.
            shapes: Not used.
            group_name: As of `init_weights_update_group()`.
            flush_cache: Whether the engine drops its cache of keys and values after the last tensor.
            load_format: Passed to the engine. "flattened_bucket" is not served.
        """
        channel = self._channels.get(group_name)
        if channel is None:
            return False, f"weights: call init_weights_update_group() for {group_name!r} first"
        if load_format == "flattened_bucket":
            return False, "weights: load_format 'flattened_bucket' is not supported; leave it out"
        try:
            pairs = list(channel.receive())
        except WeightsError as error:
            return False, str(error)
        if names and [name for name, _ in pairs] != list(names):
            return (
                False,
                f"weights: version {channel.version} has other tensors than were announced",
            )
        batches: list[list[tuple[str, torch.Tensor]]] = [[]]
        size = 0
        for name, tensor in pairs:
            if batches[-1] and size + tensor.nbytes > _BATCH:
                batches.append([])
                size = 0
            batches[-1].append((name, tensor))
            size += tensor.nbytes
        for number, batch in enumerate(batches, 1):
            # Copies: the engine pickles tensors, and a view is pickled with all of its memory.
            success, message = self.update_weights_from_tensor(
                [(name, tensor.clone()) for name, tensor in batch],
                load_format,
                flush_cache and number == len(batches),
            )
            if not success:
                return False, message
        return True, f"version {channel.version}"

    def update_weights_from_tensor(
        self,
        named_tensors: list[tuple[str, torch.Tensor]],
        load_format: str | None = None,
        flush_cache: bool = True,
    ) -> tuple[bool, str]:
        """Loads tensors of this process: the engine's own method."""
        result = self._engine.update_weights_from_tensor(
            named_tensors, load_format=load_format, flush_cache=flush_cache
        )
        success, message = (
            (result.success, result.message) if hasattr(result, "success") else result
        )
        return bool(success), str(message)
