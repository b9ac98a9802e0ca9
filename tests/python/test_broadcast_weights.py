"""examples/broadcast_weights.py: every rank ends with the bytes of the checkpoint, on disk too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "examples" / "broadcast_weights.py"


def launch(*args: str, ranks: int = 3, shared_memory: str = "auto") -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
         str(SCRIPT), *args],
        capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
             "MCAST_SHARED_MEMORY": shared_memory, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


@pytest.mark.parametrize("shared_memory", [pytest.param("auto", marks=pytest.mark.all_tier), "off"])
def test_every_rank_has_the_checkpoint(tmp_path, shared_memory):
    torch.manual_seed(1)
    state = {
        "large": torch.randn(700, 1000),
        "after": torch.arange(7),
        "half": torch.randn(5).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "transposed": torch.randn(300, 200).t(),
        "flags": torch.tensor([True, False, True]),
    }
    torch.save(state, tmp_path / "model.pt")
    done = launch(
        "--checkpoint", str(tmp_path / "model.pt"), "--save", str(tmp_path / "out"), "--verify",
        "--bucket", "100K", "--compare", "gloo", shared_memory=shared_memory,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: all ranks have the same bytes" in done.stdout
    assert "mcast: " in done.stdout and "gloo: " in done.stdout and "GB/s" in done.stdout
    received = torch.load(tmp_path / "out" / "weights.pt")
    assert list(received) == list(state)
    for name, value in state.items():
        assert received[name].dtype == value.dtype and received[name].shape == value.shape
        assert torch.equal(received[name], value), name


def test_what_is_no_state_dict_is_said(tmp_path):
    torch.save({"weight": torch.ones(3), "epoch": 7}, tmp_path / "model.pt")
    done = launch("--checkpoint", str(tmp_path / "model.pt"), "--timeout", "20", ranks=2)
    assert done.returncode != 0
    assert "'epoch' is no tensor; save model.state_dict()" in done.stdout + done.stderr


def test_made_up_weights_have_the_size_that_was_asked_for():
    done = launch("--synthetic", "3M", "--verify", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified" in done.stdout and "to 1 ranks" in done.stdout
