"""Adapters of torch_mcast.weights for vLLM and SGLang, with stand-ins of their classes."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist
import weights_stand_ins
from ranks import free_port

from torch_mcast import weights


def state(version: int) -> dict[str, torch.Tensor]:
    return {"a.weight": torch.full((70, 50), float(version)), "b.bias": torch.arange(9) + version}


def same(got: dict[str, torch.Tensor], version: int) -> None:
    assert list(got) == list(state(version))
    assert all(torch.equal(got[name], value) for name, value in state(version).items())


class Client:
    """Stands for vLLM's control plane: passes calls to the workers through the store of the default group."""

    def __init__(self) -> None:
        self.store = dist.distributed_c10d._get_default_store()
        self.count = 0

    def __getattr__(self, name: str) -> object:
        def call(info: dict | None = None) -> None:
            self.count += 1
            self.store.set(f"call{self.count}", repr((name, info)))
            for rank in range(1, dist.get_world_size()):
                self.store.get(f"done{self.count}/{rank}")

        return call


def vllm_worker(adapter, notes: list[str], calls: int) -> dict[str, torch.Tensor]:
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    model = weights_stand_ins.Model()
    # Two replicas of one worker each.
    config = weights_stand_ins.vllm_config(0, 1, rank - 1)
    engine = adapter.McastWeightTransferEngine(None, config, torch.device("cpu"), model)
    with pytest.raises(RuntimeError, match="call init_transfer_engine"):
        engine.update_weights({})
    with pytest.raises(ValueError, match="Invalid init_info"):
        engine.parse_init_info({"port": 1})
    for number in range(1, calls + 1):
        name, info = eval(store.get(f"call{number}"))
        if name == "init_weight_transfer_engine":
            engine.init_transfer_engine(engine.parse_init_info(info))
        else:
            getattr(engine, name)(*([info] if info is not None else []))
        store.set(f"done{number}/{rank}", "")
    engine.shutdown()
    assert notes == ["initialize", "finalize"] * 2
    return model.weights


def vllm(port: int) -> object:
    notes: list[str] = []
    weights_stand_ins.install_vllm(notes)
    from torch_mcast.weights import vllm as adapter

    if dist.get_rank() > 0:
        same(vllm_worker(adapter, notes, 7), 2)
        return None
    source: dict[str, torch.Tensor] = {}

    class Source:
        def __iter__(self) -> object:
            return iter(source.items())

    engine = adapter.McastTrainerWeightTransferEngine.trainer_init(
        adapter.McastTrainerInitInfo("127.0.0.1", port, 3, rank=0), client=Client(), source=Source()
    )
    for version in (1, 2):
        source.update(state(version))
        engine.send_weights()
    engine.shutdown()
    other = adapter.McastTrainerWeightTransferEngine.trainer_init(
        adapter.McastTrainerInitInfo("127.0.0.1", port, 3, rank=1), client=None, source=Source()
    )
    other.send_weights()  # of a rank that is not the sender: it only runs through the source
    return None


def test_vllm_engines(ranks):
    ranks(3, vllm, free_port())


def vllm_by_static_methods(port: int) -> object:
    weights_stand_ins.install_vllm([])
    from torch_mcast.weights import vllm as adapter

    info = adapter.McastWeightTransferInitInfo("127.0.0.1", port, 1, 2)
    kind = adapter.McastWeightTransferEngine
    if dist.get_rank() == 0:
        group = kind.trainer_init(asdict(info))
        for version in (1, 2):
            kind.trainer_send_weights(iter(state(version).items()), {"group": group})
        dist.barrier()
        return None
    loaded: dict[str, torch.Tensor] = {}
    engine = kind(None, weights_stand_ins.vllm_config(0), torch.device("cpu"), None)
    engine.init_transfer_engine(info)
    names = list(state(1))
    engine.receive_weights(adapter.McastWeightTransferUpdateInfo(names=names), loaded.update)
    same(loaded, 1)
    with pytest.raises(ValueError, match="version 2 has other tensors than were announced"):
        engine.receive_weights(
            adapter.McastWeightTransferUpdateInfo(names=names[:1]), loaded.update
        )
    same(loaded, 1)
    dist.barrier()
    return None


def test_vllm_static_methods_and_announced_names(ranks):
    ranks(2, vllm_by_static_methods, free_port())


def sglang(port: int) -> object:
    from torch_mcast.weights import sglang as adapter

    if dist.get_rank() == 0:
        channel = weights.Channel.connect("127.0.0.1", port, 0, 3)
        for version in (1, 2, 3):
            channel.send(state(version))
        dist.barrier()
        return None
    rank, inner = dist.get_rank(), weights_stand_ins.Engine()
    engine = adapter.McastEngine(inner)
    assert engine.flushed == []  # the engine's own attribute
    names, dtypes, shapes = list(state(1)), ["float32", "int64"], [[70, 50], [9]]
    refused = [
        engine.update_weights_from_distributed(names, dtypes, shapes),
        engine.init_weights_update_group("127.0.0.1", port, rank, 3, backend="nccl"),
        engine.init_weights_update_group("127.0.0.1", port, 3, 3),
        engine.destroy_weights_update_group("other"),
    ]
    assert [success for success, _ in refused] == [False] * 4
    assert "call init_weights_update_group() for 'weight_update_group' first" in refused[0][1]
    assert "expected the backend mcast, got 'nccl'" in refused[1][1]
    success, message = engine.init_weights_update_group(
        "127.0.0.1", port, rank_offset=rank, world_size=3, group_name="weight_update_group"
    )
    assert success, message
    assert engine.init_weights_update_group("127.0.0.1", port, rank, 3)[0] is False
    adapter._BATCH, before = 1000, adapter._BATCH
    try:
        assert engine.update_weights_from_distributed(names, dtypes, shapes) == (True, "version 1")
    finally:
        adapter._BATCH = before
    same(inner.weights, 1)
    assert inner.flushed == [False, True]
    success, message = engine.update_weights_from_distributed(
        names, dtypes, shapes, load_format="flattened_bucket"
    )
    assert not success and "flattened_bucket" in message
    success, message = engine.update_weights_from_distributed(names[:1], dtypes, shapes)
    assert not success and "version 2 has other tensors than were announced" in message
    same(inner.weights, 1)
    inner.failure = "out of memory"
    assert engine.update_weights_from_distributed([], [], []) == (False, "out of memory")
    inner.failure = ""
    assert engine.update_weights_from_tensor(list(state(4).items()))[0]
    same(inner.weights, 4)
    assert engine.destroy_weights_update_group() == (True, "left the group")
    dist.barrier()
    return None


def test_sglang_engine(ranks):
    ranks(3, sglang, free_port())
