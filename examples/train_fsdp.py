"""Trains a small GPT with FSDP2 on real text over backend "mcast":

    torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py

Every all-gather of weights goes through the multicast engine: a rank puts its shard on the wire once,
whatever the number of ranks. The table at the end shows the bytes beside what a ring would have sent.
Ranks that are all on one host share memory instead; MCAST_SHARED_MEMORY=off keeps them on the network path.
`--backend gloo` runs the same training for comparison; the losses agree.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import GPT, batch, standard_library_text
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--backend", default="mcast", help="mcast, gloo or any other (default: mcast)")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=8, help="sequences per rank")
    p.add_argument("--context", type=int, default=128, help="bytes per sequence")
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    p.add_argument("--bf16", action="store_true", help="bf16 parameters on the wire")
    p.add_argument("--faults", default="", help='inject faults, e.g. "drop:rate=0.05" (mcast only)')
    p.add_argument("--json", default="", help="write losses and statistics to this file (rank 0)")
    return p.parse_args()


def build(args: argparse.Namespace) -> torch.nn.Module:
    """The model with every block and the rest sharded over all ranks; same weights for one seed."""
    torch.manual_seed(0)
    model = GPT(args.width, args.layers, args.heads, args.context)
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if args.bf16
        else MixedPrecisionPolicy()
    )
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def train(args: argparse.Namespace, console: Console) -> tuple[list[float], float]:
    """Returns the mean loss over all ranks at each step, and the seconds that the steps took."""
    rank, world = dist.get_rank(), dist.get_world_size()
    text = standard_library_text()
    model = build(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    losses: list[float] = []
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
        start = time.perf_counter()
        for step in range(args.steps):
            inputs, targets = batch(text, step, rank, args.batch, args.context)
            logits = model(inputs)
            loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / world)
            seconds = time.perf_counter() - start
            tokens = (step + 1) * world * args.batch * args.context
            progress.update(bar, advance=1, loss=losses[-1], speed=tokens / seconds)
    return losses, time.perf_counter() - start


def all_stats() -> list[dict]:
    """torch_mcast.stats() of the default group from every rank, on every rank."""
    import torch_mcast

    mine = torch_mcast.stats()  # before the exchange below adds to it
    everyone: list[dict] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def report(stats: list[dict], console: Console) -> None:
    """What the engine put on the wire, beside a ring's bytes for the same calls."""
    world = len(stats)
    first = stats[0]
    if first["path"] == "shared memory":
        c = first["counters"]
        console.print(
            f"all ranks are on one host: rank 0 copied {c['shm_slot_bytes']:,} bytes into shared memory and "
            f"read {c['shm_direct_bytes']:,} from the others' memory; nothing crossed a network. "
            "MCAST_SHARED_MEMORY=off shows the same training over multicast on loopback."
        )
        return
    table = Table(title=f"path: {first['path']} ({first['reason']})")
    for column in (
        "rank",
        "multicast sent",
        "own shards",
        "sent / shards",
        "a ring would send",
        "repairs sent",
    ):
        table.add_column(column, justify="right")
    for s in stats:
        c = s["counters"]
        own = s["bytes"].get("all_gather_into_tensor", 0) // world
        sent = c["datagram_bytes_sent"]
        table.add_row(
            str(s["rank"]),
            f"{sent:,}",
            f"{own:,}",
            f"{sent / own:.3f}" if own else "-",
            f"{own * (world - 1):,}",  # a ring passes on every block but one
            f"{c['repair_bytes_sent']:,}",
        )
    console.print(table)
    calls = Table(title="calls of rank 0")
    for column in ("operation", "engine", "fallback"):
        calls.add_column(column, justify="left" if column == "operation" else "right")
    for name, n in first["calls"].items():
        calls.add_row(name, str(n["engine"]), str(n["fallback"]))
    console.print(calls)


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    options = None
    if args.backend == "mcast":
        # An installed torch_mcast registers itself when torch is imported; this also serves people
        # who have switched that off (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
        import torch_mcast

        options = torch_mcast.Options(faults=args.faults)
    elif args.faults:
        raise SystemExit("--faults needs --backend mcast")
    dist.init_process_group(args.backend, pg_options=options)
    console = Console()
    losses, seconds = train(args, console)
    stats = all_stats() if args.backend == "mcast" else []
    if dist.get_rank() == 0:
        console.print(
            f"backend {args.backend}, {dist.get_world_size()} ranks: loss {losses[0]:.4f} -> "
            f"{losses[-1]:.4f} in {args.steps} steps, {seconds:.1f} s"
        )
        if stats:
            report(stats, console)
        if args.json:
            with open(args.json, "w") as out:
                json.dump({"losses": losses, "seconds": seconds, "stats": stats}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
