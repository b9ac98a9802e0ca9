"""Measures 16-byte all_reduces in one group while each rank has other groups that are idle.

    MCAST_SOCKET_IFNAME==lo GLOO_SOCKET_IFNAME=lo python benchmarks/idle_groups.py

For each number of ranks there is one job per number of idle groups. All jobs are created first and
then take turns, so each round has one timing of each. For each job the script prints the median of
all rounds with quartiles: the time of one all_reduce, rank 0's CPU time for it, and the ratio of the
time to the first job's time in the same round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

import torch_mcast  # noqa: F401 - registers the backend

Timing = tuple[float, float]  # of one all_reduce: seconds, and seconds of CPU


def rank_main(rank: int, ranks: int, idle: int, store: Path, orders: Connection) -> None:
    dist.init_process_group(
        "mcast", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks
    )
    groups = [dist.new_group(backend="mcast") for _ in range(idle)]
    value = torch.zeros(4)  # 16 bytes
    dist.all_reduce(value)
    orders.send(None)
    while count := orders.recv():
        for _ in range(count // 10):  # warm-up
            dist.all_reduce(value)
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(count):
            dist.all_reduce(value)
        used, end = time.process_time() - used, time.perf_counter()
        orders.send(((end - begin) / count, used / count))
    assert len(groups) == idle  # they live until here
    dist.destroy_process_group()


class Job:
    def __init__(self, ranks: int, idle: int, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.idle = idle
        self._orders, self._processes = [], []
        for rank in range(ranks):
            here, there = context.Pipe()
            arguments = (rank, ranks, idle, folder / f"store{ranks}_{idle}", there)
            self._orders.append(here)
            self._processes.append(context.Process(target=rank_main, args=arguments))
            self._processes[-1].start()
            there.close()
        for order in self._orders:
            order.recv()

    def run(self, count: int) -> Timing:
        """Returns rank 0's timing."""
        for order in self._orders:
            order.send(count)
        timings: list[Timing] = [order.recv() for order in self._orders]
        return timings[0]

    def end(self) -> None:
        for order in self._orders:
            order.send(0)
        for process in self._processes:
            process.join()


def spread(values: list[float], scale: float, digits: int) -> str:
    low, middle, high = (
        value * scale for value in statistics.quantiles(values, n=4, method="inclusive")
    )
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def measure(ranks: int, idle: list[int], rounds: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        jobs = [Job(ranks, number, Path(folder)) for number in idle]
        print(f"{ranks} ranks: made within {time.monotonic() - begin:.0f} s", flush=True)
        timings: list[list[Timing]] = [[] for _ in jobs]
        for number in range(rounds):
            turn = list(zip(jobs, timings, strict=True))
            for job, of_job in turn if number % 2 == 0 else reversed(turn):
                of_job.append(job.run(count))
        for job, of_job in zip(jobs, timings, strict=True):
            ratios = [mine[0] / first[0] for mine, first in zip(of_job, timings[0], strict=True)]
            print(
                f"{ranks} ranks, {job.idle} idle groups: {spread([t for t, _ in of_job], 1e6, 1)} us, "
                f"CPU {spread([t for _, t in of_job], 1e6, 1)} us, x {spread(ratios, 1, 3)}",
                flush=True,
            )
        for job in jobs:
            job.end()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--idle", type=numbers, default=[0, 200, 1000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--count", type=int, default=2000, help="all_reduces in a round")
    parser.add_argument("--shared-memory", default="off", help="as MCAST_SHARED_MEMORY [off]")
    args = parser.parse_args()
    os.environ["MCAST_SHARED_MEMORY"] = args.shared_memory
    for ranks in args.ranks:
        measure(ranks, args.idle, args.rounds, args.count)


if __name__ == "__main__":
    main()
