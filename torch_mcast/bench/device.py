"""What tensors on a GPU cost: operations beside the copies alone, CPU tensors and Gloo; steps of FSDP2.

    MCAST_SOCKET_IFNAME==lo GLOO_SOCKET_IFNAME=lo \\
        torchrun --standalone --nproc-per-node 2 benchmarks/device_tensors.py

Ranks may share a GPU: NCCL, which they could not have then, is not asked for. All that is compared takes
turns in one run. Printed are medians with quartiles, in ms, of the slowest rank:

    copies    from and to pinned memory, what has to cross the bus for the operation, both ways at once
    cpu       the operation on CPU tensors, by mcast
    cuda      the operation on CUDA tensors, by mcast, until the device has done it
    gloo      the same by Gloo (`-`: it has no such operation for CUDA, and says why)
    call      of "cuda": how long the post and wait() keep the calling thread
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import torch_mcast

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from gpt import GPT, VOCABULARY

MIB = 1 << 20


def settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def slowest(seconds: list[float]) -> list[float]:
    """Of each round, in ms."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return [1000 * t for t in times.tolist()]


def told(times: list[float]) -> str:
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:.2f} [{low:.2f} {high:.2f}]"


class Timed:
    """One of those that take turns."""

    def __init__(self, once: Callable[[], object], device: str) -> None:
        self.seconds: list[float] = []
        self.calls: list[float] = []
        self.refused = ""
        self._once, self._device = once, device

    def turn(self, keep: bool) -> None:
        if self.refused:
            return
        settle(self._device)
        dist.barrier()
        if not keep:
            return self._try()
        begin = time.perf_counter()
        self._once()
        called = time.perf_counter()
        settle(self._device)
        self.calls.append(called - begin)
        self.seconds.append(time.perf_counter() - begin)

    def _try(self) -> None:
        """Before what counts: a backend may have no such operation for the device. All ranks agree."""
        try:
            self._once()
        except RuntimeError as error:
            self.refused = str(error).splitlines()[0]
        settle(self._device)
        refused = torch.tensor([bool(self.refused)], dtype=torch.int64)
        dist.all_reduce(refused, dist.ReduceOp.MAX)
        if refused.item():
            self.refused = self.refused or "by another rank"

    def line(self, name: str) -> str:
        if self.refused:
            return f"{name} - ({self.refused})"
        return f"{name} {told(slowest(self.seconds))}"


def rounds(those: dict[str, Timed], count: int) -> None:
    for number in range(-3, count):
        for one in those.values():
            one.turn(keep=number >= 0)


def copies(device: str, out: int, back: int) -> Callable[[], object]:
    """`out` bytes to pinned memory and `back` bytes from it, side by side."""
    here = [torch.empty(n, dtype=torch.uint8, pin_memory=device == "cuda") for n in (out, back)]
    there = [torch.empty(n, dtype=torch.uint8, device=device) for n in (out, back)]
    if device != "cuda":
        return lambda: [into.copy_(of) for into, of in ((here[0], there[0]), (there[1], here[1]))]
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def once() -> None:
        with torch.cuda.stream(streams[0]):
            here[0].copy_(there[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            there[1].copy_(here[1], non_blocking=True)

    return once


def operation(name: str, size: int, device: str, group: dist.ProcessGroup) -> Callable[[], object]:
    """On float32 tensors. `size`: bytes that one rank brings, of a reduce_scatter what it gets."""
    count, world = size // 4, dist.get_world_size()
    one = torch.full((count,), 1.0 + dist.get_rank(), device=device)
    if name == "all_reduce":
        return lambda: dist.all_reduce(one, group=group)
    all_of_them = torch.ones(world * count, device=device)
    if name == "all_gather":
        return lambda: dist.all_gather_into_tensor(all_of_them, one, group=group)
    return lambda: dist.reduce_scatter_tensor(one, all_of_them, group=group)


def crossing(name: str, size: int) -> tuple[int, int]:
    """Bytes from and to the device. Its own block of a gather does not come back."""
    world = dist.get_world_size()
    others = {"all_gather": (size, (world - 1) * size), "all_reduce": (size, size)}
    return others.get(name, (world * size, size))


def operations(args: argparse.Namespace, groups: dict[str, dist.ProcessGroup]) -> None:
    for name in ("all_gather", "reduce_scatter", "all_reduce"):
        for mib in args.mib:
            size = int(mib * MIB)
            those = {
                "copies": Timed(copies(args.device, *crossing(name, size)), args.device),
                "cpu": Timed(operation(name, size, "cpu", groups["mcast"]), "cpu"),
                "cuda": Timed(operation(name, size, args.device, groups["mcast"]), args.device),
                "gloo": Timed(operation(name, size, args.device, groups["gloo"]), args.device),
            }
            rounds(those, args.rounds)
            line = "  ".join(one.line(key) for key, one in those.items())
            if not those["cuda"].refused:
                line += f"  call {told(slowest(those['cuda'].calls))}"
            if dist.get_rank() == 0:
                print(f"{name} {mib:g} MiB: {line}", flush=True)


def training(args: argparse.Namespace, groups: dict[str, dist.ProcessGroup]) -> None:
    """A step each in turn, of the same model with the same batches."""
    steps, losses = {}, {}
    for backend, group in groups.items():
        torch.manual_seed(0)
        model = GPT(args.width, args.layers, args.width // 64, 128).to(args.device)
        mesh = DeviceMesh.from_group(group, args.device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = torch.Generator().manual_seed(dist.get_rank())
        losses[backend] = []

        def step(model=model, optimizer=optimizer, batches=batches, kept=losses[backend]) -> None:
            ids = torch.randint(VOCABULARY, (8, 129), generator=batches).to(args.device)
            logits = model(ids[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss.detach())

        steps[backend] = Timed(step, args.device)
    rounds(steps, args.steps)
    line = "  ".join(one.line(backend) for backend, one in steps.items())
    last = "  ".join(f"{backend} {kept[-1].item():.6f}" for backend, kept in losses.items() if kept)
    if dist.get_rank() == 0:
        weights = args.layers * 12 * args.width**2 / 1e6
        print(f"FSDP2 step, {weights:.0f} million weights: {line}; last loss {last}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--mib", type=float, nargs="+", default=[0.0625, 1, 8, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    if args.device == "cuda":
        torch.cuda.set_device(0)
    alone = torch_mcast.Options(fallback="none")
    groups = {
        "mcast": dist.new_group(backend="cpu:mcast,cuda:mcast", pg_options=alone),
        "gloo": dist.new_group(backend="gloo"),
    }
    operations(args, groups)
    path = torch_mcast.stats(groups["mcast"])["path"]
    if dist.get_rank() == 0:
        print(f"path: {path}", flush=True)
    training(args, groups)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
