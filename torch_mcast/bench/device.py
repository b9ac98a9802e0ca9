"""`torch-mcast bench --device cuda`: measures the cost of tensors on a device. Compares operations with the
copies alone, with CPU tensors and with other backends, and runs steps of FSDP2. All that is compared takes
turns in one run. Prints medians with quartiles, in ms, of the slowest rank:

    copies    from and to pinned memory, both at once: the bytes that must cross the bus for the operation
    cpu       the operation on CPU tensors, by mcast
    device    the operation on the device's tensors, by mcast, until the device has finished it
    staged    the same by mcast through pinned memory, if it has other routes
    nccl      the same by NCCL, where each rank has a GPU of its own
    gloo      the same by Gloo (`-`: Gloo has no such operation for the device; the reason is shown)
    call      of "device": how long the post and wait() keep the calling thread
    GB/s      of "device": the size as nccl-tests counts it / time
    route     of "device": how the backend has served it
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import torch_mcast
from torch_mcast._load import extension
from torch_mcast.bench.ops import all_gather_single

OPS = ("all_gather", "broadcast", "reduce_scatter", "all_reduce")
# Names of the operations in stats().
_CALLS = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
_SEQUENCE, _BATCH = 128, 8  # of a training step


def missing(device: str) -> str:
    """Returns why nothing can be measured on this machine, or ""."""
    try:
        module = torch.get_device_module(device)
    except (RuntimeError, AssertionError):
        return f"this torch ({torch.__version__}) has no device type {device!r}"
    if device != "cpu" and not module.is_available():
        return (
            f"no {device} device: torch.{device}.is_available() is False (torch {torch.__version__}); "
            "see nvidia-smi, and whether this torch was built for the device"
        )
    return ""


@dataclass
class Wanted:
    """The requested measurement. sizes: bytes that one rank contributes; for a reduce_scatter,
    bytes that it receives. steps: training steps, 0 for none."""

    device: str
    sizes: list[int]
    ops: tuple[str, ...] = OPS
    rounds: int = 15
    steps: int = 15
    width: int = 768
    layers: int = 6

    def settle(self, device: str) -> None:
        if device != "cpu":
            torch.get_device_module(device).synchronize()


def slowest(seconds: list[float]) -> list[float]:
    """Returns the time of the slowest rank in each round, in ms."""
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    return [1000 * t for t in times.tolist()]


@dataclass
class Timed:
    """One of those that take turns. right: whether the result of the first run is."""

    once: Callable[[], object]
    settle: Callable[[], None]
    right: Callable[[], bool] | None = None
    seconds: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    refused: str = ""
    wrong: bool = False

    def turn(self, keep: bool) -> None:
        if self.refused:
            return
        self.settle()
        dist.barrier()
        if not keep:
            return self._try()
        begin = time.perf_counter()
        self.once()
        called = time.perf_counter()
        self.settle()
        self.calls.append(called - begin)
        self.seconds.append(time.perf_counter() - begin)

    def _try(self) -> None:
        """Runs the call once before the measurement: a backend may lack the operation for the
        device. All ranks agree on the outcome."""
        try:
            self.once()
        except (RuntimeError, NotImplementedError) as error:
            self.refused = str(error).splitlines()[0]
        self.settle()
        wrong = not self.refused and self.right is not None and not self.right()
        self.right = None  # later runs may be in place
        found = torch.tensor([bool(self.refused), wrong], dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        refused, wrong = map(bool, found.tolist())
        self.wrong = self.wrong or wrong
        if refused:
            self.refused = self.refused or "by another rank"


def rounds(those: dict[str, Timed], count: int) -> dict[str, Any]:
    """Returns {name: [first quartile, median, third] in ms, or the reason why not}, with the "call"
    times of "device"."""
    for number in range(-3, count):
        for one in those.values():
            one.turn(keep=number >= 0)
    row: dict[str, Any] = {
        name: one.refused or statistics.quantiles(slowest(one.seconds), n=4)
        for name, one in those.items()
    }
    if "device" in those and not those["device"].refused:
        row["call"] = statistics.quantiles(slowest(those["device"].calls), n=4)
    row["wrong"] = [name for name, one in those.items() if one.wrong]
    return row


def copies(device: str, out: int, back: int) -> Callable[[], object]:
    """Returns a function that copies `out` bytes to host memory and `back` bytes from it; with
    CUDA, the memory is pinned and both copies run at once."""
    pinned = device == "cuda"
    here = [torch.empty(n, dtype=torch.uint8, pin_memory=pinned) for n in (out, back)]
    there = [torch.empty(n, dtype=torch.uint8, device=device) for n in (out, back)]
    if not pinned:
        return lambda: [into.copy_(of) for into, of in ((here[0], there[0]), (there[1], here[1]))]
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def once() -> None:
        with torch.cuda.stream(streams[0]):
            here[0].copy_(there[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            there[1].copy_(here[1], non_blocking=True)

    return once


def operation(
    name: str, size: int, device: str, group: dist.ProcessGroup
) -> tuple[Callable[[], object], Callable[[], bool]]:
    """On float32 tensors: the call, and whether the result of its first run is right."""
    count, world, rank = max(1, size // 4), dist.get_world_size(), dist.get_rank()
    own = torch.full((count,), 1.0 + rank, device=device)
    total = world * (world + 1) / 2

    def equals(tensor: torch.Tensor, value: float) -> bool:
        return bool((tensor.cpu() == value).all().item())

    if name == "broadcast":
        return lambda: dist.broadcast(own, 0, group=group), lambda: equals(own, 1.0)
    if name == "all_reduce":
        return lambda: dist.all_reduce(own, group=group), lambda: equals(own, total)
    all_of_them = torch.full((world * count,), 1.0 + rank, device=device)
    if name == "all_gather":
        expected = torch.arange(1.0, world + 1).repeat_interleave(count)
        return (
            lambda: all_gather_single(all_of_them, own, group=group),
            lambda: torch.equal(all_of_them.cpu(), expected),
        )
    return (
        lambda: dist.reduce_scatter_tensor(own, all_of_them, group=group),
        lambda: equals(own, total),
    )


def crossing(name: str, size: int) -> tuple[int, int]:
    """Bytes from and to the device. Its own block of a gather does not come back, nor does the root's
    tensor of a broadcast."""
    world = dist.get_world_size()
    if name == "broadcast":
        return (size, 0) if dist.get_rank() == 0 else (0, size)
    others = {"all_gather": (size, (world - 1) * size), "all_reduce": (size, size)}
    return others.get(name, (world * size, size))


def whole(name: str, size: int, world: int) -> int:
    """The larger of a rank's input and output, as nccl-tests counts it."""
    return size * world if name in ("all_gather", "reduce_scatter") else size


