"""torchrun with a variable number of nodes: one joins a running job, then is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import free_port
from torchrun import LOCAL
from waiting import GUARD_S, until

SCRIPT = Path(__file__).with_name("elastic.py")


class Node:
    """An agent and its worker, in a session of their own."""

    def __init__(self, folder: Path, name: str, port: int, shared_memory: str):
        self.log = folder / f"log-{name}"
        command = [
            *LOCAL, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "elastic", "--nnodes", "1:2",
            "--rdzv-conf", "last_call_timeout=1", "--max-restarts", "5", "--monitor-interval", "0.2",
            "--nproc-per-node", "1", str(SCRIPT), str(folder),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                     "MCAST_SHARED_MEMORY": shared_memory,
                     # Up to torch 2.15 a joining node never gets the address of the shared store.
                     "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                     "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip

    def kill(self) -> None:
        """The machine fails without notifying anyone."""
        # (The worker has a session of its own, but is the agent's child.)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = children.read_text().split() if self.process.poll() is None else []
        for pid in [self.process.pid, *map(int, pids)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(GUARD_S)


@pytest.mark.all_tier  # torch takes half a minute to notice the dead node
@pytest.mark.parametrize("shared_memory", ["off", "auto"])
def test_a_job_grows_and_shrinks(tmp_path, shared_memory):
    port = free_port()
    nodes = [Node(tmp_path, "first", port, shared_memory)]

    def log() -> str:
        return "\n".join(f"--- {node.log.name}\n{node.log.read_text()}" for node in nodes)

    def becomes(size: int) -> None:
        """Waits for the job to continue with this size in a newly created group."""
        before = len(list(tmp_path.glob("size-*")))
        until(lambda: len(list(tmp_path.glob("size-*"))) > before, log, process=nodes[0].process)
        assert (tmp_path / f"size-{before}-{size}").exists(), log()

    try:
        becomes(1)
        nodes.append(Node(tmp_path, "second", port, shared_memory))
        becomes(2)
        nodes[1].kill()
        becomes(1)
        (tmp_path / "end").touch()
        assert nodes[0].process.wait(GUARD_S) == 0, log()
        assert (tmp_path / "good-0").exists()
    finally:
        for node in nodes:
            node.kill()
    assert "terminate called" not in log() and "Segmentation" not in log(), log()
