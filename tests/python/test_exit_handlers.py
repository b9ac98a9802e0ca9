"""Calls that users make while their process ends: exit handlers and finalizers, registered before
the first group."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

JOB = """
import atexit, sys, weakref
import torch, torch.distributed as dist, torch.multiprocessing as mp


class Model:
    pass


def last_calls(what):
    total = torch.ones(3)
    dist.all_reduce(total)
    everybody = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(everybody, torch.ones(1))
    sys.stdout.write(f"{what} {int(total.sum())} {int(sum(everybody))}\\n")  # at once, whole
    sys.stdout.flush()


def main(rank, path, how):
    model = Model()
    if how == "atexit":
        atexit.register(last_calls, how)
    else:
        weakref.finalize(model, last_calls, how)
    dist.init_process_group("mcast", init_method="file://" + path, rank=rank, world_size=2)
    dist.barrier()
    if how == "finalize":
        globals()["kept"] = model


if __name__ == "__main__":
    path, how, started = sys.argv[1:]
    if started == "spawn":
        mp.spawn(main, (path, how), nprocs=2)
    else:
        main(int(started), path, how)
"""


@pytest.mark.parametrize(
    ("launch", "how"),
    [
        ("process", "finalize"),
        ("spawn", "atexit"),
        pytest.param("process", "atexit", marks=pytest.mark.all_tier),
        pytest.param("spawn", "finalize", marks=pytest.mark.all_tier),
    ],
)
def test_last_calls_of_a_process_find_the_group_open(tmp_path, how, launch):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "store"), how, started],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "MCAST_SOCKET_IFNAME": "lo"},
        )
        for started in (["0", "1"] if launch == "process" else ["spawn"])
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    assert "".join(outputs).count(f"{how} 6 2\n") == 2, outputs