def route_of(stats: Mapping[str, Any], name: str, fallback: int) -> str:
    """How mcast has served the last call. stats()["device"] has the route if the backend has several.
    `fallback`: calls that the fallback had served before."""
    call = _CALLS.get(name, name)
    routes = stats["device"].get("routes", {})
    if name in routes:
        found = routes[name]
        return str(found["route"] if isinstance(found, Mapping) else found)
    if stats["calls"].get(call, {}).get("fallback", 0) > fallback:
        return f"fallback {stats['fallback'].get('cuda', '')}".strip()
    return "host"


def operations(wanted: Wanted, groups: dict[str, dist.ProcessGroup]) -> list[dict[str, Any]]:
    def there() -> None:
        wanted.settle(wanted.device)

    def timed(name: str, size: int, device: str, group: dist.ProcessGroup) -> Timed:
        once, right = operation(name, size, device, group)
        return Timed(once, there if device == wanted.device else lambda: None, right)

    rows = []
    for name in wanted.ops:
        for size in wanted.sizes:
            those = {
                "copies": Timed(copies(wanted.device, *crossing(name, size)), there),
                "cpu": timed(name, size, "cpu", groups["mcast"]),
                "device": timed(name, size, wanted.device, groups["mcast"]),
            }
            for backend, group in groups.items():
                if backend != "mcast":
                    those[backend] = timed(name, size, wanted.device, group)
            before = torch_mcast.stats(groups["mcast"])["calls"].get(_CALLS.get(name, name))
            row = {"op": name, "bytes": size, **rounds(those, wanted.rounds)}
            if not isinstance(row["device"], str):
                row["gb_s"] = whole(name, size, dist.get_world_size()) / row["device"][1] / 1e6
                stats = torch_mcast.stats(groups["mcast"])
                row["route"] = route_of(stats, name, before["fallback"] if before else 0)
            rows.append(row)
    return rows


def training(wanted: Wanted, groups: dict[str, dist.ProcessGroup]) -> dict[str, Any]:
    """Runs one step of each backend alternately, of the same model with the same batches."""
    steps: dict[str, Timed] = {}
    losses: dict[str, list[torch.Tensor]] = {}
    for backend, group in groups.items():
        torch.manual_seed(0)
        heads = max(1, wanted.width // 64)
        layers = [
            nn.TransformerEncoderLayer(wanted.width, heads, 4 * wanted.width, 0.0, batch_first=True)
            for _ in range(wanted.layers)
        ]
        model = nn.Sequential(*layers).to(wanted.device)
        mesh = DeviceMesh.from_group(group, wanted.device)
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = torch.Generator().manual_seed(dist.get_rank())
        losses[backend] = []

        def step(
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            batches: torch.Generator = batches,
            kept: list[torch.Tensor] = losses[backend],
        ) -> None:
            batch = torch.randn(_BATCH, _SEQUENCE, wanted.width, generator=batches)
            batch = batch.to(wanted.device)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss.detach())

        steps[backend] = Timed(step, lambda: wanted.settle(wanted.device))
    row = {"op": "fsdp2", "weights": wanted.layers * 12 * wanted.width**2}
    row |= rounds(steps, wanted.steps)
    row["last loss"] = {name: kept[-1].item() for name, kept in losses.items() if kept}
    return row


