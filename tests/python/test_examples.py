"""The examples that only need torch. (examples/train_fsdp.py and broadcast_weights.py have their
own tests; tests/python/lab/test_cluster_page.py runs these between hosts.)"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
ENV = {"MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def two_ranks(name: str, *arguments: str, **variables: str) -> str:
    """Returns the output of both ranks."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # Started as users do: without modules that were imported before.
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **ENV, **job, **variables, "RANK": r},
        )
        for r in "01"
    ]  # fmt: skip
    try:
        text = "".join(part for rank in ranks for part in rank.communicate(timeout=150))
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], text
    return text


@pytest.mark.parametrize(
    ("shared_memory", "path"),
    [
        ("off", "multicast: the probe reached every rank"),
        pytest.param("auto", "shared memory: ", marks=pytest.mark.all_tier),
    ],
)
def test_the_least_script(shared_memory, path):
    lines = two_ranks("hello.py", MCAST_SHARED_MEMORY=shared_memory).splitlines()
    assert lines[0] == "2 ranks: [0.0, 1.0] sum 1"
    assert lines[1].startswith(f"path: {path}")


def test_the_least_script_is_short_and_needs_nothing_else():
    source = (EXAMPLES / "hello.py").read_text()
    assert len([line for line in source.splitlines() if line and not line.startswith('"""')]) <= 15
    for name in ("hello.py", "train_ddp.py"):
        tree = ast.parse((EXAMPLES / name).read_text())
        imported = {
            a.name.split(".")[0]
            for n in ast.walk(tree)
            if isinstance(n, ast.Import)
            for a in n.names
        }
        imported |= {
            n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)
        }
        assert imported - sys.stdlib_module_names <= {"torch", "torch_mcast"}


def test_ddp_learns_the_same_by_gloo():
    text = two_ranks("train_ddp.py", MCAST_SHARED_MEMORY="off")
    assert "2 ranks have the same weights" in text and "path: multicast" in text
    other = two_ranks("train_ddp.py", "--backend", "gloo")
    losses, theirs = (re.findall(r"loss ([\d.]+)", words) for words in (text, other))
    assert len(losses) == 2 and losses == theirs  # two ranks: one order of summation
    assert float(losses[1]) < float(losses[0])
