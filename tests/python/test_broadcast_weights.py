"""examples/broadcast_weights.py: every rank ends with the bytes of the checkpoint, on disk too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import forked
import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "examples" / "broadcast_weights.py"


ENV = {"MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def ranks(world: int, *args: str, **variables: str) -> subprocess.CompletedProcess:
    return forked.ranks(world, [str(SCRIPT), *args], {**os.environ, **ENV, **variables})


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
    done = ranks(
        3, "--checkpoint", str(tmp_path / "model.pt"), "--save", str(tmp_path / "out"), "--verify",
        "--bucket", "100K", "--compare", "gloo", MCAST_SHARED_MEMORY=shared_memory,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: all ranks have the same bytes" in done.stdout
    assert "mcast: " in done.stdout and "gloo: " in done.stdout and "GB/s" in done.stdout
    received = torch.load(tmp_path / "out" / "weights.pt")
    assert list(received) == list(state)
    for name, value in state.items():
        assert received[name].dtype == value.dtype and received[name].shape == value.shape
        assert torch.equal(received[name], value), name


def test_a_file_without_a_state_dict_is_refused_with_the_reason(tmp_path):
    torch.save({"weight": torch.ones(3), "epoch": 7}, tmp_path / "model.pt")
    done = ranks(2, "--checkpoint", str(tmp_path / "model.pt"), "--timeout", "20")
    assert done.returncode == 1
    assert "'epoch' is no tensor; save model.state_dict()" in done.stderr


def test_made_up_weights_have_the_size_that_was_asked_for():
    done = ranks(2, "--synthetic", "3M", "--verify")
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout and "to 1 ranks" in done.stdout
