"""Megatron-core on CPUs, two ranks of torchrun: `megatron_job.py BACKEND FILE`. A GPT whose layers are split over the
ranks, and Megatron's groups for CPU tensors; each rank writes FILE.RANK as train.py does, with these groups' calls."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from train import calls

import torch_mcast

LENGTH, WORDS, STEPS = 16, 64, 6


def groups_on(backend: str) -> None:
    """Megatron's groups for CPU tensors are of Gloo; this has `backend` make them."""
    create = parallel_state.create_group

    def create_group(*words: Any, backend: str | None = None, **more: Any) -> Any:
        return create(*words, backend=own if backend == "gloo" else backend, **more)

    own = backend
    parallel_state.create_group = create_group


def model() -> Any:
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, attention_dropout=0.0,
        hidden_dropout=0.0, pipeline_dtype=torch.float32, tensor_model_parallel_size=2,
        bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
    )  # fmt: skip
    return GPTModel(
        config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH
    )


def train() -> list[float]:
    torch.manual_seed(3)
    torch.cuda.current_device = partial(torch.device, "cpu")  # type: ignore[assignment]
    tensor_parallel.random.initialize_rng_tracker(
        inference_rng_tracker=True
    )  # draws nothing from a GPU's generator
    gpt = model()
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.1)
    places = torch.arange(LENGTH).expand(4, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    losses = []
    for step in range(STEPS):
        tokens = (torch.arange(LENGTH) + torch.arange(4)[:, None] + step) % WORDS
        loss = gpt(tokens, places, mask, labels=(tokens + 1) % WORDS).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    backend, file = sys.argv[1:3]
    dist.init_process_group(backend)
    groups_on(backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    losses = train()
    parallel_state.destroy_model_parallel()
    # Of both ranks: the optimizer's states and checkpoints go through it.
    parallel_state.initialize_model_parallel()
    cpu = parallel_state.get_data_parallel_group_gloo()
    gathered: list[Any] = [None] * 2
    dist.all_gather_object(gathered, losses, group=cpu)
    told = {
        "backend": dist.get_backend(cpu),
        "losses": [loss.hex() for loss in losses],
        "both": [[loss.hex() for loss in row] for row in gathered],
        "calls": calls() if backend == "mcast" else {},
        "cpu": torch_mcast.stats(cpu)["calls"] if backend == "mcast" else {},
    }
    Path(f"{file}.{dist.get_rank()}").write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
