"""Two ranks of torchrun train with a framework over one backend: `train.py FRAMEWORK BACKEND FILE`.

Each rank writes its losses, as text that keeps every bit, and the calls of its groups to FILE.RANK.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

SAMPLES, WIDTH, BATCH, EPOCHS, RATE = 64, 32, 8, 2, 0.05


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def lightning(backend: str) -> list[float]:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses = network(), []

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.trainer.model.parameters(), lr=RATE)

    module = Module()
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=backend), max_epochs=EPOCHS,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, DataLoader(data(), batch_size=BATCH))  # fmt: skip
    return module.losses


def accelerate(backend: str) -> list[float]:
    from accelerate import Accelerator

    dist.init_process_group(
        backend
    )  # on CPUs it takes Gloo or MPI by default, whatever backend is requested
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=RATE), DataLoader(data(), batch_size=BATCH)
    )
    losses = []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses += accelerator.gather(loss.detach()).tolist()
    return losses


class Tokens(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.arange(index, index + 16) % 61
        return {"input_ids": tokens, "labels": tokens}


def transformers(backend: str) -> list[float]:
    import transformers

    dist.init_process_group(backend)  # accelerate, which it uses, does the same
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        transformers.TrainingArguments(
            output_dir=f"{sys.argv[3]}.out", use_cpu=True, seed=1, report_to=[],
            num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, logging_steps=1,
            save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Tokens(),
    )  # fmt: skip
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def deepspeed(backend: str, stage: int) -> list[float]:
    dist.init_process_group(
        backend
    )  # which it takes over; by default it takes Gloo or oneCCL on CPUs
    import deepspeed

    model = network()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": RATE, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        },
    )  # fmt: skip
    losses = []
    loader = DataLoader(data(), batch_size=BATCH, sampler=DistributedSampler(data(), shuffle=False))
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(engine(inputs), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


FRAMEWORKS: dict[str, Callable[[str], list[float]]] = {
    "lightning": lightning,
    "accelerate": accelerate,
    "transformers": transformers,
    "deepspeed-zero1": partial(deepspeed, stage=1),
    "deepspeed-zero3": partial(deepspeed, stage=3),
}


def calls() -> dict[str, Any]:
    import torch_mcast

    # Frameworks make groups of their own, torchtitan some of torch's fake backend for one rank.
    ours = [
        group for group in dist.distributed_c10d._world.pg_map if dist.get_backend(group) == "mcast"
    ]
    every = [torch_mcast.stats(group)["calls"] for group in ours]
    return {name: count for served in every for name, count in served.items() if count["engine"]}


def report(file: str, losses: list[float]) -> None:
    """Writes what this rank has to say, while its groups exist."""
    used = dist.get_backend()
    told = {
        "backend": used,
        "losses": [loss.hex() for loss in losses],
        "calls": calls() if used == "mcast" else {},
    }
    Path(f"{file}.{dist.get_rank()}").write_text(json.dumps(told))


def main() -> None:
    framework, backend, file = sys.argv[1:4]
    report(file, FRAMEWORKS[framework](backend))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
