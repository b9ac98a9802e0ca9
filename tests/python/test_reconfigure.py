"""reconfigure (torch 2.14 and later): members join and leave a group. Follows PyTorch's own test of
fault tolerance, which no wheel contains."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from named_errors import raises_error

import torch_mcast

# `make test` leaves them out, rather than skip them, if torch lacks the function.
pytestmark = [
    pytest.mark.not_everywhere if hasattr(dist, "_reconfigure") else pytest.mark.all_tier,
    pytest.mark.not_everywhere,
    pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="torch has no reconfigure"),
]
LIMIT = timedelta(seconds=30)


class Member:
    """Replaces the group of the test by one without members."""

    def __init__(self, folder: str) -> None:
        self.number, self.world = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        self.store = dist.FileStore(f"{folder}/store", self.world)
        dist.init_process_group(
            "mcast",
            store=self.store,
            rank=self.number,
            world_size=self.world,
            timeout=LIMIT,
            enable_reconfigure=True,
        )
        self.steps = 0

    def handles(self) -> list[str]:
        """Returns the handles of all processes, in the order of their first ranks."""
        self.steps += 1
        self.store.set(f"{self.steps}.{self.number}", dist._get_reconfigure_handle())
        return [self.store.get(f"{self.steps}.{n}").decode() for n in range(self.world)]

    def reconfigure(self, number: int, handles: Any) -> None:
        dist._reconfigure(number, handles, timeout=LIMIT).wait()
        assert dist.get_world_size() == len(handles)


def works() -> None:
    """Checks the bits of one call of each kind, with several chunks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.full((100_000,), float(rank + 1))
    dist.all_reduce(total)
    assert (total == world * (world + 1) / 2).all()
    out = torch.empty(world * 30_000)
    dist.all_gather_into_tensor(out, torch.full((30_000,), float(rank)))
    assert (out.view(world, -1) == torch.arange(float(world)).unsqueeze(1)).all()
    word = torch.full((3,), float(rank))
    dist.broadcast(word, group_src=world - 1)
    assert (word == world - 1).all()
    if world > 1:
        got = torch.empty(50_000)
        sent = dist.isend(torch.full((50_000,), float(rank)), group_dst=(rank + 1) % world)
        dist.recv(got, group_src=(rank - 1) % world)
        sent.wait()
        assert (got == (rank - 1) % world).all()
    dist.barrier()


def all_of_them(folder: str) -> None:
    member = Member(folder)
    assert dist._supports_reconfigure()
    assert torch_mcast.stats()["path"] == ""
    with pytest.raises(Exception, match=r"the group has no members: call reconfigure\(\)"):
        dist.all_reduce(torch.ones(1))
    member.reconfigure(7, member.handles())
    assert dist.get_rank() == member.number
    works()
    assert torch_mcast.stats()["size"] == member.world
    # The same members again; then in another order; a set is ordered by the first ranks.
    member.reconfigure(8, member.handles())
    works()
    member.reconfigure(9, member.handles()[::-1])
    assert dist.get_rank() == member.world - 1 - member.number
    works()
    member.reconfigure(10, set(member.handles()))
    assert dist.get_rank() == member.number
    works()


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_the_same_members_work_again_in_another_order(ranks, tmp_path):
    ranks(3, all_of_them, str(tmp_path))


