"""The benchmark end to end, with small sizes: on loopback, under a launcher, and in a lab against
the byte model."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from lab_fixtures import skip_or_fail
from ranks import free_port
from waiting import until

from torch_mcast.bench import openmpi
from torch_mcast.bench.formulas import OPS
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.system import LabError, package_root

BENCH = [sys.executable, "-m", "torch_mcast.bench"]


def bench(folder, *args, launcher=(), check=True):
    """(finished process, JSON document)."""
    out = folder / "result.json"
    few = ["--repetitions", "3", "--warmup", "1", "--inner", "2"]
    done = subprocess.run(
        [*launcher, *BENCH, "--json", str(out), *few, *args],
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
        "64k",
        "--plot",
        str(plot),
    )
    found = {(row["op"], row["wanted"]) for row in document["rows"]}
    assert found == {(op, 0 if op == "barrier" else 65536) for op in OPS}
    for row in document["rows"]:
        assert row["right"] and row["world"] == 2 and len(row["times_s"]) == 3
        assert 0 < row["min_s"] <= row["median_s"] <= row["p90_s"]
        assert row["bound_s"] is None
        assert row["n"] == 3
    assert document["complete"] and "2 ranks on one host" in document["title"]
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
        "openmpi,openmpi_tuned",
        "--sizes",
        "4k",
        "--ops",
        "broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,barrier,fsdp2",
    )
    by_backend = {
        name: [row for row in document["rows"] if row["backend"] == name]
        for name in ("gloo", "openmpi", "openmpi_tuned")
    }
    for row in by_backend["openmpi"] + by_backend["openmpi_tuned"]:
        assert row["right"] and row["supported"] == (row["op"] != "fsdp2")
        assert not row["supported"] or row["ratio"]["low"] <= row["ratio"]["high"]
    assert len(by_backend["gloo"]) == 7 and "Open MPI" in document["versions"]["openmpi"]
    # "tuned" chooses an algorithm and reports it; whether one is faster than the library's own
    # choice depends on the machine.
    assert all(row["algorithm"] for row in by_backend["openmpi_tuned"] if row["supported"])
    assert not any(row.get("algorithm") for row in by_backend["openmpi"])
    (pair,) = (row for row in by_backend["openmpi_tuned"] if row["op"] == "ag_rs")
    assert pair["algorithm"].startswith(("at once: ", "in sequence: "))
    assert all(
        row["ratio_best"] for row in document["rows"] if row["supported"] and row["op"] != "fsdp2"
    )


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
    # Each host sends its half, plus frame headers, acknowledgements and Gloo's own messages.
    assert half <= gather["lab"]["sent_mean"] <= 1.1 * half
    assert half <= gather["lab"]["received_max"] <= 1.1 * half
    # Every byte crosses two links: the sender's and the receiver's.
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


def test_a_document_instead_of_the_table():
    done = subprocess.run(
        [*BENCH, "--json", "--backends", "mcast", "--ops", "barrier", "--ranks", "2", "--repetitions", "1"],
        env={**os.environ, "MCAST_SOCKET_IFNAME": "lo"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"][0]["op"] == "barrier"


def test_tasks_of_srun_measure_one_job(tmp_path):
    """The job is found by the variables that Slurm gives to the two tasks of a step on one node."""
    shared = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0",
        "MCAST_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    out = tmp_path / "bench.json"
    small = ["--backends", "mcast", "--ops", "all_gather", "--sizes", "4k", "--repetitions", "1"]
    tasks = [
        subprocess.Popen(
            [*BENCH, "--json", str(out), "--warmup", "1", *small],
            env={**shared, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [task.communicate(timeout=200)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    [row] = json.loads(out.read_text())["rows"]
    assert row["world"] == 2, row
    assert ["ratio > 1" in output for output in outputs] == [True, False], outputs


def test_a_backend_that_does_not_exist_is_an_error_that_says_so(tmp_path):
    done, _ = bench(tmp_path, "--backends", "nonsense", "--ops", "barrier", check=False)
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_a_torch_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.13: gone')\n")
    done = subprocess.run(
        [*BENCH, "--backends", "mcast", "--ops", "barrier"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{package_root()}"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "torch-mcast bench: rank 0: OSError: libcudart.so.13: gone (run torch-mcast doctor for details)\n"
    )


# An external program that does barriers, and does not end a broadcast.
SLOW = """
import contextlib, sys
from torch_mcast.bench import cli, driver
from torch_mcast.lab.system import finished
class Slow:
    version = "1"
    def measure(self, op, *_):
        if op == "broadcast":
            finished(["sleep", "100"], 0.1, "uftp in h1")
        return {"s": 0.01, "cpu_s": None, "right": True}
driver.peers.start = lambda *_: contextlib.nullcontext(Slow())
cli.peers.missing = lambda name: None
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_program_that_does_not_end_leaves_what_was_measured(tmp_path):
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", SLOW, "--json", str(out), "--repetitions", "3", "--backends", "gloo",
         "--peers", "uftp", "--ops", "barrier,broadcast", "--sizes", "4k"],
        env={**os.environ, "PYTHONPATH": package_root()}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr == "torch-mcast bench: uftp in h1: has not ended after 0.1 s\n"
    document = json.loads(out.read_text())
    assert document["complete"] is False
    assert {row["op"] for row in document["rows"]} == {"barrier"}
    assert "barrier" in done.stdout and "stopped before the end" in done.stdout


