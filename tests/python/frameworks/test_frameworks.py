"""Frameworks of users train on two ranks, over Gloo and over mcast, with bitwise equal losses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torchrun import torchrun

from torch_mcast.lab.system import package_root

pytestmark = pytest.mark.all_tier  # tools/setup.sh frameworks installs them
SCRIPT = Path(__file__).with_name("train.py")
LIMIT_S = 300


def train(framework: str, backend: str, folder: Path) -> list[dict[str, Any]]:
    """Returns the report of each rank."""
    done = subprocess.run(
        [*torchrun(2), str(SCRIPT), framework, backend, str(folder / backend)],
        env={**os.environ, "PYTHONPATH": package_root(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{backend}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    "framework", ["lightning", "accelerate", "transformers", "deepspeed-zero1", "deepspeed-zero3"]
)
def test_the_losses_are_gloo_s(framework, tmp_path):
    ours, theirs = (train(framework, backend, tmp_path) for backend in ("mcast", "gloo"))
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine["backend"], its["backend"]) == ("mcast", "gloo")
        assert mine["losses"] == its["losses"] and len(mine["losses"]) >= 4
        assert any("reduce" in name for name in mine["calls"]), mine["calls"]
