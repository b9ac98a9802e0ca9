"""Frameworks of users, as they are installed from their packages, on small models: docs/stacks.md says what to write
for each. Where the same job can run over Gloo, it does, and the results are the same to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from named_errors import LOST, check_error
from torchrun import torchrun

from torch_mcast.lab.system import package_root

pytestmark = pytest.mark.all_tier
ROOT = Path(__file__).parents[3]
PYTHON = str(ROOT / "build" / "frameworks" / "bin" / "python")  # tools/setup.sh frameworks
LIMIT_S = 500


def run(command: list[str], script: str, *words: str) -> str:
    """Runs the script and returns what it has written to its outputs."""
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(script)), *words],
        env={
            **os.environ, "PYTHONPATH": package_root(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",  # it ends workers for what others of the machine use
        },
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def reports(file: Path, ranks: int = 2) -> list[dict[str, Any]]:
    """By rank."""
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(ranks)]


def compare(folder: Path) -> None:
    """The reports FOLDER/mcast.RANK with FOLDER/gloo.RANK."""
    for mine, its in zip(reports(folder / "mcast"), reports(folder / "gloo"), strict=True):
        assert (mine["backend"], its["backend"]) == ("mcast", "gloo")
        assert mine["losses"] == its["losses"] and len(mine["losses"]) >= 4
        assert len(set(mine["losses"])) > 1  # something is trained
        assert any("reduce" in name for name in mine["calls"]), mine["calls"]
        assert not any(row["fallback"] for row in mine["calls"].values()), mine["calls"]


@pytest.mark.parametrize(
    "framework", ["lightning", "accelerate", "transformers", "deepspeed-zero1", "deepspeed-zero3"]
)
def test_losses_equal_gloo(framework, tmp_path):
    for backend in ("mcast", "gloo"):
        run(torchrun(2, PYTHON), "train.py", framework, backend, str(tmp_path / backend))
    compare(tmp_path)


def test_megatron_losses_equal_gloo(tmp_path):
    for backend in ("mcast", "gloo"):
        run(torchrun(2, PYTHON), "megatron_job.py", backend, str(tmp_path / backend))
    compare(tmp_path)
    for row in reports(tmp_path / "mcast"):
        assert row["cpu"]["all_gather"]["engine"] > 0  # Megatron's group for CPU tensors
        assert row["both"] == [row["losses"]] * 2


def test_torchtitan_losses_equal_one_rank(tmp_path):
    """Gloo cannot run it on two ranks: it has no PREMUL_SUM, by which FSDP2 turns its division off."""
    run(torchrun(2, PYTHON), "titan_job.py", "mcast", str(tmp_path / "two"))
    run(torchrun(1, PYTHON), "titan_job.py", "gloo", str(tmp_path / "one"))
    parts = [[float.fromhex(loss) for loss in row["losses"]] for row in reports(tmp_path / "two")]
    (alone,) = reports(tmp_path / "one", 1)
    expected = [float.fromhex(loss) for loss in alone["losses"]]
    assert [sum(rows) for rows in zip(*parts, strict=True)] == pytest.approx(expected, rel=2e-4)
    assert expected[0] - expected[-1] > 0.2  # it learns
    for row in reports(tmp_path / "two"):
        assert {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"} <= row[
            "calls"
        ].keys()
        assert not any(counts["fallback"] for counts in row["calls"].values())


@pytest.fixture(scope="module")
def ray_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    run([PYTHON], "ray_jobs.py", str(folder))
    return folder


@pytest.mark.alone  # Ray starts some ten processes, which have limits of their own
def test_ray_train_losses_equal_gloo(ray_folder):
    compare(ray_folder)


@pytest.mark.alone
def test_ray_collective_groups(ray_folder):
    made = json.loads((ray_folder / "groups.json").read_text())
    both = {
        "sum": [10.0, 12.0, 14.0, 16.0],
        "max": [10.0, 11.0, 12.0, 13.0],
        "array": [10.0, 12.0, 14.0, 16.0],
        "sent to all": [10.0, 11.0, 12.0, 13.0],
        "gathered": [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0],
        "received": [0.0, 1.0, 2.0, 3.0],
    }
    own: list[dict[str, Any]] = [
        {"reduced": [0.0, 1.0, 2.0, 3.0], "scattered": [10.0, 12.0]},
        {"reduced": [10.0, 12.0, 14.0, 16.0], "scattered": [14.0, 16.0]},
    ]
    for name in ("0 a", "1 b", "2 a", "declared"):
        for rank, got in enumerate(made[name]):
            calls = got.pop("calls")
            assert got == both | own[rank], name
            assert calls["all_reduce"] == 3 and calls["barrier"] == calls["reduce_scatter"] == 1
    assert "got 2 tensors, the group has one per rank" in made["wrong"]
    check_error(made["outlived"], LOST, rank=1)


def test_torchft_replica_comes_back(tmp_path):
    """One of three replicas is killed within an all-reduce. The others go on without it, until it is back."""
    run([PYTHON], "replicas.py", str(tmp_path), "mcast")
    first, back, third = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(3))
    assert first["group"] == "torchft-mcast"
    for survivor in (first, third):
        assert survivor["participants"] == [3, 2, 3]
        (error,) = survivor["errors"]
        check_error(error, LOST, rank=1)
        assert "torchft_quorum_1" in error, error
        assert survivor["calls"]["all_reduce"] == {"engine": 3, "fallback": 0}
    assert back["participants"] == [3] and back["errors"] == []
    assert first["parameters"] == back["parameters"] == third["parameters"]
