"""`torch-mcast bench --device`: on the fake device, on CPU tensors, and without such a device."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import device_ranks
import pytest
import torch.distributed as dist

from torch_mcast.bench import cli, device
from torch_mcast.cost_model import constants

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
        whole = row["bytes"] * (world if row["op"] in ("all_gather", "reduce_scatter") else 1)
        assert row["gb_s"] == pytest.approx(whole / row["device"][1] / 1e6)
        assert (row["route"], row["wrong"]) == ("host", [])
    text = device.shown(document)
    assert "all_gather 0.00390625 MiB: copies " in text and f"path: {document['path']}" in text
    assert text.count(" GB/s  route host") == len(rows) and "WRONG" not in text
    # All ranks share the one device that there is.
    assert document["gpus"] == (0 if name == "cpu" else 1)
    assert (" on 1 " in text) == (name != "cpu")


def test_the_fake_device_is_measured(either):
    for document in either(2, measured, either.device, 0):
        check(document, either.device, 2)
        if either.device == "fake":  # Gloo lacks the operation for it, which the row says
            assert all(isinstance(row["gloo"], str) for row in document["rows"])
            assert "gloo - (" in device.shown(document)
        # The document is a file of constants of `torch-mcast estimate gpu`.
        assert document["path"] == "multicast"  # these ranks are on loopback
        found = constants.from_bench(json.loads(json.dumps(document)))
        assert set(found) == {"pcie", "lane"}
        row = next(r for r in document["rows"] if (r["op"], r["bytes"]) == ("all_gather", SIZES[1]))
        assert found["lane"] == pytest.approx(2 * SIZES[1] / row["cpu"][1] / 1e6)
        document["path"] = "shared memory"
        found = constants.from_bench(document)
        assert set(found) == {"pcie", "host_gather", "host_reduce_scatter", "host_all_reduce"}
        assert found["host_gather"] == pytest.approx(row["gb_s"])


def broken() -> tuple[list[str], str]:
    """An all_gather whose result by Gloo is wrong on rank 1 only."""
    plain = device.operation
    wanted = device.Wanted("cpu", [4096], ("all_gather",), rounds=3, steps=0)
    groups = device.make_groups(wanted)

    def operation(name, size, where, group):
        once, right = plain(name, size, where, group)
        spoiled = group is groups["gloo"] and dist.get_rank() == 1
        return once, (lambda: False) if spoiled else right

    device.operation = operation
    try:
        [row] = device.operations(wanted, groups)
    finally:
        device.operation = plain
    return row["wrong"], device.shown({"rows": [row], "path": "", "world": 2, "gpus": 0})


def test_a_wrong_result_of_one_rank_is_told_by_all(ranks):
    for wrong, text in ranks(2, broken):
        assert wrong == ["gloo"]
        assert "WRONG RESULT: gloo" in text


@pytest.mark.parametrize("name", device.OPS)
def test_results_are_checked(ranks, name):
    for outcome in ranks(2, checked, name):
        assert outcome == [False, True]


def checked(name: str) -> list[bool]:
    """Before and after the operation. The root's tensor of a broadcast is right from the start."""
    groups = device.make_groups(device.Wanted("cpu", []))
    once, right = device.operation(name, 4000, "cpu", groups["mcast"])
    before = right() and not (name == "broadcast" and dist.get_rank() == 0)
    once()
    return [before, right()]


def test_what_crosses_the_bus(ranks):
    sizes = {"all_gather": [(8, 16)] * 3, "broadcast": [(8, 0), (0, 8), (0, 8)],
             "reduce_scatter": [(24, 8)] * 3, "all_reduce": [(8, 8)] * 3}  # fmt: skip
    for rank, crossing in enumerate(ranks(3, crossings)):
        assert crossing == {name: each[rank] for name, each in sizes.items()}


def crossings() -> dict[str, tuple[int, int]]:
    return {name: device.crossing(name, 8) for name in device.OPS}


@pytest.mark.parametrize(
    ("settings", "gpus", "nccl", "local", "names"),
    [
        ([], 8, True, "8", ["mcast", "nccl", "gloo"]),
        ([], 1, True, "2", ["mcast", "gloo"]),  # NCCL has no two ranks on a GPU
        ([], 8, False, "8", ["mcast", "gloo"]),
        ([{"name": "route"}], 1, True, "1", ["mcast", "staged", "nccl", "gloo"]),
    ],
)
def test_what_is_compared(monkeypatch, settings, gpus, nccl, local, names):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    found = device.options_of(device.Wanted("cuda", []), settings, gpus, nccl)
    assert list(found) == names
    assert found["mcast"] == {"fallback": "none"} and found["gloo"] is None
    if "staged" in names:
        assert found["staged"] == {"fallback": "none", "route": "all:host"}
    assert "nccl" not in device.options_of(device.Wanted("fake", []), settings, gpus, nccl)


@pytest.mark.parametrize(
    ("routes", "calls", "route"),
    [
        ({}, {}, "host"),
        ({}, {"engine": 5, "fallback": 2}, "host"),
        ({}, {"engine": 0, "fallback": 3}, "fallback nccl"),
        ({"all_gather": "peer"}, {"engine": 5, "fallback": 2}, "peer"),
        ({"all_gather": {"route": "rails", "why": ""}}, {}, "rails"),
        ({"all_reduce": "peer"}, {}, "host"),
    ],
)
def test_the_route_of_a_call(routes, calls, route):
    stats = {
        "device": {"routes": routes} if routes else {},
        "calls": {"all_gather_into_tensor": calls} if calls else {},
        "fallback": {"cuda": "nccl"},
    }
    assert device.route_of(stats, "all_gather", 2) == route


def test_training_steps_are_measured_beside_gloo(ranks):
    """CPU tensors use the same code: both backends train alike."""
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
        (["--device", "nosuch"], "has no device type 'nosuch'"),
        (["--device", "meta"], "has no device type 'meta'"),
    ],
)
def test_devices_that_torch_does_not_know(arguments, words, capsys):
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--warmup", "3"], "--warmup is not for --device; it takes --device, --ops, --sizes"),
        (["--backends=mcast"], "--backends is not for --device"),
        (["--no-check"], "--no-check is not for --device"),
        (
            ["--ops", "all_to_all"],
            "--ops all_to_all with --device: known are all_gather, broadcast,",
        ),
    ],
)
def test_options_that_would_change_nothing(arguments, words, capsys, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda name: "")
    assert cli.main(["--device", "cuda", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_ranks_of_a_launcher_measure_together(tmp_path):
    """Starts ranks as the command does without a launcher, and as `srun torch-mcast bench --device`
    does."""
    wanted = {"device": "cpu", "sizes": [4096], "ops": ["all_reduce"], "rounds": 3, "steps": 0}
    command = [*cli.torchrun(2), json.dumps(wanted), "--json", str(tmp_path / "result.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["world"] == 2 and [row["op"] for row in document["rows"]] == ["all_reduce"]
    assert done.stdout.count("all_reduce 0.00390625 MiB: copies ") == 1