def options_of(
    wanted: Wanted, settings: list[dict[str, Any]], gpus: int, nccl: bool
) -> dict[str, dict[str, Any] | None]:
    """The groups that are compared: options of those of mcast, None for other backends. `gpus`: of this
    host; nccl: whether torch has it."""
    alone: dict[str, Any] = {"fallback": "none"}
    groups: dict[str, dict[str, Any] | None] = {"mcast": alone}
    if any(row["name"] == "route" for row in settings):
        groups["staged"] = {**alone, "route": "all:host"}
    if wanted.device == "cuda" and nccl and gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        groups["nccl"] = None
    return {**groups, "gloo": None}


def make_groups(wanted: Wanted) -> dict[str, dist.ProcessGroup]:
    backend = ",".join(f"{device}:mcast" for device in dict.fromkeys(("cpu", wanted.device)))
    gpus = torch.get_device_module(wanted.device).device_count()
    options = options_of(wanted, extension().settings(), gpus, dist.is_nccl_available())
    return {
        name: dist.new_group(backend=name)
        if own is None
        else dist.new_group(backend=backend, pg_options=torch_mcast.Options(**own))
        for name, own in options.items()
    }


def count_gpus(device: str) -> int:
    """Devices that the ranks of the job use; 0 for the CPU."""
    if device == "cpu":
        return 0
    local = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())))
    each = min(local, torch.get_device_module(device).device_count())
    return max(1, dist.get_world_size() // local) * each


def measure(wanted: Wanted) -> dict[str, Any]:
    """Measures on every rank of the default group, which must be able to reduce CPU tensors. All
    ranks return the same figures."""
    groups = make_groups(wanted)
    rows = operations(wanted, groups)
    stats = torch_mcast.stats(groups["mcast"])
    if wanted.steps:
        rows.append(training(wanted, groups))
    for group in groups.values():
        dist.destroy_process_group(group)
    return {
        "device": wanted.device,
        "world": dist.get_world_size(),
        "gpus": count_gpus(wanted.device),
        "path": stats["path"],
        "transport": stats["transport"],
        "torch": torch.__version__,
        "rows": rows,
    }


def shown(document: dict[str, Any]) -> str:
    """Formats the result for people."""

    def cell(value: Any) -> str:
        if isinstance(value, str):
            return f"- ({value})"
        low, middle, high = value
        return f"{middle:.2f} [{low:.2f} {high:.2f}]"

    lines = []
    for row in document["rows"]:
        size = f"{row['bytes'] / (1 << 20):g} MiB" if "bytes" in row else ""
        if "weights" in row:
            size = f"step, {row['weights'] / 1e6:.0f} million weights"
        columns = ("copies", "cpu", "device", "mcast", "staged", "nccl", "gloo", "call")
        cells = "  ".join(f"{name} {cell(row[name])}" for name in columns if name in row)
        if "route" in row:
            cells += f"  {row['gb_s']:.2f} GB/s  route {row['route']}"
        if row["wrong"]:
            cells += f"  WRONG RESULT: {', '.join(row['wrong'])}"
        losses = "  ".join(f"{name} {loss:.6f}" for name, loss in row.get("last loss", {}).items())
        lines.append(f"{row['op']} {size}: {cells}" + (f"; last loss {losses}" if losses else ""))
    where = f"path: {document['path']}, {document['world']} ranks"
    if document["gpus"]:
        where += f" on {document['gpus']} {document['device']} device(s)"
    return "\n".join([*lines, where])


def main(argv: list[str] | None = None) -> int:
    """Runs as one rank, with the environment that a launcher sets."""
    parser = argparse.ArgumentParser(prog="torch-mcast bench --device", description=__doc__)
    parser.add_argument("wanted", help="fields of Wanted, JSON")
    parser.add_argument("--json", nargs="?", const="-", help="as the command's")
    args = parser.parse_args(argv)
    wanted = Wanted(**json.loads(args.wanted))
    if reason := missing(wanted.device):
        print(f"torch-mcast bench: {reason}", file=sys.stderr)
        return 2
    dist.init_process_group("gloo")
    if wanted.device != "cpu":
        module = torch.get_device_module(wanted.device)
        module.set_device(int(os.environ.get("LOCAL_RANK", "0")) % module.device_count())
    document = measure(wanted)
    if dist.get_rank() == 0:
        if args.json not in (None, "-"):
            Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
        print(json.dumps(document, indent=1) if args.json == "-" else shown(document), flush=True)
    dist.destroy_process_group()
    return 1 if any(row["wrong"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
