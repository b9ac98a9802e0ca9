"""The benchmark end to end, tiny: on loopback, under a launcher, and in a lab against the byte
model."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from torch_mcast.bench.formulas import OPS
from torch_mcast.lab.pytest_plugin import skip_or_fail
from torch_mcast.lab.system import package_root

BENCH = [sys.executable, "-m", "torch_mcast.bench"]


def bench(folder, *args, launcher=(), check=True):
    """(finished process, JSON document)."""
    out = folder / "result.json"
    done = subprocess.run(
        [*launcher, *BENCH, "--json", str(out), "--repetitions", "3", "--warmup", "1", *args],
        env={**os.environ, "PYTHONPATH": package_root()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done, json.loads(out.read_text()) if out.exists() else None


def test_two_ranks_on_loopback(tmp_path):
    plot = tmp_path / "plot.png"
    done, document = bench(
        tmp_path,
        "--backends",
        "gloo",
        "--ops",
        ",".join(OPS),
        "--sizes",
        "1k,64k",
        "--plot",
        str(plot),
    )
    found = {(row["op"], row["wanted"]) for row in document["rows"]}
    assert found == {(op, size) for op in OPS if op != "barrier" for size in (1024, 65536)} | {
        ("barrier", 0)
    }
    for row in document["rows"]:
        assert row["right"] and row["world"] == 2 and len(row["times_s"]) == 3
        assert 0 < row["min_s"] <= row["median_s"] <= row["p90_s"]
        assert row["bound_s"] is None
    assert "all_gather" in done.stdout and document["machine"]["kernel"] == os.uname().release
    assert document["command"].startswith("torch-mcast bench ") and document["versions"]["torch"]
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.all_tier
def test_open_mpi_is_measured_beside(tmp_path):
    if not (shutil.which("mpirun") and shutil.which("mpicc")):
        skip_or_fail("Open MPI is not installed")
    _, document = bench(
        tmp_path,
        "--backends",
        "gloo",
        "--peers",
        "openmpi",
        "--sizes",
        "4k",
        "--ops",
        "broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,barrier,fsdp2",
    )
    by_backend = {
        name: [row for row in document["rows"] if row["backend"] == name]
        for name in ("gloo", "openmpi")
    }
    for row in by_backend["openmpi"]:
        assert row["right"] and row["supported"] == (row["op"] != "fsdp2")
        assert not row["supported"] or row["ratio"]["low"] <= row["ratio"]["high"]
    assert len(by_backend["gloo"]) == 7 and "Open MPI" in document["versions"]["openmpi"]


@pytest.mark.all_tier
def test_raw_multicast_is_measured_beside(tmp_path, lab_rights):
    _, document = bench(
        tmp_path,
        "--hosts",
        "3",
        "--backends",
        "gloo",
        "--peers",
        "blaster",
        "--ops",
        "broadcast,all_gather",
        "--sizes",
        "1M",
    )
    rows = {row["op"]: row for row in document["rows"] if row["backend"] == "blaster"}
    assert rows["broadcast"]["supported"] and rows["broadcast"]["median_s"] > 0
    assert not rows["all_gather"]["supported"]


def test_a_lab_of_its_own_counts_the_bytes_of_a_ring(tmp_path, lab_rights):
    _, document = bench(
        tmp_path,
        "--hosts",
        "2",
        "--rate",
        "1gbit",
        "--backends",
        "gloo",
        "--ops",
        "all_gather,broadcast",
        "--sizes",
        "1M",
    )
    gather, broadcast = document["rows"]
    half = (1 << 20) / 2
    # Each host sends its half; frames, acknowledgements and Gloo's own messages come on top.
    assert half <= gather["lab"]["sent_mean"] <= 1.1 * half
    assert half <= gather["lab"]["received_max"] <= 1.1 * half
    # A host's link and the other's: every byte crosses two.
    assert gather["lab"]["fabric"] == pytest.approx(4 * gather["lab"]["sent_mean"], rel=0.02)
    assert 1 << 20 <= broadcast["lab"]["sent_max"] <= 1.1 * (1 << 20)
    assert gather["bound_s"] == pytest.approx(half / 118.9e6, rel=1e-3)


@pytest.mark.all_tier
def test_under_a_launcher_rank_0_reports(tmp_path, lab_rights):
    launcher = [sys.executable, "-m", "torch_mcast.lab", "run", "--hosts", "2", "--"]
    done, document = bench(
        tmp_path,
        "--backends",
        "gloo",
        "--ops",
        "all_gather",
        "--sizes",
        "256k",
        "--link-rate",
        "1gbit",
        launcher=launcher,
    )
    [row] = document["rows"]
    assert row["world"] == row["hosts"] == 2 and row["bound_s"] > 0
    assert set(row["nic"]) == {"h1", "h2"} and all(
        sent >= 1 << 17 for sent, _ in row["nic"].values()
    )
    assert "[h1/0]" in done.stdout and "all_gather" in done.stdout


def test_a_backend_that_does_not_exist_is_an_error_that_says_so(tmp_path):
    done, _ = bench(tmp_path, "--backends", "nonsense", "--ops", "barrier", check=False)
    assert done.returncode == 2 and "nonsense" in done.stderr
