"""Stand-ins of vLLM's and SGLang's classes, with the signatures of vllm/distributed/weight_transfer/base.py and
python/sglang/srt/entrypoints/engine.py."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import torch

TInitInfo = TypeVar("TInitInfo")
TUpdateInfo = TypeVar("TUpdateInfo")


@dataclass
class WeightTransferInitInfo(ABC):  # noqa: B024 - as in vLLM
    pass


@dataclass
class WeightTransferUpdateInfo(ABC):  # noqa: B024 - as in vLLM
    pass


@dataclass
class TrainerInitInfo(WeightTransferInitInfo):
    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class WeightTransferEngine(ABC, Generic[TInitInfo, TUpdateInfo]):
    init_info_cls: type
    update_info_cls: type

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config = vllm_config.parallel_config
        self.model_config = vllm_config.model_config

    def parse_init_info(self, init_dict: dict[str, Any]) -> Any:
        try:
            return self.init_info_cls(**init_dict)
        except TypeError as e:
            raise ValueError(f"Invalid init_info for {type(self).__name__}: {e}") from e

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        try:
            return self.update_info_cls(**update_dict)
        except TypeError as e:
            raise ValueError(f"Invalid update_info for {type(self).__name__}: {e}") from e

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    @abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...

    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None: ...


class TrainerWeightTransferEngine(ABC, Generic[TInitInfo]):
    init_info_cls: type

    def __init__(self, *, client: Any, source: Any, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any) -> Any: ...

    @abstractmethod
    def send_weights(self) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...


def install_vllm(notes: list[str]) -> None:
    """Makes `import vllm...` find these. `notes` gets the calls of the reload functions."""
    base = ModuleType("vllm.distributed.weight_transfer.base")
    for kind in (
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
        TrainerInitInfo,
        WeightTransferEngine,
        TrainerWeightTransferEngine,
    ):
        setattr(base, kind.__name__, kind)
    reload = ModuleType("vllm.model_executor.model_loader.reload")
    reload.initialize_layerwise_reload = lambda model: notes.append("initialize")
    reload.finalize_layerwise_reload = lambda model, config: notes.append("finalize")
    for module in (base, reload):
        parts = module.__name__.split(".")
        for end in range(1, len(parts)):
            name = ".".join(parts[:end])
            sys.modules.setdefault(name, ModuleType(name))
        sys.modules[module.__name__] = module


class Model:
    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def load_weights(self, pairs: Any) -> None:
        self.weights.update({name: tensor.clone() for name, tensor in pairs})


def vllm_config(rank: int, world_size: int = 1, replica: int = 0) -> SimpleNamespace:
    parallel = SimpleNamespace(data_parallel_index=replica, world_size=world_size, rank=rank)
    return SimpleNamespace(parallel_config=parallel, model_config=SimpleNamespace())


class Engine:
    """sglang.Engine."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.flushed: list[bool] = []
        self.failure = ""

    def update_weights_from_tensor(
        self,
        named_tensors: list[tuple[str, torch.Tensor]],
        load_format: str | None = None,
        flush_cache: bool = True,
    ) -> tuple[bool, str]:
        if self.failure:
            return False, self.failure
        self.weights.update(named_tensors)
        self.flushed.append(flush_cache)
        return True, "Success"
