"""Weight transfer engine for vLLM: `WeightTransferConfig(backend="mcast")`.

    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    WeightTransferEngineFactory.register_engine(
        "mcast", "torch_mcast.weights.vllm", "McastWeightTransferEngine"
    )

The signatures are those of vLLM's base classes WeightTransferEngine and TrainerWeightTransferEngine
(vllm/distributed/weight_transfer/base.py) and the fields those of its NCCL engine (nccl_engine.py,
nccl_common.py, in the same folder), so a script changes the name of the backend. Tested with stand-ins of
these classes, not with vLLM itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from torch_mcast.weights._channel import Channel

LoadWeights = Callable[[list[tuple[str, torch.Tensor]]], Any]


@dataclass
class McastWeightTransferInitInfo(WeightTransferInitInfo):
    """As NCCLWeightTransferInitInfo: where the trainer's rank 0 is, and which ranks the workers have."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class McastWeightTransferUpdateInfo(WeightTransferUpdateInfo):
    """As NCCLWeightTransferUpdateInfo. All fields may be empty, since names, dtypes and shapes travel with
    the version. If names are given, the version must have exactly these."""

    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


@dataclass
class McastTrainerInitInfo(TrainerInitInfo):
    """As NCCLTrainerInitInfo. `world_size` counts the sender and all workers."""

    master_address: str
    master_port: int
    world_size: int


class McastWeightTransferEngine(WeightTransferEngine):
    """Worker's side. Constructor arguments are those of the base class of the vLLM that is installed."""

    init_info_cls = McastWeightTransferInitInfo
    update_info_cls = McastWeightTransferUpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel: Channel | None = None

    def init_transfer_engine(self, init_info: McastWeightTransferInitInfo) -> None:
        """Connects to the trainer. The rank counts the workers of all data-parallel replicas."""
        parallel = self.parallel_config
        rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._channel = Channel.connect(
            init_info.master_address,
            init_info.master_port,
            rank + init_info.rank_offset,
            init_info.world_size,
        )

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(
        self, update_info: McastWeightTransferUpdateInfo, load_weights: LoadWeights | None = None
    ) -> None:
        """Receives a version and loads it. Nothing is loaded before the whole version was verified.

        Args:
            update_info: What the trainer has announced.
            load_weights: Loads some of the weights: an argument in older releases of vLLM. None: the model's.

        Raises:
            RuntimeError: `init_transfer_engine()` was not called; WeightsError: see `Channel.receive()`.
            ValueError: The version has other tensors than `update_info`.
        """
        if self._channel is None:
            raise RuntimeError("weights: call init_transfer_engine() first")
        pairs = list(self._channel.receive())
        names = [name for name, _ in pairs]
        if update_info.names and names != update_info.names:
            other = sorted(set(names) ^ set(update_info.names))
            raise ValueError(
                f"weights: version {self._channel.version} has other tensors than were announced: "
                f"{', '.join(other[:5]) or 'their order differs'}"
            )
        load = load_weights or self.model.load_weights
        for name, tensor in pairs:
            load([(name, tensor.to(self.device))])

    def shutdown(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @staticmethod
    def trainer_init(init_info: McastWeightTransferInitInfo | dict[str, Any]) -> Channel:
        """Returns the sender's channel, for trainers that call these static methods."""
        info = init_info if isinstance(init_info, dict) else asdict(init_info)
        return Channel.connect(info["master_address"], info["master_port"], 0, info["world_size"])

    @staticmethod
    def trainer_send_weights(
        iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: dict[str, Any]
    ) -> None:
        """Sends a version. `trainer_args["group"]` is what `trainer_init()` has returned."""
        trainer_args["group"].send(iterator)


class McastTrainerWeightTransferEngine(TrainerWeightTransferEngine):
    """Trainer's side: the sender (rank 0) drives vLLM through `client` and sends the weights of `source`."""

    init_info_cls = McastTrainerInitInfo

    def __init__(self, *, client: Any, source: Any, is_sender: bool = True) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._channel: Channel | None = None

    @classmethod
    def trainer_init(
        cls, init_info: McastTrainerInitInfo, *, client: Any, source: Any
    ) -> McastTrainerWeightTransferEngine:
        """Connects the workers, which are ranks 1 and up, with the sender. Called on all ranks of the
        trainer."""
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            workers = McastWeightTransferInitInfo(
                init_info.master_address, init_info.master_port, 1, init_info.world_size
            )
            # The workers return once they have reached the store that the sender keeps.
            with ThreadPoolExecutor(max_workers=1) as pool:
                done = pool.submit(client.init_weight_transfer_engine, asdict(workers))
                engine._channel = McastWeightTransferEngine.trainer_init(workers)
                done.result()
        return engine

    def send_weights(self) -> None:
        """Sends a version, and returns when the workers have loaded it. Called on all ranks of the
        trainer."""
        if self._channel is None:
            for _ in self.source:  # the gather of each tensor is a collective
                pass
            return
        self.client.start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as pool:
            done = pool.submit(self.client.update_weights, asdict(McastWeightTransferUpdateInfo()))
            self._channel.send(iter(self.source))
            done.result()
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
