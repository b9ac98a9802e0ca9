"""`torch-mcast bench --device`: on the fake device, on CPU tensors, and where there is no such device."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import device_ranks
import pytest

from torch_mcast.bench import cli, device

library, device_pools, either = (
    device_ranks.library,
    device_ranks.device_pools,
    device_ranks.either,
)
pytest_generate_tests = device_ranks.pytest_generate_tests
SIZES = [4096, 300_000]


def measured(name: str, steps: int) -> dict:
    wanted = device.Wanted(name, SIZES, rounds=3, steps=steps, width=64, layers=2)
    return device.measure(wanted)


def check(document: dict, name: str, world: int) -> None:
    assert (document["device"], document["world"]) == (name, world)
    rows = {(row["op"], row.get("bytes")): row for row in document["rows"] if row["op"] != "fsdp2"}
    assert set(rows) == {(op, size) for op in device.OPS for size in SIZES}
    for row in rows.values():
        for column in ("copies", "cpu", "device", "call"):
            low, middle, high = row[column]
            assert 0 < low <= middle <= high, (row, column)
        assert row["call"][1] <= row["device"][2]
    text = device.shown(document)
    assert "all_gather 0.00390625 MiB: copies " in text and f"path: {document['path']}" in text


def test_the_fake_device_is_measured(either):
    for document in either(2, measured, either.device, 0):
        check(document, either.device, 2)
        if either.device == "fake":  # Gloo has no operation for it, and the row says so
            assert all(isinstance(row["gloo"], str) for row in document["rows"])
            assert "gloo - (" in device.shown(document)


def test_training_steps_are_measured_beside_gloo(ranks):
    """On CPU tensors, by the same code: both backends train alike."""
    for document in ranks(2, measured, "cpu", 3):
        check(document, "cpu", 2)
        [step] = [row for row in document["rows"] if row["op"] == "fsdp2"]
        losses = step["last loss"]
        assert math.isclose(losses["mcast"], losses["gloo"], rel_tol=1e-4), losses
        assert step["mcast"][1] > 0 and step["gloo"][1] > 0


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_mcast.bench", *arguments]
    without = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=without
    )


def test_without_a_gpu_it_says_so():
    done = bench("--device", "cuda")
    assert done.returncode == 2 and done.stdout == ""
    assert "--device cuda: no cuda device: torch.cuda.is_available() is False" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "nosuch"], "knows no device 'nosuch'"),
        (["--device", "meta"], "knows no device 'meta'"),
    ],
)
def test_devices_that_torch_does_not_know(arguments, words, capsys):
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_ranks_of_a_launcher_measure_together(tmp_path):
    """As the command starts them where no launcher has, and as `srun torch-mcast bench --device` has them."""
    wanted = {"device": "cpu", "sizes": [4096], "ops": ["all_reduce"], "rounds": 3, "steps": 0}
    command = [*cli.torchrun(2), json.dumps(wanted), "--json", str(tmp_path / "result.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["world"] == 2 and [row["op"] for row in document["rows"]] == ["all_reduce"]
    assert done.stdout.count("all_reduce 0.00390625 MiB: copies ") == 1
