"""The units of engine and aggregator together, under a systemd that is process 1 of namespaces in a
virtual machine: its cgroups, users and /run belong to the test."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import vm_image
from nodes import result_of

from torch_mcast.engine import main

ROOT = Path(__file__).parents[3]
A, B = "torch-mcast-engine@a.service", "torch-mcast-engine@b.service"
AGGREGATOR = "torch-mcast-aggregator.service"
MCAST = 901  # User=mcast, created by systemd.sh
ENGINE_FOLDER, AGGREGATOR_FOLDER = "/run/torch-mcast", "/run/torch-mcast-aggregator"
ENGINE_FILES = {
    ENGINE_FOLDER: ("d", "755"),
    f"{ENGINE_FOLDER}/engine.sock": ("s", "660"),
    f"{ENGINE_FOLDER}/engine.sock.drain": ("s", "600"),
    f"{ENGINE_FOLDER}/engine.sock.status": ("s", "666"),
}
AGGREGATOR_FILES = {
    AGGREGATOR_FOLDER: ("d", "755"),
    f"{AGGREGATOR_FOLDER}/aggregator.sock": ("s", "666"),
}


def below(files: dict, folder: str) -> dict:
    """Returns the folder and its contents."""
    return {p: f for p, f in files.items() if p == folder or p.startswith(folder + "/")}


def kinds(files: dict) -> dict:
    return {path: (file["type"], file["mode"]) for path, file in files.items()}


def owners(files: dict) -> set[tuple[int, int]]:
    return {(file["uid"], file["gid"]) for file in files.values()}


def check_step(step: dict, engine: bool, aggregator: bool) -> None:
    """Checks the files while these two units run or not: each has its own, by type, mode and owner."""
    ours, theirs = (below(step["files"], f) for f in (ENGINE_FOLDER, AGGREGATOR_FOLDER))
    assert set(ours) | set(theirs) == set(step["files"])
    # The folder stays for the other instance.
    assert kinds(ours) == (ENGINE_FILES if engine else {ENGINE_FOLDER: ("d", "755")}), step
    assert owners(ours) == {(MCAST, MCAST)}
    assert kinds(theirs) == (AGGREGATOR_FILES if aggregator else {}), step
    dynamic = {uid for uid, _ in owners(theirs)}
    assert len(dynamic) == aggregator and MCAST not in dynamic and 0 not in dynamic
    assert (step[AGGREGATOR]["ActiveState"] == "active") == aggregator, step[AGGREGATOR]


@pytest.mark.alone  # what it waits for has a minute
@pytest.mark.all_tier  # an emulated machine, and some twenty Python processes in it
def test_both_units_under_systemd(machines, tmp_path):
    missing = vm_image.missing_tools() + ([] if shutil.which("systemctl") else ["systemd"])
    if missing:
        pytest.skip(f"needs: apt install {' '.join(missing)}")
    assert main(["install", "systemd", "--write", str(tmp_path)]) == 0
    shutil.copy(ROOT / "tools" / AGGREGATOR, tmp_path)
    here = Path(__file__).parent
    command = ["sh", str(here / "systemd.sh"), str(tmp_path), str(ROOT / "torch_mcast")]
    command += [str(Path(sys.executable).resolve()), sys.base_prefix, str(here / "units_inside.py")]
    nodes = machines(1, command, memory_mb=768)
    assert nodes.result.code == 0, nodes.text()
    steps = result_of(nodes.before("LOG").outputs[0])
    check_processes(steps)
    check_readers(steps["bob"])
    both = steps["both"]["files"]
    for name, step in steps.items():
        if isinstance(step, dict) and "files" in step:
            check_step(step, name != "without engine", name != "without aggregator")
    # One starts and stops; the other's files are unchanged.
    for name in ("without aggregator", "aggregator again"):
        assert below(steps[name]["files"], ENGINE_FOLDER) == below(both, ENGINE_FOLDER), name
    again = below(steps["aggregator again"]["files"], AGGREGATOR_FOLDER)
    for name in ("without engine", "engine again"):
        assert below(steps[name]["files"], AGGREGATOR_FOLDER) == again, name
    restarted = below(steps["restarted"]["files"], AGGREGATOR_FOLDER)
    for name in ("killed", "upgraded"):
        assert below(steps[name]["files"], AGGREGATOR_FOLDER) == restarted, name
    assert steps["without engine"][A]["ActiveState"] == "inactive"
    assert steps["killed"][A]["NRestarts"] == "1"
    upgraded = steps["upgraded"]
    assert (upgraded[A]["ActiveState"], upgraded[B]["ActiveState"]) == ("inactive", "active")
    assert upgraded["pid"] in {p["pid"] for p in upgraded[B + " processes"]}


def check_processes(steps: dict) -> None:
    """Checks users and limits, as systemd and the kernel report them."""
    engine, aggregator = steps["processes"][A], steps["processes"][AGGREGATOR]
    assert {p["name"] for p in engine} == {"mcast-engine"} and len(engine) == 2, "and its guardian"
    assert {p["uid"] for p in engine} == {MCAST}
    assert [p["name"] for p in aggregator] == ["mcast-aggregato"]
    assert steps["pid"] in {p["pid"] for p in engine}
    for unit, oom in ((A, -500), (AGGREGATOR, 0)):
        shown = steps["both"][unit]
        assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
        assert (shown["LimitCORE"], shown["OOMScoreAdjust"]) == ("0", str(oom))
        for process in steps["processes"][unit]:
            assert process["core"] == ["0", "0"], "no dump has tensors and keys"
            assert process["oom_score_adj"] == oom
            assert process["memory_max"] == int(shown["MemoryMax"])
    assert aggregator[0]["memory_max"] == 1 << 30
    assert engine[0]["memory_max"] == pytest.approx(0.9 * steps["memory"], rel=0.02)


def check_readers(bob: dict) -> None:
    """A user of neither group reads both statuses, and the users they report."""
    for name in ("engine", "by name", "aggregator"):
        assert bob[name]["code"] == 0, bob[name]
    assert "at /run/torch-mcast/engine.sock" in bob["engine"]["said"]
    assert bob["another"]["code"] == 1
    assert "user 901 (mcast) listens there, expected user 902 (alice)" in bob["another"]["said"]
