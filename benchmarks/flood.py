"""Measures all-gathers with and without a flood of the group's multicast address, in turns.

    python benchmarks/flood.py [--rate 1gbit] [--size 8M] [--datagram 60] [--security off|auth|sealed]
        [--repetitions 9] [--flooder-rate 10gbit] [--lasting 60]

Needs a lab of four hosts (root). Three hosts have a rank each. The fourth is in no job; it sends to
the address without pause, small datagrams that the kernel cuts out of large ones. The script prints
the flooder's rate beside the link's. With and without the flood it prints the median time of an
all-gather with quartiles, a rank's CPU time for it, and the counts of refused, lost and repaired
datagrams. All bytes of all results are compared.

--lasting: one flood instead, of at most this many seconds, until the group has left the address.
The switch snoops, so it then forwards the flood to nobody. The script prints how long that took, the
all-gathers before the flood, under it, and after the group has left while the flooder continues, and
the time from the end of the flood until the group uses multicast again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_mcast
from torch_mcast import secret
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.units import parse_size

RANKS, FLOODER = 3, 3
UDP_SEGMENT, SO_SNDBUFFORCE, HEADERS = 103, 32, 42
COUNTED = ("repair_chunks_received", "floods_left", "path_switches")


def pattern(size: int, rank: int) -> torch.Tensor:
    return (torch.arange(size, dtype=torch.int64) * (rank * 2 + 7) >> 3).to(torch.uint8)


def group_address() -> tuple[str, int]:
    """Returns the address of the multicast lane, which has the first of the two ports."""
    found = []
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        found.append((socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)))
    return min((a for a in found if a[0].startswith("239.")), key=lambda a: a[1])


def flood(ctx: Any, repetitions: int, datagram: int) -> dict[str, float]:
    group: tuple[str, int] = ctx.wait("group")
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    # More than the queues of all links hold: else a queue before a slow link would slow the flooder
    # down.
    out.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 256 << 20)
    out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, datagram)
    many = b"\x5a" * datagram * min(64, 60_000 // datagram)
    carried, seconds = (
        0,
        0.0,
    )  # bytes that have left this host; the link drops those that exceed its rate
    for i in range(repetitions):
        ctx.wait(f"on {i}")
        ctx.notify(f"floods {i}")
        begin, before = time.monotonic(), transmitted()
        while not ctx.told(f"off {i}"):
            for _ in range(20):
                with contextlib.suppress(OSError):  # this host's queue is full: do not wait
                    out.sendto(many, group)
        seconds += time.monotonic() - begin
        carried += transmitted() - before
    rate = carried / datagram / seconds
    return {"datagrams/s": rate, "bit/s": rate * (datagram + HEADERS) * 8}


def transmitted() -> int:
    """Returns the bytes of this host; datagrams sent together count the headers of one."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def gathers(size: int) -> dict[str, Any]:
    output = torch.zeros(size, dtype=torch.uint8)
    mine = pattern(size // RANKS, dist.get_rank())
    dist.barrier()
    begin, cpu = time.monotonic(), time.process_time()
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, mine)  # torch 2.13
    took = {"ms": 1e3 * (time.monotonic() - begin), "cpu_ms": 1e3 * (time.process_time() - cpu)}
    for rank, block in enumerate(output.view(RANKS, -1)):
        if not torch.equal(block, pattern(size // RANKS, rank)):
            raise SystemExit(f"rank {dist.get_rank()}: other bytes from rank {rank}")
    return took


def join(ctx: Any, size: int, options: dict[str, Any]) -> None:
    ctx.world_size = RANKS
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group("mcast", 120.0, pg_options=torch_mcast.Options(**options))
    gathers(size)
    ctx.notify("group", group_address())


def rank_of(ctx: Any, size: int, repetitions: int, datagram: int, options: dict[str, Any]) -> Any:
    if ctx.rank == FLOODER:
        return flood(ctx, repetitions, datagram)
    join(ctx, size, options)
    rows: list[list[dict[str, Any]]] = [[], []]
    for i in range(repetitions):
        rows[0].append(gathers(size))
        ctx.notify(f"quiet {i}")
        ctx.wait(f"flooded {i}")
        rows[1].append(gathers(size))
        ctx.notify(f"over {i}")
        ctx.wait(f"calm {i}")
    return rows, *state()


def state() -> tuple[dict[str, int], dict[str, int], str]:
    stats = torch_mcast.stats()
    counts = {name: stats["counters"][name] for name in COUNTED}
    refused = {cause: n for cause, n in stats["security"]["causes"].items() if n}
    return counts, refused, stats["path"]


def told_by_all(here: bool) -> bool:
    """Returns whether it holds on all ranks, by an operation of the group."""
    here_and_there = torch.tensor([int(here)])
    dist.all_reduce(here_and_there, dist.ReduceOp.MIN)
    return bool(here_and_there)


def left() -> bool:
    counts, _, path = state()
    return path == "ring" and counts["floods_left"] > 0


def until(condition: Any, size: int, limit_s: float) -> tuple[float, list[dict[str, Any]]]:
    """Runs all-gathers until it holds on all ranks. Returns the seconds, NaN if it did not."""
    begin, rows = time.monotonic(), []
    while not told_by_all(condition()):
        if not told_by_all(time.monotonic() < begin + limit_s):
            return float("nan"), rows
        rows.append(gathers(size))
    return time.monotonic() - begin, rows


def lasting(ctx: Any, size: int, limit_s: float, datagram: int, options: dict[str, Any]) -> Any:
    """Returns phases with seconds and all-gathers: before, flooded, left, after."""
    if ctx.rank == FLOODER:
        return flood(ctx, 1, datagram)
    join(ctx, size, options)
    phases = {"before": (0.0, [gathers(size) for _ in range(9)])}
    ctx.notify("quiet 0")
    ctx.wait("flooded 0")
    phases["flooded"] = until(left, size, limit_s)
    there = state()
    phases["left"] = (0.0, [gathers(size) for _ in range(9)])
    ctx.notify("over 0")
    ctx.wait("calm 0")
    phases["after"] = until(lambda: state()[2] == "multicast", size, limit_s)
    return phases, there, state()


def told(rows: list[dict[str, Any]]) -> str:
    if len(rows) < 2:
        return "no all-gathers"
    times = sorted(row["ms"] for row in rows)
    low, middle, high = statistics.quantiles(times, n=4)
    cpu = statistics.median(row["cpu_ms"] for row in rows)
    return f"{middle:.1f} ms ({low:.1f} to {high:.1f}), CPU of a rank {cpu:.0f} ms"


def played(
    pool: Pool, args: argparse.Namespace, what: Any, count: float, floods: int, limit_s: float,
    options: dict[str, Any],
) -> list[Any]:  # fmt: skip
    """Returns the ranks' results of `what`, during which this many floods run; `count` is its
    second argument. Prints the flooder's rate."""
    ranks = list(range(RANKS))
    size = args.size // (8 * RANKS) * 8 * RANKS
    call = pool.start(what, size, count, args.datagram, options)
    groups = call.wait("group", ranks, timeout_s=120)
    address, port = groups[0]
    call.signal("group", (address, args.port or port), [FLOODER])
    for i in range(floods):
        call.wait(f"quiet {i}", ranks, timeout_s=120)
        call.signal(f"on {i}", None, [FLOODER])
        call.wait(f"floods {i}", [FLOODER])
        call.signal(f"flooded {i}", None, ranks)
        call.wait(f"over {i}", ranks, timeout_s=limit_s)
        call.signal(f"off {i}", None, [FLOODER])
        call.signal(f"calm {i}", None, ranks)
    *rows, flooder = call.results(timeout_s=limit_s)
    rate, bits = flooder["datagrams/s"], flooder["bit/s"] / 1e6
    print(f"flood: {rate:,.0f} datagrams/s, {bits:,.0f} Mbit/s on the link")
    return rows


def lasts(pool: Pool, args: argparse.Namespace, options: dict[str, Any]) -> None:
    rows = played(pool, args, lasting, args.lasting, 1, 240 + args.lasting, options)
    for phase, (seconds, _) in rows[0][0].items():
        of_all = [row for part in rows for row in part[0][phase][1]]
        print(f"{phase:8}{seconds:6.1f} s, {told(of_all)}")
    for rank, (_, there, then) in enumerate(rows):
        print(f"rank {rank}: when left {there}; at the end {then}")


def measure(pool: Pool, args: argparse.Namespace, options: dict[str, Any]) -> None:
    rows = played(pool, args, rank_of, args.repetitions, args.repetitions, 120, options)
    for name, which in (("without", 0), ("with", 1)):
        print(f"{name:8}{told([row for part in rows for row in part[0][which]])}")
    for rank, (_, counts, refused, path) in enumerate(rows):
        print(f"rank {rank}: {path}; {counts}; refused {refused}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", type=parse_size, default="8M", help="bytes of a result")
    parser.add_argument(
        "--datagram", type=int, default=60, help="bytes of payload of the flood's, 1 to 1400"
    )
    parser.add_argument("--security", default="off", choices=["off", "auth", "sealed"])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--flooder-rate", help="of the flooder's link (default: --rate)")
    parser.add_argument("--lasting", type=float, metavar="SECONDS")
    parser.add_argument("--port", type=int, help="the flood's (default: that of the group)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"security": args.security}
        if args.security != "off":
            options["secret_file"] = f"{folder}/secret"
            secret.write(options["secret_file"])
        spec = LabSpec(
            hosts=RANKS + 1, ranks_per_host=1, rate=args.rate,
            host_rates={f"h{FLOODER + 1}": args.flooder_rate or args.rate},
            multicast="snooping" if args.lasting else "flood",
        )  # fmt: skip
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with (
            Lab(spec) as lab,
            Pool.in_lab(lab, ("torch", "torch.distributed", "torch_mcast")) as pool,
        ):
            (lasts if args.lasting else measure)(pool, args, options)


if __name__ == "__main__":
    main()
