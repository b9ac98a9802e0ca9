"""Measures how the death of a large job affects another job at the same engine of the host.

    python benchmarks/engine_neighbour.py --size 8 --kills 10

One job of two ranks runs all_reduces without pause. Beside it, another job of two ranks is started
repeatedly. It fills tensors of --size GiB that the engine maps (MCAST_ENGINE_MEMORY=map), makes the
engine read and write each page of them by broadcasts, and is killed while it does nothing. The
script prints the times of the first job's operations alone, while the other job fills its memory,
and after each kill: all operations, and the longest one of each window, with quartiles. There are as
many windows alone as after kills, and they are equally long. Exit code 1: the longest operation
after a kill took longer than the longest one alone by more than --bound. With --apart the other job
does not use the engine, which shows the cost of its CPU time and memory only.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterable
from pathlib import Path

RANKS = 2
TENSOR = 64 << 20  # bytes
Window = tuple[float, float]  # time.monotonic() at its begin and end


def join(rank: int, store: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("mcast", init_method=f"file://{store}", rank=rank, world_size=RANKS)


def steady(rank: int, store: str, size: int) -> None:
    """Runs operations until standard input ends at rank 0, which then writes when each began and ended."""
    import select

    import torch
    import torch.distributed as dist

    join(rank, store)
    values = torch.zeros(size // 4)
    times = array("d")
    while values[0] == 0:  # the sum of all ranks' first values
        if rank == 0 and select.select([sys.stdin], [], [], 0)[0]:
            values[0] = 1
        begin = time.monotonic()
        dist.all_reduce(values)
        times.extend((begin, time.monotonic()))
    if rank == 0:
        Path(f"{store}.times").write_bytes(times.tobytes())
    dist.destroy_process_group()


def large(rank: int, store: str, size: int) -> None:
    """Puts `size` bytes into tensors of this rank; prints "ready" when the engine has touched all
    of them."""
    import torch
    import torch.distributed as dist

    join(rank, store)
    tensors = [torch.full((TENSOR // 4,), float(rank)) for _ in range(max(1, size // TENSOR))]
    for number, tensor in enumerate(tensors):
        dist.broadcast(tensor, number % RANKS)
    dist.barrier()
    print("ready", flush=True)
    signal.pause()


class Job:
    """Ranks of one of the roles above; rank 0's standard output and input are pipes."""

    def __init__(self, role: str, store: Path, size: int, engine: str, memory: str) -> None:
        environment = {
            **os.environ,
            "MCAST_ENGINE": engine,
            "MCAST_ENGINE_MEMORY": memory,
        }
        environment |= {"OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--role", role, str(rank), str(store), str(size)],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(RANKS)
        ]  # fmt: skip

    def ready(self) -> None:
        for rank in self.ranks:
            assert rank.stdout is not None
            if rank.stdout.readline() != "ready\n":
                sys.exit("the large job has failed")

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
        for rank in self.ranks:
            rank.wait()

    def end(self) -> None:
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        if any(rank.wait(120) for rank in self.ranks):
            sys.exit("the steady job has failed")


def spread(values: Iterable[float]) -> str:
    low, middle, high = statistics.quantiles([1e3 * v for v in values], n=4, method="inclusive")
    return f"{middle:.1f} ({low:.1f}-{high:.1f}) ms"


def within(times: list[Window], windows: list[Window]) -> list[list[float]]:
    """Returns, for each window, the durations of the operations that overlap it."""
    return [
        [end - begin for begin, end in times if begin < last and end > first]
        for first, last in windows
    ]


def show(what: str, times: list[Window], windows: list[Window]) -> float:
    """Prints the times of all operations, and the longest of each window."""
    found = [window for window in within(times, windows) if window]
    every = [took for window in found for took in window]
    longest = [max(window) for window in found]
    print(
        f"{what}: {len(every)} operations of {spread(every)}, longest of each of {len(found)} windows "
        f"{spread(longest)}, of all {1e3 * max(longest):.1f} ms"
    )
    return max(longest)


def measure(args: argparse.Namespace, folder: Path) -> int:
    from torch_mcast.engine import read

    engine = folder / "engine.sock"
    daemon = subprocess.Popen(
        [sys.executable, "-m", "torch_mcast.engine", "run", "--socket", str(engine)],
        stderr=subprocess.DEVNULL,
    )
    while not Path(f"{engine}.status").exists():
        time.sleep(0.05)
    pid = read(engine)["pid"]
    job = Job("steady", folder / "steady", args.operation, f"host:{engine}", "slots")
    while sum(client["in_flight"] for client in read(engine)["clients"]) == 0:
        time.sleep(0.1)
    time.sleep(args.window)  # to warm up
    begin = time.monotonic()
    alone = [(begin + i * args.window, begin + (i + 1) * args.window) for i in range(args.kills)]
    time.sleep(args.kills * args.window)
    filling, killed = [], []
    for number in range(args.kills):
        begin = time.monotonic()
        size = int(args.size * 2**30) // RANKS
        where = "inproc" if args.apart else f"host:{engine}"
        other = Job("large", folder / f"large{number}", size, where, args.memory)
        other.ready()
        filled = time.monotonic()
        time.sleep(1)
        filling.append((begin, filled))
        kill = time.monotonic()
        other.kill()
        killed.append((kill, kill + args.window))
        time.sleep(max(0.0, kill + args.window - time.monotonic()))
    if read(engine)["pid"] != pid:
        sys.exit("the engine is another one")
    job.end()
    daemon.terminate()
    daemon.wait()
    values = array("d")
    values.frombytes((folder / "steady.times").read_bytes())
    times = list(zip(values[::2], values[1::2], strict=True))
    usual = show("alone", times, alone)
    show("while the other job starts and fills its memory", times, filling)
    longest = show(f"{args.window:g} s from each kill on", times, killed)
    print(f"longest after a kill, minus longest alone: {1e3 * (longest - usual):.1f} ms")
    return 1 if longest - usual > args.bound / 1e3 else 0


def main() -> int:
    if sys.argv[1:2] == ["--role"]:
        role, rank, store, size = sys.argv[2:]
        {"steady": steady, "large": large}[role](int(rank), store, int(size))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=float, default=2, help="GiB of the job that is killed [2]")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--window", type=float, default=3, help="seconds from a kill on [3]")
    parser.add_argument(
        "--operation", type=int, default=1 << 20, help="bytes of an all_reduce [1M]"
    )
    parser.add_argument("--bound", type=float, default=100, help="ms [100]")
    parser.add_argument("--apart", action="store_true", help="the large job has no engine")
    parser.add_argument(
        "--memory", default="map", help="MCAST_ENGINE_MEMORY of the large job [map]"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return measure(args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
