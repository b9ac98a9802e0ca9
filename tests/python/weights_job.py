"""Processes of test_weights_failures.py: weights_job.py RANK WORLD PORT FOLDER SCENARIO.

Each worker counts as a host of its own, so each one receives. What happens in which order is agreed through files
in FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

from torch_mcast import weights
from torch_mcast.weights import _content, _worker

RANK, WORLD, PORT = (int(word) for word in sys.argv[1:4])
FOLDER, SCENARIO = Path(sys.argv[4]), sys.argv[5]
LIMIT = timedelta(seconds=3 if SCENARIO == "slow" else 60)


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.01)


def reach(name: str) -> None:
    (FOLDER / name).touch()


def state(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {f"layer{n}": torch.randn(40_000, generator=generator) for n in range(5)}


def connect() -> weights.Channel:
    return weights.Channel.connect(
        "127.0.0.1",
        PORT,
        RANK,
        WORLD,
        limit=LIMIT,
        bucket_bytes=100_000,
        timeout=timedelta(seconds=60),
    )


def trouble_in_version_2() -> None:
    take = _content.Incoming.take

    def taken(self: _content.Incoming, bucket: torch.Tensor) -> None:
        if self.version == 2 and self.done >= 300_000:
            if SCENARIO == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            reach("stuck")
            wait_for("version2")
        take(self, bucket)

    _content.Incoming.take = taken


def note_announcements() -> None:
    """Notes that this worker waits for a version again, after the others have version 2."""
    announce = _worker.Worker._announce

    def noted(self: _worker.Worker) -> None:
        announce(self)
        if (FOLDER / "version2").exists():
            reach("rejoined")

    _worker.Worker._announce = noted


def work() -> None:
    if RANK == 1:
        note_announcements()
        if not (FOLDER / "version2").exists():
            trouble_in_version_2()
    channel = connect()
    while channel.version < 3:
        received = channel.receive()
        got = dict(received)
        assert all(torch.equal(got[name], value) for name, value in state(received.version).items())
        print(f"has {received.version}", flush=True)


def train() -> None:
    channel = connect()
    channel.send(state(1))
    print("sent 1", flush=True)
    try:
        channel.send(state(2))
    except weights.WeightsError as error:
        print(f"error {error}", flush=True)
        return
    print(f"sent 2, left out {channel.left_out}", flush=True)
    reach("version2")
    wait_for("rejoined")
    assert channel.send(state(3)) == 3 and channel.left_out == {}
    print("sent 3", flush=True)
    wait_for("end")


_worker._memory.host = lambda: f"host{RANK}"
torch.set_num_threads(1)
try:
    train() if RANK == 0 else work()
except weights.WeightsError as error:
    print(f"error {error}", flush=True)