def fewer_and_more(folder: str) -> None:
    member = Member(folder)
    member.reconfigure(1, member.handles())
    works()
    stay = member.handles()
    del stay[1]
    if member.number != 1:
        member.reconfigure(2, stay)
        assert dist.get_rank() == (0 if member.number == 0 else member.number - 1)
        works()
    member.reconfigure(3, member.handles())
    works()
    # Each alone, then two groups, then all.
    member.reconfigure(10 + member.number, [dist._get_reconfigure_handle()])
    works()
    parts = member.handles()
    part = parts[:2] if member.number < 2 else parts[2:]
    member.reconfigure(20 + member.number // 2, part)
    works()
    member.reconfigure(30, member.handles())
    works()


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
def test_members_go_and_come(ranks, tmp_path):
    ranks(4, fewer_and_more, str(tmp_path))


def with_a_fallback(folder: str) -> None:
    member = Member(folder)
    for number in range(4):
        member.reconfigure(number, member.handles()[:: 1 if number % 2 == 0 else -1])
        sparse = torch.sparse_coo_tensor([[dist.get_rank()]], [1.0 + number], (8,))
        dist.all_reduce(sparse)  # served by Gloo
        assert (sparse.to_dense()[: member.world] == 1.0 + number).all()
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        backend.monitored_barrier(LIMIT, True)
        if number == 3 and member.number == 0:
            member.store.set("late", "")
        if number == 3 and member.number == 1:  # marks of the previous members would let it pass
            member.store.get("late")
        backend.monitored_barrier(LIMIT, True)
        works()


def test_each_membership_has_a_fallback_of_its_own(ranks, tmp_path):
    ranks(3, with_a_fallback, str(tmp_path))


def after_an_abort(folder: str) -> None:
    member = Member(folder)
    member.reconfigure(1, member.handles())
    dist.barrier()
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    if member.number == 1:
        backend.abort()
    with raises_error(dist.DistBackendError, "aborted", rank=1, reason="abort() on rank 1"):
        while True:
            dist.all_reduce(torch.ones(1))
    assert str(backend.get_error()) != "ErrorType.SUCCESS"
    member.reconfigure(2, member.handles())
    assert str(backend.get_error()) == "ErrorType.SUCCESS"
    works()


def test_a_reconfigured_group_works_after_an_abort(ranks, tmp_path):
    ranks(3, after_an_abort, str(tmp_path))


def refused(folder: str) -> None:
    member = Member(folder)
    handles = member.handles()
    for wrong, text in (
        ([], "expected at least one handle"),
        (["gloo:0:1:2:"], "'gloo:0:1:2:' is not a handle of an mcast group"),
        ([handles[0], handles[0]], "two handles of global rank 0"),
        ([h for n, h in enumerate(handles) if n != member.number], "is not among the 1 given"),
    ):
        with pytest.raises(ValueError, match=text):
            dist._reconfigure(1, wrong)
    with pytest.raises(ValueError, match="expected a number of 0 or more, got -5"):
        dist._reconfigure(-5, handles)
    member.reconfigure(5, handles)
    works()
    # A used number has no effect.
    again = member.handles()
    with pytest.raises(RuntimeError, match="number 5 was already used"):
        dist._reconfigure(5, again, timeout=LIMIT)
    works()
    # Handles from before the last reconfigure() are not valid now.
    with pytest.raises(ValueError, match="each reconfigure\\(\\) changes them"):
        dist._reconfigure(6, handles)
    # A member that does not come is reported, and the next number works.
    again = member.handles()
    if member.number == 1:
        with pytest.raises(
            RuntimeError, match=r"rank 0 of the new members \(handle 'mcast:0:5:0'\) has not called"
        ):
            dist._reconfigure(6, again, timeout=timedelta(seconds=1))
        assert dist.get_world_size() == 2, "nothing has been left"
    again = member.handles()
    if member.number == 0:
        with pytest.raises(Exception, match="could not make group"):
            dist._reconfigure(7, again, timeout=timedelta(seconds=1))
        with pytest.raises(Exception, match="the group has no members"):
            dist.barrier()
    member.reconfigure(8, member.handles())
    works()


def test_wrong_handles_and_used_numbers_are_refused(ranks, tmp_path):
    ranks(2, refused, str(tmp_path))


SCRIPT = """
import os, signal, sys
from datetime import timedelta
import torch, torch.distributed as dist, torch_mcast
number, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 3)
dist.init_process_group("mcast", store=store, rank=number, world_size=3, timeout=timedelta(seconds=60),
                        enable_reconfigure=True)
def handles(step, members):
    store.set(f"{step}.{number}", dist._get_reconfigure_handle())
    return [store.get(f"{step}.{n}").decode() for n in members]
dist._reconfigure(1, handles(1, range(3))).wait()
dist.barrier()
if number == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(torch.ones(100_000))
except dist.DistBackendError as error:
    found = torch_mcast.read_error(error)
    # silent: the rank had ended before there was a connection to it
    assert found["error"] in ("rank_ended", "rank_lost", "rank_silent"), error
    assert found["fields"]["rank"] == 1, error
dist._reconfigure(2, handles(2, (0, 2))).wait()
total = torch.full((100_000,), float(number))
dist.all_reduce(total)
assert (total == 2).all() and dist.get_world_size() == 2
dist.destroy_process_group()
print("went on")
"""


@pytest.mark.parametrize("path", ["auto", "off"])
def test_a_dead_rank_is_left_behind(tmp_path, monkeypatch, path):
    monkeypatch.setenv("MCAST_SHARED_MEMORY", path)
    monkeypatch.setenv("MCAST_SOCKET_IFNAME", "lo")
    script = tmp_path / "member.py"
    script.write_text(textwrap.dedent(SCRIPT))
    members = [
        subprocess.Popen(
            [sys.executable, script, str(number), tmp_path],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(3)
    ]
    watch = threading.Timer(120, lambda: [m.kill() for m in members])
    watch.start()
    said = [m.communicate()[0] for m in members]
    watch.cancel()
    assert members[1].returncode == -signal.SIGKILL
    for number in (0, 2):
        assert members[number].returncode == 0 and "went on" in said[number], said[number]
