"""Jobs without root and without capabilities, on hosts where ranks can read each other's memory and
where they cannot (Yama's ptrace_scope 1; a seccomp filter gives the same error on kernels without
it)."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import host_engine
import pytest

from torch_mcast import _program
from torch_mcast.engine.status import read

HERE = Path(__file__).parent
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
allowed_or_denied = pytest.mark.parametrize("denied", [False, True], ids=["allowed", "denied"])


def readable(denied: bool) -> bool:
    """With ptrace_scope 1 ranks allow each other access; 2 leaves it to administrators, and 3 to no one."""
    return not denied and not (YAMA.exists() and int(YAMA.read_text()) > 1)


@allowed_or_denied
def test_shared_memory_without_rights(network_job, denied):
    env = {"MCAST_SHARED_MEMORY": "auto"}
    with network_job(3, "scenarios_unprivileged.works", denied, env=env) as it:
        for row in it.expect("good"):
            assert row["path"] == "shared memory", row
            cannot = "peers' memory cannot be read" in row["transport"]
            assert cannot != readable(denied), row
        it.order("end")
        it.end()


@pytest.mark.parametrize("algorithm", ["multicast", "ring"])
def test_network_without_rights(network_job, algorithm):
    env = {"MCAST_ALGORITHM": algorithm}
    with network_job(3, "scenarios_unprivileged.works", True, env=env) as it:
        for row in it.expect("good"):
            assert row["path"] == algorithm, row
        it.order("end")
        it.end()


@pytest.fixture
def start_engine() -> Iterator:
    """Starts an engine as the user that the ranks will have. Its program is in a place that this
    user can read."""
    folder = Path(tempfile.mkdtemp(prefix="mcast_user_"))
    engines = []

    def start(denied: bool) -> Path:
        folder.chmod(0o755)
        program = shutil.copy(_program.find_program("mcast-engine"), folder)
        socket = folder / "engine.sock"
        wrapper = [sys.executable, str(HERE / "unprivileged_engine.py"), str(folder)]
        wrapper += ["denied" if denied else "allowed", program, "--socket", str(socket)]
        engines.append(host_engine.Engine(*wrapper))
        line = ""
        while "listens at" not in line and engines[0].poll() is None:
            line += engines[0].stderr.readline()
        assert "listens at" in line, line
        return socket

    yield start
    for engine in engines:
        host_engine.end(engine)
    shutil.rmtree(folder)


# How the engine reads its clients' tensors, by `engine_memory`, if it can access their memory and
# if not.
COPIES = {
    "slots": ("none", "none"),
    "copy": ("process_vm", "descriptor"),
    "map_all": ("none", "none"),
}
# Cases in which nothing is denied, and in which the engine's ranks share memory, run with
# MCAST_TEST_ALL=1 only.
USUAL = {("copy", "off", True), ("map_all", "auto", True)}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in USUAL else [pytest.mark.all_tier])
        for case in itertools.product(COPIES, ("off", "auto"), (False, True))
    ],
    ids=lambda case: f"{case[0]}-{case[1]}-{'denied' if case[2] else 'allowed'}",
)
def test_an_engine_without_rights(network_job, start_engine, case):
    """The engine and its clients are processes of one user."""
    memory, shared_memory, denied = case
    socket = start_engine(denied)
    env = {
        "MCAST_ENGINE": f"host:{socket}",
        "MCAST_ENGINE_MEMORY": memory,
        "MCAST_SHARED_MEMORY": shared_memory,
    }
    with network_job(3, "scenarios_unprivileged.works", denied, env=env) as it:
        for row in it.expect("good"):
            path = "multicast" if shared_memory == "off" else "shared memory"
            assert row["path"] == path and "engine of this host" in row["transport_reason"], row
        clients = read(socket)["clients"]
        found = {(client["uid"] != 0, client["copies"]) for client in clients}
        assert len(clients) == 3 and found == {(True, COPIES[memory][not readable(denied)])}
        it.order("end")
        it.end()
