"""Measures the groups of a mesh, one alone and all at the same time.

    python benchmarks/mesh.py [--hosts 8] [--per-host 8] [--rate 1gbit] [--size 256k] [--repetitions 9]
        [--rcvbuf 212992] [--beside]

Needs a lab (root). Each rank is in a group across the hosts, as data-parallel groups are, and with
--beside also in a group of its host. In turns, one group across the hosts gathers --size bytes from
each rank, then all groups do. The script prints the median time of both with quartiles, the payload
that a host receives per second, and the numbers of datagrams that were lost, cut, or from other
groups. --rcvbuf: the receive buffer that sockets request; the default is what Linux grants without
settings. All bytes of all results are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_mcast
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.units import parse_size

COUNTED = (
    "gaps", "repair_chunks_received", "congestion_cuts", "budget_overcommits", "foreign", "neighbour",
    "late", "floods_left",
)  # fmt: skip


def pattern(size: int, rank: int) -> torch.Tensor:
    return (torch.arange(size, dtype=torch.int64) * (rank * 2 + 7) >> 3).to(torch.uint8)


def timed(groups: list[Any], size: int) -> float:
    """Returns the seconds of one all-gather in each of these groups of this rank at once, measured
    from a barrier."""
    members = [dist.get_process_group_ranks(group) for group in groups]
    outputs = [torch.zeros(size * len(ranks), dtype=torch.uint8) for ranks in members]
    mine = pattern(size, dist.get_rank())
    dist.barrier()
    begin = time.monotonic()
    works = [
        dist.all_gather_into_tensor(output, mine, group=group, async_op=True)
        for output, group in zip(outputs, groups, strict=True)
    ]
    for work in works:
        work.wait()  # type: ignore[union-attr]
    took = time.monotonic() - begin
    for ranks, output in zip(members, outputs, strict=True):
        for rank, block in zip(ranks, output.view(len(ranks), -1), strict=True):
            if not torch.equal(block, pattern(size, rank)):
                raise SystemExit(f"rank {dist.get_rank()}: other bytes from rank {rank}")
    return took if groups else 0.0


def rank_of(ctx: Any, args: argparse.Namespace) -> Any:
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group("mcast", 300.0, pg_options=torch_mcast.Options())
    rank, world = dist.get_rank(), dist.get_world_size()
    local, first = rank % args.per_host, rank - rank % args.per_host

    def group_of(ranks: range) -> Any:
        return dist.new_group(list(ranks), backend="mcast", use_local_synchronization=True)

    across = group_of(range(local, world, args.per_host))
    groups = [across]
    if args.beside:
        groups.append(group_of(range(first, first + args.per_host)))
    alone, together = [], []
    for repetition in range(args.repetitions + 1):
        took = timed([across] if local == 0 else [], args.size), timed(groups, args.size)
        if repetition > 0:  # (The first one makes the connections.)
            alone.append(took[0])
            together.append(took[1])
    dist.barrier()
    counters = [torch_mcast.stats(group)["counters"] for group in groups]
    counted = {name: sum(c[name] for c in counters) for name in COUNTED}
    return alone, together, counted, (dropped() if local == 0 else 0)


def dropped() -> int:
    """Returns the number of datagrams that this host dropped because a socket was full."""
    names, values = (
        line.split()
        for line in Path("/proc/net/snmp").read_text().splitlines()
        if line.startswith("Udp:")
    )
    return int(values[names.index("RcvbufErrors")])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--per-host", type=int, default=8, help="ranks of a host")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", type=parse_size, default="256k", help="bytes of a rank's block")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--rcvbuf", type=parse_size, default="212992")
    parser.add_argument("--beside", action="store_true", help="a group of each host, too")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    spec = LabSpec(hosts=args.hosts, ranks_per_host=args.per_host, rate=args.rate)
    with Lab(spec) as lab, Pool.in_lab(lab, ("torch", "torch.distributed", "torch_mcast")) as pool:
        rows = pool.run(
            rank_of,
            args,
            timeout_s=900,
            env={
                "MCAST_RCVBUF": str(args.rcvbuf),
                "MCAST_SHARED_MEMORY": "off",
                "MCAST_ALGORITHM": "multicast",
            },
        )
    received = args.size * (args.hosts - 1)  # by one member
    for name, which, groups in (("one group", 0, 1), ("all at once", 1, args.per_host)):
        # An operation ends when its last member does.
        times = [max(times) for times in zip(*(row[which] for row in rows), strict=True)]
        low, middle, high = statistics.quantiles(times, n=4)
        rate = groups * received / middle / 1e6
        print(
            f"{name:12}{1e3 * middle:8.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f}), "
            f"{rate:.1f} MB/s into a host"
        )
    print({name: sum(row[2][name] for row in rows) for name in COUNTED})
    print(f"packets that found a socket full: {sum(row[3] for row in rows)}")


if __name__ == "__main__":
    main()
