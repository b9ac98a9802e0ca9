"""torchtitan's FSDP2 recipe on CPUs, one or two ranks of torchrun: `titan_job.py BACKEND FILE`. Its debug model of
Llama 3, with fewer layers, its parallelization, loss and optimizer; each rank writes FILE.RANK as train.py does, with
its part of each loss."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

# Before its modules copy them: without an accelerator torchtitan assumes CUDA.
import torchtitan.tools.utils as utils

utils.device_type, utils.device_module = "cpu", torch.cpu

from torch.distributed.tensor import distribute_tensor  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: E402
from torchtitan.distributed.utils import clip_grad_norm_  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.models.llama3.parallelize import parallelize_llama  # noqa: E402
from train import report  # noqa: E402

TEXTS, LENGTH, STEPS = 2, 64, 5
PARALLELISM = ParallelismConfig(spmd_backend="partial_dtensor")  # FSDP2 alone


def model(dims: ParallelDims) -> torch.nn.Module:
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:  # FlexAttention has no backward pass on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    with torch.device("meta"):
        llama = spec.model.build()
    parallelize_llama(
        llama,
        parallel_dims=dims,
        training=TrainingConfig(mixed_precision_param="bfloat16", mixed_precision_reduce="float32"),
        parallelism=PARALLELISM,
        compile_config=CompileConfig(),
        ac_config=FullAC.Config(),
        dump_folder="",
    )
    llama.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        llama.init_weights()
        # Its random numbers depend on the number of ranks.
        for parameter in llama.parameters():
            if parameter.ndim > 1:
                whole = torch.randn(parameter.shape, generator=generator) * 0.02
                parameter.copy_(
                    distribute_tensor(whole, parameter.device_mesh, parameter.placements)
                )
    return llama


def train() -> list[float]:
    dims = ParallelDims.from_config(PARALLELISM, dist.get_world_size())
    llama = model(dims)
    optimizers = default_adamw(lr=1e-3).build(model_parts=[llama])
    loss_of = CrossEntropyLoss.Config().build(compile_config=CompileConfig())
    losses = []
    for step in range(STEPS):
        tokens = (torch.arange(LENGTH + 1) * 7 + 100 * torch.arange(TEXTS)[:, None] + step) % 512
        mine = tokens.chunk(dist.get_world_size())[dist.get_rank()]
        loss, _ = loss_of(llama(mine[:, :-1]), mine[:, 1:], TEXTS * LENGTH)
        optimizers.zero_grad()
        loss.backward()
        clip_grad_norm_(list(llama.parameters()), 1.0)
        optimizers.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    backend, file = sys.argv[1:3]
    dist.init_process_group(backend)  # torchtitan takes it over
    report(file, train())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