def test_a_case_that_is_stopped_has_the_timings_until_then(tmp_path):
    out = tmp_path / "result.json"
    # Two calls of the warm-up, one of the check, and the first repetition; the second does not end.
    few = SLOW.replace(
        'if op == "broadcast":', 'calls.append(op)\n        if calls.count("broadcast") > 4:'
    )
    done = subprocess.run(
        [sys.executable, "-c", "calls = []\n" + few, "--json", str(out), "--repetitions", "3", "--backends",
         "gloo", "--peers", "uftp", "--ops", "broadcast", "--sizes", "4k", "--warmup", "2"],
        env={**os.environ, "PYTHONPATH": package_root()}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and "uftp in h1: has not ended" in done.stderr, done.stderr
    document = json.loads(out.read_text())
    found = {row["backend"]: row for row in document["rows"]}
    assert found.keys() == {"gloo", "uftp"}
    assert all(row["partial"] and 1 <= row["n"] < 3 for row in found.values())
    assert found["uftp"]["median_s"] == 0.01 and found["gloo"]["median_s"] > 0
    assert "broadcast of 4 KiB: stopped during this case" in " ".join(done.stdout.split())
    assert document["rank_environment"]["MCAST_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("stopped", [(0, 1), pytest.param((1,), marks=pytest.mark.all_tier)])
def test_ranks_of_a_launcher_that_are_stopped_leave_what_they_had(tmp_path, stopped):
    out = tmp_path / "result.json"
    about = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            [*BENCH, "--json", str(out), "--backends", "gloo", "--ops", "barrier,all_gather", "--sizes",
             "1k:64M:2", "--repetitions", "1000", "--inner", "1000", "--case-seconds", "1"],
            env={**os.environ, **about, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": package_root()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    until(out.exists, "the first case", process=ranks[0])
    for rank in stopped:
        ranks[rank].send_signal(signal.SIGTERM)
    output, errors = ranks[0].communicate(timeout=60)
    assert ranks[1].communicate(timeout=60)[0] == "" and ranks[1].returncode == -signal.SIGTERM
    if 0 in stopped:
        assert ranks[0].returncode == 128 + signal.SIGTERM and "stopped by SIGTERM" in errors
    else:
        assert ranks[0].returncode == 2
    assert "stopped before the end" in output and "barrier" in output and "Traceback" not in errors
    document = json.loads(out.read_text())
    assert document["complete"] is False and document["rows"]
    assert {(row["world"], row["hosts"]) for row in document["rows"]} == {(2, 1)}
    assert "1 hosts x 2 ranks" in document["title"]


def test_a_compiler_that_does_not_end_is_one_error(tmp_path, monkeypatch):
    compiler = tmp_path / "mpicc"
    compiler.write_text("#!/bin/sh\nexec sleep 100\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(openmpi, "_BUILD_S", 0.1)
    with pytest.raises(LabError, match=r"^mpicc .*: has not ended after 0\.1 s$"):
        openmpi._build(tmp_path)


def test_a_command_in_a_host_that_does_not_end_is_one_error(lab_rights):
    with (
        Lab(LabSpec(hosts=1)) as lab,
        pytest.raises(LabError, match=r"^sleep 100 in h1: has not ended after 0\.5 s$"),
    ):
        lab.run("h1", ["sleep", "100"], timeout_s=0.5)


@pytest.mark.parametrize(
    "args, words",
    [
        (["--rate", "abc"], "--rate needs --hosts"),
        (["--mtu=1500"], "--mtu needs --hosts"),
        (["--hosts", "2", "--ranks", "3"], "--ranks is for ranks on this host"),
        (["--link-rate", "1gbit"], "--link-rate is for torchrun"),
        (["--hosts", "2", "--link-mtu", "9000"], "--link-mtu is for torchrun"),
    ],
)
def test_options_that_would_change_nothing_are_refused(tmp_path, args, words):
    done, document = bench(tmp_path, *args, "--ops", "barrier", check=False)
    assert done.returncode == 2 and words in done.stderr and document is None
    assert len(done.stderr.strip().splitlines()) == 1


def test_lab_options_are_refused_under_a_launcher(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    done, _ = bench(tmp_path, "--hosts", "2", "--ops", "barrier", check=False)
    assert done.returncode == 2 and "this run is under torchrun" in done.stderr


def test_a_wrong_result_after_the_timings_is_found(tmp_path, monkeypatch):
    # A backend that stops writing its outputs: right at the warm-up, and never afterwards.
    (tmp_path / "sitecustomize.py").write_text(
        "import torch.distributed as dist\n"
        "name = 'all_gather_single' if hasattr(dist, 'all_gather_single') else 'all_gather_into_tensor'\n"
        "real, calls = getattr(dist, name), []\n"
        "def lazy(*args, **kwargs):\n"
        "    calls.append(1)\n"
        "    return real(*args, **kwargs) if len(calls) < 4 else None\n"
        "setattr(dist, name, lazy)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "result.json"
    done = subprocess.run(
        [*BENCH, "--json", str(out), "--repetitions", "1", "--warmup", "1", "--backends", "gloo",
         "--ops", "all_gather", "--sizes", "1k", "--inner", "1"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{package_root()}"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "WRONG RESULT" in done.stdout, done.stdout + done.stderr
    assert [row["right"] for row in json.loads(out.read_text())["rows"]] == [False]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.all_tier)]
)
def test_a_run_that_is_stopped_leaves_what_it_had(tmp_path, number):
    out = tmp_path / "result.json"
    process = subprocess.Popen(
        [*BENCH, "--json", str(out), "--backends", "gloo", "--ops", "barrier,all_gather", "--sizes",
         "1k:64M:2", "--repetitions", "1000", "--inner", "1000", "--case-seconds", "1"],
        env={**os.environ, "PYTHONPATH": package_root()},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(out.exists, "the first case", process=process)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number and f"stopped by {number.name}" in errors
    document = json.loads(out.read_text())
    assert document["complete"] is False and document["rows"]
    assert "stopped before the end" in output and "barrier" in output
