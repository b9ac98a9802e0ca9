"""Sends the weights of a model from one host to all others, without a training loop:

    torchrun --nnodes 8 --nproc-per-node 1 ... examples/broadcast_weights.py \\
        --checkpoint model.pt --save /models
    torch-mcast lab run --hosts 8 --rate 1gbit -- python examples/broadcast_weights.py --synthetic 256M

Typical uses are an inference fleet that gets a new version, or a learner that sends weights to its actors.
Rank 0 maps the state_dict from disk or generates one. The other ranks end with the same state_dict in memory
and, with --save, on disk. Tensors are packed into buckets. While one bucket is on the wire, the next one is
read, and the one before is stored. --compare gloo sends everything again with Gloo and prints both times.
"""

import argparse
import hashlib
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

ALIGN = 64  # bytes: alignment of tensors in a bucket
DEPTH = 3  # buckets in flight


@dataclass
class Entry:
    """Position of a tensor in the buckets."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bucket: int
    offset: int
    nbytes: int


def parse_size(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--checkpoint", metavar="FILE", help="state_dict saved by torch.save, on rank 0's host"
    )
    source.add_argument(
        "--synthetic", type=parse_size, metavar="BYTES", help="generate random weights: 256M, 4G"
    )
    p.add_argument("--save", default="", metavar="DIR", help="folder for weights.pt of other ranks")
    p.add_argument("--backend", default="mcast", help="backend of torch.distributed [mcast]")
    p.add_argument(
        "--compare", default="", metavar="BACKEND", help="send again with this backend, compare"
    )
    p.add_argument(
        "--bucket", type=parse_size, default=32 << 20, metavar="BYTES", help="bucket size [32M]"
    )
    p.add_argument(
        "--verify", action="store_true", help="compare digests of all buckets at the end"
    )
    p.add_argument(
        "--timeout", type=float, default=600, metavar="SECONDS", help="limit of the groups [600]"
    )
    return p.parse_args()


def synthetic(total: int) -> dict[str, torch.Tensor]:
    """Generates tensors with shapes like a transformer's: large matrices, small vectors."""
    state: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    layer = 0
    while total > 0:
        for name, shape in (("attention", (1024, 3072)), ("norm", (1024,)), ("mlp", (4096, 1024))):
            rows = min(shape[0], max(1, total // (2 * shape[-1]))) if len(shape) > 1 else shape[0]
            shape = (rows, *shape[1:])
            bits = torch.randint(0, 1 << 15, shape, dtype=torch.int16, generator=generator)
            state[f"layers.{layer}.{name}.weight"] = bits.view(torch.bfloat16)
            total -= bits.nbytes
            if total <= 0:
                break
        layer += 1
    return state


def load(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    if args.synthetic:
        return synthetic(args.synthetic)
    state = torch.load(args.checkpoint, map_location="cpu", mmap=True, weights_only=True)
    wrong = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise SystemExit(f"{args.checkpoint}: {wrong[0]!r} is no tensor; save model.state_dict()")
    return state


def layout(state: dict[str, torch.Tensor], bucket_bytes: int) -> list[Entry]:
    """Assigns tensors to buckets in order, as many per bucket as fit. A larger tensor gets its own bucket."""
    entries, bucket, offset = [], 0, 0
    for name, tensor in state.items():
        nbytes = tensor.numel() * tensor.element_size()
        if offset and offset + nbytes > bucket_bytes:
            bucket, offset = bucket + 1, 0
        entries.append(Entry(name, tuple(tensor.shape), tensor.dtype, bucket, offset, nbytes))
        offset += -(-nbytes // ALIGN) * ALIGN
    return entries


def bucket_sizes(entries: list[Entry]) -> list[int]:
    sizes = [0] * (entries[-1].bucket + 1 if entries else 0)
    for e in entries:
        sizes[e.bucket] = max(sizes[e.bucket], e.offset + -(-e.nbytes // ALIGN) * ALIGN)
    return sizes


def packed(state: dict[str, torch.Tensor], entries: list[Entry]) -> Iterator[torch.Tensor]:
    """Yields the buckets of rank 0. A thread reads ahead, so that disk and network work at the same time."""
    ready: queue.Queue = queue.Queue(maxsize=DEPTH)
    sizes = bucket_sizes(entries)

    def read() -> None:
        try:
            at = 0
            for number, size in enumerate(sizes):
                bucket = torch.zeros(size, dtype=torch.uint8)
                while at < len(entries) and entries[at].bucket == number:
                    e = entries[at]
                    source = state[e.name].contiguous().view(-1).view(torch.uint8)
                    bucket[e.offset : e.offset + e.nbytes].copy_(source)
                    at += 1
                ready.put(bucket)
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # raised again by the loop below
            ready.put(error)

    threading.Thread(target=read, daemon=True).start()
    for _ in sizes:
        bucket = ready.get()
        if isinstance(bucket, BaseException):
            raise bucket
        yield bucket


def transfer(
    state: dict[str, torch.Tensor] | None,
    entries: list[Entry],
    group: dist.ProcessGroup,
    progress: Progress,
    label: str,
    verify: bool,
) -> tuple[dict[str, torch.Tensor], list[str], float]:
    """Returns the state_dict on this rank, digests of its buckets, and the seconds that the transfer took."""
    sizes = bucket_sizes(entries)
    bar = progress.add_task(label, total=sum(sizes))
    dist.barrier(group=group)
    start = time.perf_counter()
    source = packed(state, entries) if state is not None else None
    buckets: list[torch.Tensor] = []
    works: list[dist.Work] = []
    digests: list[str] = []

    def finish() -> None:
        number = len(works) - pending
        works[number].wait()
        if verify:
            digests.append(hashlib.blake2b(buckets[number].numpy(), digest_size=16).hexdigest())
        if state is not None:
            buckets[number] = torch.empty(0)  # sent: release its memory for the next ones
        progress.update(bar, advance=sizes[number])

    pending = 0
    for size in sizes:
        bucket = next(source) if source is not None else torch.empty(size, dtype=torch.uint8)
        buckets.append(bucket)
        works.append(dist.broadcast(bucket, 0, group=group, async_op=True))
        pending += 1
        if pending == DEPTH:
            finish()
            pending -= 1
    while pending:
        finish()
        pending -= 1
    dist.barrier(group=group)
    seconds = time.perf_counter() - start
    if state is not None:
        return state, digests, seconds
    # Views of the buckets, to avoid another copy.
    views = {
        e.name: buckets[e.bucket][e.offset : e.offset + e.nbytes].view(e.dtype).view(e.shape)
        for e in entries
    }
    return views, digests, seconds


def main() -> None:
    args = arguments()
    limit = timedelta(seconds=args.timeout)
    if "mcast" in (args.backend, args.compare):
        import torch_mcast  # noqa: F401  (registers mcast; an installed one does so by itself)
    dist.init_process_group(args.backend, timeout=limit)
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {args.backend: dist.group.WORLD}
    if args.compare:
        groups[args.compare] = dist.new_group(backend=args.compare, timeout=limit)
    console = Console()
    state = load(args) if rank == 0 else None
    box = [layout(state, args.bucket) if state is not None else None]
    dist.broadcast_object_list(box, 0)
    entries: list[Entry] = box[0] or []
    total = sum(e.nbytes for e in entries)
    seconds: dict[str, float] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, disable=rank != 0) as progress:
        for name, group in groups.items():
            result, digests, seconds[name] = transfer(
                state, entries, group, progress, f"{name} to {world - 1} ranks", args.verify
            )
            if args.verify:
                everyone: list = [None] * world
                dist.all_gather_object(everyone, digests)
                wrong = [r for r, theirs in enumerate(everyone) if theirs != everyone[0]]
                if wrong:
                    raise SystemExit(f"{name}: ranks {wrong} received something else")
    if args.save and rank != 0:
        os.makedirs(args.save, exist_ok=True)
        path = os.path.join(args.save, "weights.pt")
        # Copy the views: torch.save() writes the whole bucket of a view, and allows one type per storage.
        own = {name: value.clone() for name, value in result.items()}
        torch.save(own, f"{path}.part{rank}")
        os.replace(f"{path}.part{rank}", path)
    if rank == 0:
        for name, took in seconds.items():
            text = f"{name}: {total:,} bytes, {len(entries)} tensors, to {world - 1} ranks in {took:.2f} s"
            console.print(f"{text}, {total / max(took, 1e-9) / 1e9:.3f} GB/s", highlight=False)
        if args.verify:
            console.print("verified: all ranks have the same bytes")
        if args.compare:
            ratio = seconds[args.compare] / seconds[args.backend]
            console.print(f"{args.backend} took 1/{ratio:.2f} of the time of {args.compare}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
