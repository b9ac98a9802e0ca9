"""Compares the transfer of weights to workers with Gloo's broadcast, also when a worker is killed.

    MCAST_SOCKET_IFNAME==lo GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 python benchmarks/weights.py
    ... benchmarks/weights.py --workers 3 --size 256 --gloo-timeout 20
    torch-mcast lab run --hosts 4 --rate 1gbit -- python benchmarks/weights.py --backends mcast --signal none

Ranks that a launcher or a lab has started transfer by one backend; rank 0 prints the median, least and
largest time of a version. Otherwise the script starts a trainer and the workers on this host. Each worker
counts as a separate host, so each one receives all bytes. The script prints the median time of a version, the
CPU seconds of all processes, and the time until the trainer notices that a worker was killed, or stopped
(--signal STOP), while a version is sent. A stopped process keeps its connections, as does one whose host
or network is gone: Gloo then waits for the time-out of its group.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_mcast import weights
from torch_mcast.weights import _content, _memory

SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "none": None}


def state(size: int) -> dict[str, torch.Tensor]:
    return {f"layers.{n}.weight": torch.full((size << 16,), float(n)) for n in range(4)}


class Mcast:
    """A channel. Its receive() returns once the version was verified on all hosts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.channel = weights.Channel.connect(
            args.address, args.port, args.rank, args.workers + 1, limit=timedelta(seconds=30)
        )
        self.signal = SIGNALS[args.signal]

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        self.channel.send(tensors)

    def receive(self, tensors: dict[str, torch.Tensor], kill: bool) -> None:
        if kill:
            number = self.signal
            setattr(_content.Incoming, "take", lambda *_: os.kill(os.getpid(), number))  # noqa: B010
        for name, tensor in self.channel.receive():
            tensors[name].copy_(tensor)


class Gloo:
    """A broadcast of each tensor, as in RLHF scripts."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.signal = SIGNALS[args.signal]
        store = dist.TCPStore(args.address, args.port, args.workers + 1, args.rank == 0)
        limit = timedelta(seconds=args.gloo_timeout)
        dist.init_process_group(
            "gloo", store=store, rank=args.rank, world_size=args.workers + 1, timeout=limit
        )

    def send(self, tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            dist.broadcast(tensor, 0)
        dist.barrier()

    def receive(self, tensors: dict[str, torch.Tensor], kill: bool) -> None:
        for number, tensor in enumerate(tensors.values()):
            if kill and number == 1:
                os.kill(os.getpid(), self.signal)
            dist.broadcast(tensor, 0)
        dist.barrier()


def rank(args: argparse.Namespace) -> None:
    _memory.host = lambda: f"host{args.rank}"  # type: ignore[assignment]
    torch.set_num_threads(1)
    transfer = {"mcast": Mcast, "gloo": Gloo}[args.backend](args)
    tensors, times = state(args.size), []
    for version in range(args.repetitions + 1):
        begin = time.monotonic()
        if args.rank == 0:
            transfer.send(tensors)
        else:
            transfer.receive(tensors, kill=False)
        times.append(time.monotonic() - begin)
        if version == 0:
            used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - used
    print(f"cpu {cpu / args.repetitions:.3f}", flush=True)
    if args.rank == 0:
        spread = f"{min(times[1:]):.3f} to {max(times[1:]):.3f}"
        print(f"time {statistics.median(times[1:]):.3f} {spread}", flush=True)
    if SIGNALS[args.signal] is None:
        # Rank 0 keeps the store, from which workers may still read that the version is complete.
        time.sleep(2 if args.rank == 0 else 0)
        os._exit(0)
    begin = time.monotonic()
    try:
        if args.rank == 0:
            transfer.send(tensors)
        else:
            transfer.receive(tensors, kill=args.rank == args.workers)
        said = "went on"
    except RuntimeError as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if args.rank == 0:
        print(f"killed {time.monotonic() - begin:.2f} s, {said}", flush=True)
    os._exit(0)


def measure(args: argparse.Namespace, backend: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = [
        "--backend", backend, "--port", str(port), "--workers", str(args.workers), "--size", str(args.size),
        "--repetitions", str(args.repetitions), "--signal", args.signal,
        "--gloo-timeout", str(args.gloo_timeout),
    ]  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(r), *shared],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for r in range(args.workers + 1)
    ]
    out = [ranks[0].communicate()[0]]
    for each in ranks[1:]:
        each.kill()  # one may be stopped
        out.append(each.communicate()[0])
    lines = [line for text in out for line in text.splitlines()]
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.partition(" ")[0], []).append(line.partition(" ")[2])
    seconds = float(found["time"][0].split()[0])
    cpu = sum(map(float, found["cpu"]))
    print(
        f"{backend}: {args.size} MiB to {args.workers} workers in {seconds:.2f} s "
        f"({args.size / 1024 / seconds:.2f} GiB/s), {cpu:.2f} CPU seconds of all processes",
        *(f"a worker gets SIG{args.signal}: {what}" for what in found.get("killed", [])),
        sep="; ",
    )


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--backends", default="mcast,gloo", help="what to measure [mcast,gloo]")
    p.add_argument("--workers", type=int, default=3, metavar="N", help="workers [3]")
    p.add_argument("--size", type=int, default=256, metavar="MIB", help="of a version [256]")
    p.add_argument(
        "--repetitions", type=int, default=5, metavar="N", help="versions that are timed [5]"
    )
    p.add_argument(
        "--gloo-timeout", type=float, default=20, metavar="SECONDS", help="of the group [20]"
    )
    p.add_argument("--signal", choices=SIGNALS, default="KILL", help="a worker gets [KILL]")
    p.add_argument("--backend", help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--address", default="127.0.0.1", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.rank is None and "RANK" in os.environ:
        args.rank, args.backend = int(os.environ["RANK"]), args.backends
        args.workers = int(os.environ["WORLD_SIZE"]) - 1
        args.address, args.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if args.rank is not None:
        rank(args)
    for backend in args.backends.split(","):
        measure(args, backend)


if __name__ == "__main__":
    main()
