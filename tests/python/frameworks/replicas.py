"""torchft: three replicas train, one is killed and comes back: `replicas.py FOLDER BACKEND`. Each replica that reaches the end
writes FOLDER/NUMBER.json: its steps, the errors it has seen and its parameters."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupGloo
from train import BATCH, RATE, SAMPLES, data, network

import torch_mcast
from torch_mcast.adapters.torchft_group import ProcessGroupMcast

REPLICAS, VICTIM, KILLED_AT, AFTER = 3, 1, 3, 3
LIMIT = timedelta(seconds=60)


def replica(folder: Path, backend: str, number: int, back: bool) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model: Any = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / 10)
    group = (ProcessGroupMcast if backend == "mcast" else ProcessGroupGloo)(timeout=LIMIT)
    manager = Manager(
        pg=group, min_replica_size=2, use_async_quorum=False, timeout=LIMIT, quorum_timeout=LIMIT,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), optimizer.load_state_dict(state["sgd"])),
        state_dict=lambda: {"model": model.state_dict(), "sgd": optimizer.state_dict()},
        replica_id=f"replica{number}", store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
        hostname="127.0.0.1",
    )  # fmt: skip
    start = dist.TCPStore("127.0.0.1", int(os.environ["START_PORT"]), is_master=False)
    start.set(f"{number}", "")
    start.wait([str(other) for other in range(REPLICAS)])  # so that the first quorum is of all
    averaged = DistributedDataParallel(manager, model)
    steps = Optimizer(manager, optimizer)
    inputs, targets = (
        torch.stack(column) for column in zip(*(data()[i] for i in range(SAMPLES)), strict=True)
    )
    participants: list[int] = []
    errors: list[str] = []
    missed, together = back, 0
    while together < AFTER:
        steps.zero_grad()  # makes the group anew if the replicas have changed
        if number == VICTIM and not back and manager.current_step() == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)  # the others wait for it in their all-reduce
        mine = torch.arange(BATCH) + (manager.current_step() * REPLICAS + number) * BATCH
        loss = torch.nn.functional.mse_loss(
            averaged(inputs[mine % SAMPLES]), targets[mine % SAMPLES]
        )
        loss.backward()
        if failure := manager.errored():
            errors.append(str(failure))
        steps.step()
        participants.append(manager.num_participants())
        if missed and participants[-1] < REPLICAS:
            time.sleep(0.02)  # not thousands of steps while the new process starts
        missed |= participants[-1] < REPLICAS
        together = together + 1 if missed and participants[-1] == REPLICAS else 0
    told = {
        "participants": [count for count, _ in itertools.groupby(participants)],
        "errors": errors,
        "group": group.getBackendName(),
        "calls": torch_mcast.stats(group.parent)["calls"] if backend == "mcast" else {},
        "parameters": [
            value.hex()
            for parameter in model.parameters()
            for value in parameter.detach().flatten().tolist()
        ],
    }
    (folder / f"{number}.json").write_text(json.dumps(told))
    manager.shutdown(wait=False)


def main() -> None:
    if len(sys.argv) > 3:
        replica(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "back")
        return
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=10000, heartbeat_timeout_ms=2000
    )
    start = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {
        **os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address(), "START_PORT": str(start.port), "RUST_LOG": "warn"
    }  # fmt: skip

    def launch(number: int, back: bool) -> subprocess.Popen[bytes]:
        words = [*sys.argv[:3], str(number), "back" if back else ""]
        return subprocess.Popen([sys.executable, *words], env=env)

    running = {number: launch(number, False) for number in range(REPLICAS)}
    try:
        assert running[VICTIM].wait() == -signal.SIGKILL
        running[VICTIM] = launch(VICTIM, True)
        codes = [process.wait() for process in running.values()]
    finally:
        for process in running.values():
            process.kill()
        lighthouse.shutdown()
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
