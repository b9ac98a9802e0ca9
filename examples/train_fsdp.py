"""Trains a small GPT with FSDP2 on real text on backend "mcast":

    torchrun --standalone --nproc-per-node 4 examples/train_fsdp.py

Every all-gather of weights goes through the multicast engine: a rank sends its shard once, whatever the
number of ranks. At the end, tables compare the bytes that each rank sent with those of a ring and of Gloo,
and show when the two lanes, all-gathers and reductions, were busy in one step.
If all ranks are on one host, they use shared memory instead; MCAST_SHARED_MEMORY=off makes them use the
network path. `--backend gloo` runs the same training for comparison; the losses agree. The script trains on
GPUs if each rank of a host can have one; `--device` overrides this.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import GPT, batch, standard_library_text
from report import report
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from timeline import Step
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--backend", default="mcast", help="backend of torch.distributed [mcast]")
    p.add_argument(
        "--device",
        default="auto",
        choices=["auto", "cpu", "cuda"],
        help="auto: cuda if each rank of a host can have a GPU, else cpu [auto]",
    )
    p.add_argument("--steps", type=int, default=60, metavar="N", help="training steps [60]")
    p.add_argument("--batch", type=int, default=8, metavar="N", help="sequences per rank [8]")
    p.add_argument(
        "--context", type=int, default=128, metavar="BYTES", help="length of a sequence [128]"
    )
    p.add_argument("--width", type=int, default=192, metavar="N", help="width of the model [192]")
    p.add_argument("--layers", type=int, default=4, metavar="N", help="transformer blocks [4]")
    p.add_argument("--heads", type=int, default=6, metavar="N", help="attention heads [6]")
    p.add_argument("--rate", type=float, default=1e-3, help="learning rate [0.001]")
    p.add_argument(
        "--prefetch", type=int, default=1, metavar="N", help="blocks to gather ahead [1]"
    )
    p.add_argument("--bf16", action="store_true", help="send parameters as bfloat16")
    p.add_argument("--faults", default="", help="inject faults, e.g. drop:rate=0.05 (mcast only)")
    p.add_argument(
        "--json", default="", metavar="FILE", help="write losses and statistics to FILE (rank 0)"
    )
    return p.parse_args()


def device_for(asked: str, gpus: int, local_ranks: int) -> str:
    """The type of device to use. NCCL, which reduces CUDA tensors, does not allow two ranks on one GPU."""
    if asked == "auto":
        return "cuda" if gpus >= local_ranks else "cpu"
    return asked


def take_device(asked: str) -> str:
    """Makes this rank's device the current one, and returns its type."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = device_for(asked, torch.cuda.device_count(), here)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return device


def build(args: argparse.Namespace, device: str) -> torch.nn.Module:
    """Returns the model, with every block and the rest sharded over all ranks. Its initial weights are the
    same in each run."""
    torch.manual_seed(0)
    model = GPT(args.width, args.layers, args.heads, args.context)
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if args.bf16
        else MixedPrecisionPolicy()
    )
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    gather_ahead(model, args.prefetch)
    return model


def gather_ahead(model: GPT, count: int) -> None:
    """Makes FSDP2 gather the weights of the next `count` blocks while a block computes. CPU tensors have no
    streams, so without this FSDP2 waits for each all-gather immediately after it has posted it."""
    blocks = list(model.blocks)
    model._set_unshard_async_op(count > 0)
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + count])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - count) : i][::-1])


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)  # per step: mean over all ranks
    steps: list[Step] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.steps[-1].end - self.steps[0].start) / 1e9 if self.steps else 0.0


def train(args: argparse.Namespace, device: str, console: Console) -> Run:
    rank, world = dist.get_rank(), dist.get_world_size()
    text = standard_library_text()
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    run = Run()
    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(),
        console=console,
        disable=rank != 0,
    )
    with progress:
        bar = progress.add_task("training", total=args.steps, loss=float("nan"), speed=0.0)
        for step in range(args.steps):
            inputs, targets = (
                part.to(device) for part in batch(text, step, rank, args.batch, args.context)
            )
            phases = [("forward", time.monotonic_ns())]
            logits = model(inputs)
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            phases.append(("backward", time.monotonic_ns()))
            loss.backward()
            phases.append(("optimizer", time.monotonic_ns()))
            optimizer.step()
            optimizer.zero_grad()
            phases.append(("mean loss", time.monotonic_ns()))
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            run.steps.append(Step(tuple(phases), time.monotonic_ns()))
            run.losses.append(mean.item() / world)
            tokens = (step + 1) * world * args.batch * args.context
            progress.update(bar, advance=1, loss=run.losses[-1], speed=tokens / run.seconds)
    return run


def all_stats() -> list[dict]:
    """Returns torch_mcast.stats() of the default group of all ranks, on every rank."""
    import torch_mcast

    mine = torch_mcast.stats()  # before the call below changes it
    everyone: list[dict] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    options = None
    if args.backend == "mcast":
        # An installed torch_mcast registers itself when torch is imported. The import is needed if this is
        # switched off (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
        import torch_mcast

        options = torch_mcast.Options(faults=args.faults)
    elif args.faults:
        raise SystemExit("--faults needs --backend mcast")
    device = take_device(args.device)
    dist.init_process_group(args.backend, pg_options=options)
    console = Console()
    run = train(args, device, console)
    stats, trace = [], []
    if args.backend == "mcast":
        trace = torch_mcast.trace()
        stats = all_stats()
    if dist.get_rank() == 0:
        console.print(
            f"backend {args.backend}, {dist.get_world_size()} ranks on {device}: loss {run.losses[0]:.4f} -> "
            f"{run.losses[-1]:.4f} in {args.steps} steps, {run.seconds:.1f} s"
        )
        if stats:
            report(stats, trace, run.steps, console)
        if args.json:
            with open(args.json, "w") as out:
                json.dump({"losses": run.losses, "seconds": run.seconds, "stats": stats}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
