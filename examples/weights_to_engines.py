"""Sends versions of a model's weights to inference workers, two of which are killed while a version is sent:

    python examples/weights_to_engines.py
    python examples/weights_to_engines.py --workers 6 --size 500M

The script starts the workers itself, on this host: one of them receives, the others map its memory. It kills
the one that receives, twice. The rest must end with every version.

With torch 2.14 or later the group leaves the dead worker out, another one receives, and the version goes on
where it was. Before, send() and receive() raise an error that names the worker, and the script makes a new
group of those that are alive.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from torch_mcast import weights

STEPS = 4
KILLS = (2, 3)  # steps while whose weights are sent
MEMORY = "/memfd:torch-mcast-weights"


def parse_size(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def weights_of(step: int, size: int) -> dict[str, torch.Tensor]:
    """Stands for a model after a training step."""
    rows = max(1, size // (2 * 1024 * 8))
    state = {
        f"layers.{n}.weight": torch.full((rows, 1024), float(step + n), dtype=torch.bfloat16)
        for n in range(8)
    }
    return {**state, "step": torch.tensor(step)}


def work(number: int, roster: dist.Store, size: int) -> None:
    """A worker: receives until it has the last step."""
    step, group = 0, 0
    while step < STEPS:
        # Which group to join, from the trainer.
        members = json.loads(roster.get(f"group{group}"))
        rank, world = members["workers"].index(number) + 1, len(members["workers"]) + 1
        channel = weights.Channel.connect("127.0.0.1", members["port"], rank, world)
        try:
            while step < STEPS:
                state = dict(channel.receive())
                step = int(state["step"])
                expected = weights_of(step, size)
                if any(not torch.equal(state[name], expected[name]) for name in expected):
                    raise SystemExit(f"worker {number}: step {step} is not what was sent")
                print(f"worker {number} has step {step} as version {channel.version}", flush=True)
                del state
        except weights.WeightsError as error:
            print(f"worker {number}: {type(error).__name__}: {error}", flush=True)
            group += 1
        channel.close()


def kill_receiver(workers: dict[int, subprocess.Popen]) -> None:
    """Waits until a worker has a part of a version, and kills it."""
    while True:
        for number, process in workers.items():
            folder = Path(f"/proc/{process.pid}/fd")
            try:
                memory = [f.stat() for f in folder.iterdir() if os.readlink(f).startswith(MEMORY)]
            except OSError:  # it has ended, or has closed one of them
                continue
            if any(0 < 512 * file.st_blocks < file.st_size for file in memory):
                process.kill()
                process.wait()
                print(f"worker {number} was killed", flush=True)
                return
        time.sleep(0.0005)


class Trainer:
    def __init__(self, args: argparse.Namespace, roster: dist.Store, port: int) -> None:
        command = [sys.executable, __file__, "--size", str(args.size), "--roster", str(port)]
        self.workers = {
            number: subprocess.Popen([*command, "--worker", str(number)])
            for number in range(args.workers)
        }
        self._args, self._roster, self._groups = args, roster, 0

    def connect(self) -> weights.Channel:
        """Makes a group with the workers that are alive."""
        alive = [number for number, process in self.workers.items() if process.poll() is None]
        port = free_port()
        channel = weights.Channel.connect(
            "127.0.0.1", port, 0, len(alive) + 1, limit=timedelta(seconds=60), bucket_bytes=1 << 20
        )
        self._roster.set(f"group{self._groups}", json.dumps({"port": port, "workers": alive}))
        self._groups += 1
        return channel

    def run(self) -> None:
        channel, failed = self.connect(), []
        for step in range(1, STEPS + 1):
            state = weights_of(step, self._args.size)
            killer = threading.Thread(target=kill_receiver, args=(self.workers,), daemon=True)
            if step in KILLS:
                killer.start()
            sent = False
            while not sent:
                begin = time.monotonic()
                try:
                    version = channel.send(state)
                    sent = True
                except weights.WeightsError as error:
                    took = time.monotonic() - begin
                    print(f"trainer: {type(error).__name__} after {took:.1f} s: {error}")
                    killer.join()
                    failed.append(channel)  # keeps the store, from which the workers read the error
                    channel = self.connect()
                    print("trainer: made a new group of the workers that are alive", flush=True)
            took = time.monotonic() - begin
            print(f"trainer: sent step {step} as version {version} in {took:.2f} s", flush=True)
            for rank, reason in channel.left_out.items():
                print(f"trainer: left out rank {rank}: it {reason}", flush=True)
        codes = {number: process.wait() for number, process in self.workers.items()}
        alive = [number for number, code in codes.items() if code == 0]
        print(f"workers {alive} have all {STEPS} steps")
        if len(alive) != len(codes) - len(KILLS):
            raise SystemExit(f"exit codes of the workers: {codes}")
        for each in (*failed, channel):
            each.close()


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--workers", type=int, default=4, metavar="N", help="inference workers [4]")
    p.add_argument(
        "--size", type=parse_size, default="64M", metavar="BYTES", help="of a version [64M]"
    )
    p.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    p.add_argument("--roster", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    torch.set_num_threads(1)
    port = free_port() if args.roster is None else args.roster
    roster = dist.TCPStore("127.0.0.1", port, None, args.roster is None, wait_for_workers=False)
    if args.worker is not None:
        work(args.worker, roster, args.size)
    else:
        Trainer(args, roster, port).run()


if __name__ == "__main__":
    main()
