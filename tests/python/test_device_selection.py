"""Selection of the tests of device tensors by device (device_ranks.py): on a machine with a GPU
each of them also runs on CUDA, except those that give a reason, and on a machine without one none
is skipped for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import device_ranks
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/device-tensors.md").read_text()
AS_IF = "import sys, pytest, torch; torch.cuda.is_available = lambda: True; sys.exit(pytest.main(sys.argv[1:]))"


def collected(*arguments: str) -> set[str]:
    """Collects as on a machine with a GPU, all tiers: in the gate each variant of a test runs on
    one device only."""
    files = sorted(str(file) for file in ROOT.glob("tests/python/test_device*.py"))
    done = subprocess.run(
        [sys.executable, "-c", AS_IF, "-n0", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, *files],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "MCAST_TEST_ALL": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"\S+\.py::\S+", done.stdout))


def test_all_but_those_of_the_fake_device_run_on_a_gpu():
    found = collected("-m", "not fake_device", "-k", "gate or host")
    on_cuda = {test for test in found if "cuda-" in test}
    assert {test.replace("cuda-", "") for test in on_cuda} == found - on_cuda
    assert AS_IF in PAGE and f"{len(on_cuda)} tests run on `cuda`" in PAGE


def test_without_a_gpu_there_is_one_device():
    assert ("cuda" in device_ranks.DEVICES) == torch.cuda.is_available()
