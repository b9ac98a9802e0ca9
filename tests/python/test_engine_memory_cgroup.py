"""Memory that clients share with the engine of their host is charged to the clients. Else an engine
in its own container would end with all its jobs when one of them gathers more than the engine's
limit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from host_engine import end, start
from waiting import until

import torch_mcast

MIB = 1 << 20
EACH = 64 * MIB  # of a rank's block


class MemoryCgroup:
    """A memory cgroup of version 1 or 2 next to this process's own. Raises OSError if this machine
    does not allow that."""

    def __init__(self, name: str) -> None:
        first = Path("/sys/fs/cgroup/memory")
        own = Path("/proc/self/cgroup").read_text().split()
        for line in own:
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                self.folder, self.peak = (
                    first / path.lstrip("/") / name,
                    "memory.max_usage_in_bytes",
                )
                break
            if number == "0" and not first.exists():
                base = Path("/sys/fs/cgroup") / path.lstrip("/")
                self.folder, self.peak = base.parent / name, "memory.peak"
                break
        else:
            raise OSError("no memory controller")
        self.folder.mkdir()
        if not (self.folder / self.peak).exists():
            self.folder.rmdir()
            raise OSError("no memory controller")

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def most(self) -> int:
        return int((self.folder / self.peak).read_text())

    def remove(self) -> None:
        def gone() -> bool:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        until(gone, "the end of the cgroup")


@pytest.fixture
def cgroup():
    try:
        made = MemoryCgroup(f"torch-mcast-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"needs the right to make a memory cgroup: {error}")
    yield made
    made.remove()


def gathered() -> tuple[float, str]:
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.full((EACH // 4,), rank + 1.0)
    whole = torch.empty(world * EACH // 4)
    for _ in range(2):
        dist.all_gather_into_tensor(whole, mine)
    dist.all_reduce(mine)
    return float(whole[0] + whole[-1] + mine[-1]), torch_mcast.stats()["transport_reason"]


def test_spans_of_slots_are_on_the_clients_account(ranks, cgroup, tmp_path):
    socket = tmp_path / "engine.sock"
    engine = start(socket)
    try:
        for task in Path(f"/proc/{engine.pid}/task").iterdir():
            children = (task / "children").read_text().split()
            for pid in [engine.pid, *map(int, children)]:  # its guardian, and the engine itself
                cgroup.take(pid)
        before = cgroup.most()
        env = {"MCAST_ENGINE": f"host:{socket}", "MCAST_ENGINE_MEMORY": "slots"}
        told = ranks(2, gathered, env=env)
        grown = cgroup.most() - before
    finally:
        end(engine)
    for total, where in told:
        assert total == 6.0 and where.startswith("engine of this host"), told
    # The all-gather alone takes 2 x 192 MiB of spans.
    assert grown < EACH // 2, f"{grown >> 20} MiB of the engine's account"
