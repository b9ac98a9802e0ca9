"""Measures what a late rank costs: many small broadcasts, which the last rank calls later.

    MCAST_SHARED_MEMORY=off MCAST_SOCKET_IFNAME==lo GLOO_SOCKET_IFNAME=lo \\
        torchrun --standalone --nproc-per-node 3 benchmarks/late_rank.py --backends mcast,gloo

For each backend, each rank prints the time until it had posted half of the calls and all of them,
the time from the late rank's first call until everything was complete, the growth of its memory, and
the CPU time of a waiting rank in per cent of a core.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

import torch_mcast


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(backend: str, count: int, late: float) -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    group = dist.new_group(backend=backend)
    dist.barrier(group=group)
    begin, before = time.monotonic(), resident()
    if rank == last:
        time.sleep(late)
    called, half = time.monotonic(), 0.0
    for number in range(count):
        value = torch.tensor([float(number) if rank == 0 else -1.0])
        dist.broadcast(value, 0, group=group)
        if value.item() != number:
            raise SystemExit(f"rank {rank}: broadcast {number} brought {value.item()}")
        if number == count // 2:
            half = time.monotonic() - called
    posted = time.monotonic() - called
    waits = begin + late - 0.5 - time.monotonic()
    cpu = 0.0
    if waits > 0:
        used = time.process_time()
        time.sleep(waits)
        cpu = 100 * (time.process_time() - used) / waits
    dist.barrier(group=group)
    grown = (resident() - before) / 2**20
    print(
        f"{backend}: {count} broadcasts, rank {rank}: called for {posted:.2f} s (first half {half:.2f}), "
        f"over {time.monotonic() - begin - late:.2f} s after the last rank came, "
        f"memory {grown:+.1f} MiB, CPU while waiting {cpu:.1f} %",
        flush=True,
    )
    if backend == "mcast" and rank in (0, last):
        facts = torch_mcast.stats(group)
        staged = facts["counters"]["chunks_staged"]
        print(f"mcast: rank {rank}: path {facts['path']}, {staged} chunks staged", flush=True)
    dist.destroy_process_group(group)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backends", default="mcast,gloo")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--late", type=float, default=15, help="seconds")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    for backend in args.backends.split(","):
        measure(backend, args.count, args.late)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
