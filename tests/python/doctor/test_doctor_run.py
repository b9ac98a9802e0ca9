"""Runs the command itself on loopback: once as a user types it, else in processes that need not
import torch."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest
from forked import Forked
from ranks import free_port
from torchrun import torchrun

from torch_mcast.doctor.findings import Verdict, fail, ok, warn
from torch_mcast.doctor.launcher import first_host, in_job, job_of, judge_allocation, tasks_on
from torch_mcast.doctor.report import SCHEMA
from torch_mcast.doctor.table import summary, table

ROW = {"check": str, "finding": str, "verdict": str, "fix": str, "data": dict}
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**variables):
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MCAST_", "TORCHELASTIC_")) and name not in LAUNCHER
    }
    # Traffic stays on loopback.
    return {**base, "MCAST_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **variables}


MODULE = ("-m", "torch_mcast.doctor")


def doctor(*arguments, **variables):
    process = Forked([*MODULE, *arguments], environment(**variables))
    out, err = process.communicate(240)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def typed(*arguments, command=MODULE, cwd=None, **variables):
    return subprocess.run(
        [sys.executable, *command, *arguments],
        env=environment(**variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def findings(done):
    return json.loads(done.stdout)["findings"]


def check_rows(rows):
    for row in rows:
        assert set(row) == set(ROW)
        assert all(isinstance(row[key], kind) for key, kind in ROW.items())
        assert row["verdict"] in ("ok", "warn", "fail")


@pytest.fixture(scope="module")
def local():
    return doctor("--json")


def test_json_schema(local):
    document = json.loads(local.stdout)
    assert set(document) == {
        "schema", "version", "host", "verdict", "exit_code", "findings", "job"
    }  # fmt: skip
    assert document["schema"] == SCHEMA
    assert document["job"] is None
    check_rows(document["findings"])


def test_this_machine_passes_on_loopback(local):
    rows = {row["check"]: row for row in findings(local)}
    for check in (
        "torch", "torch_mcast", "kernel", "variables", "interface used", "multicast on lo",
        "memberships", "mtu of lo", "gso on lo", "gro on loopback", "tcp on lo",
    ):  # fmt: skip
        assert rows[check]["verdict"] == "ok", rows[check]
    assert {"receive buffer", "send buffer", "open files", "locked memory", "process_vm_readv",
            "/dev/shm", "cpus", "route 224.0.0.0/4", "firewall"} <= set(rows)  # fmt: skip
    assert rows["interface used"]["data"]["name"] == "lo"
    assert local.returncode == 0


def test_text_by_the_command_torch_mcast():
    done = typed("doctor", command=("-m", "torch_mcast"), COLUMNS="100")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "finding", "verdict", "fix"]
    assert max(map(len, lines)) <= 100
    assert re.fullmatch(r"\d+ ok, \d+ warn, 0 fail", lines[-1])
    assert done.returncode == 0


def test_mistyped_variable_is_a_warning():
    done = doctor("--json", MCAST_SOCKET_IFNAMES="eth0")
    (row,) = [row for row in findings(done) if row["check"] == "variables"]
    assert row["verdict"] == "warn"
    assert row["data"]["nearest"] == "MCAST_SOCKET_IFNAME"
    assert done.returncode == 0


def test_every_bad_value_is_a_failure():
    done = doctor("--json", MCAST_EAGER="lots", MCAST_TTL="300")
    rows = [row for row in findings(done) if row["check"] == "variables"]
    assert {row["data"]["variable"] for row in rows} == {"MCAST_EAGER", "MCAST_TTL"}
    assert all(row["verdict"] == "fail" and "allowed" in row["finding"] for row in rows)
    assert done.returncode == 1


def test_wrong_interface_is_a_failure_and_the_rest_is_still_checked():
    done = doctor("--json", MCAST_SOCKET_IFNAME="nosuch")
    rows = {row["check"]: row for row in findings(done)}
    assert rows["interface used"]["verdict"] == "fail"
    assert "lo 127.0.0.1" in rows["interface used"]["finding"]
    assert rows["multicast on lo"]["verdict"] == "ok"
    assert done.returncode == 1


def test_without_the_extension(tmp_path):
    """A package without its extension: the doctor reports it, fails, and runs all other checks."""
    import torch_mcast

    source = os.path.dirname(torch_mcast.__file__)
    target = tmp_path / "torch_mcast"
    target.mkdir()
    for name in os.listdir(source):
        if not name.startswith(("_C.", "_build_info", "__pycache__")):
            (target / name).symlink_to(os.path.join(source, name))
    # An editable install would find the extension of the repository for this package too.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in f'{f!r}'.lower()]\n"
    )
    done = typed("--json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    rows = {row["check"]: row for row in findings(done)}
    assert rows["torch"]["verdict"] == "fail"
    assert "no compiled extension" in rows["torch"]["finding"]
    assert rows["variables"]["verdict"] == "fail"
    assert rows["interface used"]["data"]["name"] == "lo"
    assert rows["multicast on lo"]["verdict"] == "ok"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "raise OSError('libcudart.so.13: cannot open shared object file')",
            "OSError: libcudart.so.13",
        ),
        (
            "raise RuntimeError('Failed to load the backend extension: other')",
            "RuntimeError: Failed",
        ),
        (None, "is not installed for this Python"),
    ],
)
def test_with_a_broken_torch_or_none(tmp_path, source, words):
    """The row about torch reports it, and all other checks run."""
    if source is None:  # hidden, wherever it is installed
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    else:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "__init__.py").write_text(source + "\n")
    done = typed("doctor", "--json", command=("-m", "torch_mcast"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stderr
    rows = {row["check"]: row for row in findings(done)}
    assert rows["torch"]["verdict"] == "fail" and words in rows["torch"]["finding"]
    assert rows["torch"]["fix"].startswith("pip install ")
    assert rows["multicast on lo"]["verdict"] == "ok"
    table = typed("doctor", command=("-m", "torch_mcast"), PYTHONPATH=str(tmp_path))
    assert "Traceback" not in table.stdout + table.stderr


def by_torchrun(*arguments, ranks=2, **variables):
    return typed(*arguments, command=(*torchrun(ranks)[1:], *MODULE), **variables)


def test_two_ranks_by_torchrun():
    done = by_torchrun("--json")
    document = json.loads(done.stdout)
    job = document["job"]
    assert job["world_size"] == 2
    assert [row["rank"] for row in job["ranks"]] == [0, 1]
    check_rows(job["findings"])
    for row in job["ranks"]:
        check_rows(row["findings"])
    assert {row["check"]: row["verdict"] for row in job["findings"]} == {
        check: "ok"
        for check in (
            "ranks", "versions", "settings", "hosts", "subnets", "reach", "tcp between ranks"
        )
    }  # fmt: skip
    assert job["reach"]["path"] == "loopback"
    for rank in ("0", "1"):
        assert job["reach"]["heard"][rank]["full"] == [0, 1]
    assert done.returncode == 0


def start_rank(rank, port, *arguments, **variables):
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Forked([*MODULE, "--json", *arguments], environment(RANK=str(rank), **job, **variables))


def test_ranks_with_different_settings_fail_together():
    port = free_port()
    first = start_rank(0, port)
    second = start_rank(1, port, MCAST_EAGER="4096", MCAST_RCVBUFF="1M")
    out, _ = first.communicate(timeout=120)
    silent, _ = second.communicate(timeout=120)
    job = json.loads(out)["job"]
    (row,) = [row for row in job["findings"] if row["check"] == "settings"]
    assert row["verdict"] == "fail"
    assert "32768 on rank 0; 4096 on rank 1" in row["finding"]
    assert "[1] variables" in {row["check"] for row in job["others"]}
    assert silent == ""  # rank 0 reports for all
    assert (first.returncode, second.returncode) == (1, 1)


def test_a_rank_that_never_comes_is_named():
    rank = start_rank(0, free_port(), "--timeout", "2")
    out, _ = rank.communicate(timeout=120)
    (row,) = [row for row in json.loads(out)["job"]["findings"] if row["check"] == "ranks"]
    assert row["data"] == {"missing": [1]}
    assert rank.returncode == 1


def test_no_store_gives_the_own_report():
    rank = start_rank(1, free_port(), "--timeout", "2")
    out, _ = rank.communicate(timeout=120)
    rows = {row["check"]: row for row in json.loads(out)["findings"]}
    assert rows["job"]["verdict"] == "fail"
    assert rows["multicast on lo"]["verdict"] == "ok"
    assert rank.returncode == 1


def test_a_store_that_never_answers_does_not_hang():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rank = start_rank(1, silent.getsockname()[1], "--timeout", "2")
        out, _ = rank.communicate(timeout=200)
    rows = {row["check"]: row for row in json.loads(out)["findings"]}
    assert rows["job"]["verdict"] == "fail"
    assert rank.returncode == 1


def test_launcher_is_seen_by_its_variables():
    assert in_job({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"})
    assert not in_job({"RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("a1,a2", "a1"), ("gpu[03-05,9],login1", "gpu03"), ("n[7]", "n7"),
     ("r[1-2]n[04-05]", "r1n04"), ("rack[1-3]-ib,x", "rack1-ib"), ("", "")],
)  # fmt: skip
def test_the_first_host_of_a_slurm_list(nodes, first):
    assert first_host(nodes) == first


def test_tasks_per_node():
    assert [tasks_on("2(x3),1", node) for node in range(5)] == [2, 2, 2, 1, 1]
    assert tasks_on("", 0) == tasks_on("many", 0) == 1


STEP = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_JOB_NUM_NODES": "2",
}  # fmt: skip


def test_a_slurm_step_is_a_job():
    job = job_of(STEP)
    assert in_job(job) and judge_allocation(job) == []
    assert {name: job[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"
    }  # fmt: skip
    assert job["MASTER_ADDR"] == "node1" and 61000 <= int(job["MASTER_PORT"]) < 65000
    assert job_of({**STEP, "SLURM_PROCID": "0"})["MASTER_PORT"] == job["MASTER_PORT"]
    assert job_of({**STEP, "SLURM_STEP_ID": "1"})["MASTER_PORT"] != job["MASTER_PORT"]
    assert job_of({**STEP, "MASTER_ADDR": "ib1"})["MASTER_ADDR"] == "ib1"
    torchrun = {**STEP, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}
    assert job_of(torchrun) == torchrun  # torchrun within a step takes precedence


def test_a_slurm_step_may_have_part_of_an_allocation():
    part = {
        **STEP, "SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node2",
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "3(x2)",
    }  # fmt: skip
    job = job_of(part)
    assert (job["WORLD_SIZE"], job["LOCAL_WORLD_SIZE"], job["MASTER_ADDR"]) == ("2", "2", "node2")


def test_an_allocation_without_a_step_looks_at_one_host_and_says_so():
    batch = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    assert not in_job(job_of(batch))
    (row,) = judge_allocation(batch)
    assert row.verdict is Verdict.WARN and row.fix.startswith("srun ")
    assert judge_allocation({}) == [] and judge_allocation({"SLURM_JOB_ID": "1"}) == []


def test_two_tasks_of_a_slurm_step():
    slurm = {**STEP, "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(free_port())}  # fmt: skip
    tasks = [
        Forked([*MODULE, "--json"], environment(**{**slurm, "SLURM_PROCID": n, "SLURM_LOCALID": n}))
        for n in "01"
    ]
    (out, err), (silent, _) = (task.communicate(timeout=120) for task in tasks)
    document = json.loads(out)
    assert [row["rank"] for row in document["job"]["ranks"]] == [0, 1] and silent == ""
    assert "torch-mcast doctor: trying multicast and TCP between 2 ranks" in err  # progress


def test_table_fits_and_keeps_commands_whole():
    rows = [
        ok("short", "fine"),
        warn("long", "word " * 60, "sysctl -w net.core.rmem_max=33554432"),
        fail("worst", "x", "y"),
    ]
    text = table(rows, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "net.core.rmem_max=33554432" in text
    assert "\033[31m" in table(rows, 80, colour=True)
    assert summary(rows) == "1 ok, 1 warn, 1 fail"
