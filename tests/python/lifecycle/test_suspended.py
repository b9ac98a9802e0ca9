"""Ranks that lose the CPU for long, as in a machine that a hypervisor suspends or a container that
exceeds its quota: all their threads stop, and every timer is late when they continue. The test
moves the clock, so that no limit depends on the load of this machine."""

from __future__ import annotations

import signal

import pytest
from job import Rank
from moved_clock import STEP_S
from named_errors import blames, is_error

LIMIT_S = 10.0
OPTIONS = {"liveness_limit": 1000 * LIMIT_S, "timeout_s": 600}


def names_one_of(ranks: set[int], text: str) -> bool:
    """Returns True if the error blames one of `ranks`. A suspended rank finds the group failed, or
    its peers gone."""
    return blames(text, ranks, f"{LIMIT_S} s") or is_error(text, "rank_left", rank=ranks)


def running(it, path: str) -> None:
    expected = {"network": "multicast", "host": "shared memory"}[path]
    assert {row["path"] for row in it.expect("running")} == {expected}


def goes_on(it) -> list[dict]:
    it.ranks[0].order("stop")
    rows = it.expect("good")
    assert len({row["rounds"] for row in rows}) == 1
    it.expect("destroyed")
    it.end()
    return rows


def pids(ranks: list[Rank]) -> list[int]:
    return [rank.pid for rank in ranks]


@pytest.fixture
def path(request):
    return request.node.callspec.params["job"]


def test_a_machine_suspended_beyond_the_limit(job, path, clock):
    """Suspends all ranks at once, as when they are in one machine: each finds that time has passed,
    for the others as for itself."""
    with job(4, "scenarios_busy.busy", OPTIONS, False, env=clock.env) as it:
        running(it, path)
        for rank in it.ranks:
            rank.signal(signal.SIGSTOP)
        clock.jump(6 * LIMIT_S)
        for number, rank in enumerate(it.ranks, 1):  # CPUs continue one by one
            rank.signal(signal.SIGCONT)
            clock.run(0.1 * LIMIT_S, pids(it.ranks[:number]))
        goes_on(it)


def test_ranks_suspended_one_by_one(job, path, clock):
    """Each rank is suspended for longer than the limit, also while connecting, and no two for the
    same time: a rank that was suspended itself does not take another for lost."""
    with job(4, "scenarios_busy.busy", OPTIONS, False, env=clock.env) as it:
        running(it, path)
        for number, rank in enumerate(it.ranks, 1):
            rank.signal(signal.SIGSTOP)
            clock.run(0.1 * LIMIT_S, pids(it.ranks[number:]))
        clock.jump(1.5 * LIMIT_S)
        for number in reversed(range(it.world)):
            it.ranks[number].signal(signal.SIGCONT)
            clock.run(0.1 * LIMIT_S, pids(it.ranks[number:]))
        goes_on(it)


def test_suspended_within_the_limit(job, path, clock):
    """One of two machines is suspended several times: together longer than the limit, each time for
    less."""
    with job(4, "scenarios_busy.busy", OPTIONS, False, env=clock.env) as it:
        running(it, path)
        for _ in range(3):
            for rank in it.ranks[2:]:
                rank.signal(signal.SIGSTOP)
            clock.run(0.5 * LIMIT_S, pids(it.ranks[:2]))
            for rank in it.ranks[2:]:
                rank.signal(signal.SIGCONT)
            clock.run(5 * STEP_S, pids(it.ranks))
        goes_on(it)


def test_suspended_beyond_the_limit(job, path, clock):
    """One of two machines is suspended: all ranks raise, also those that continue, and name the
    missing ranks."""
    with job(4, "scenarios_busy.busy", OPTIONS, True, env=clock.env) as it:
        running(it, path)
        for rank in it.ranks[2:]:
            rank.signal(signal.SIGSTOP)
        it.pass_time(clock, "error", it.ranks[:2])
        for rank in it.ranks[:2]:
            text = rank.expect("error")["text"]
            assert names_one_of({2, 3}, text), text
            rank.expect("again")
        for rank in it.ranks[2:]:
            rank.signal(signal.SIGCONT)
        it.pass_time(clock, "error", it.ranks[2:])
        for rank in it.ranks[2:]:
            text = rank.expect("error")["text"]
            assert names_one_of({0, 1, 2, 3}, text), text
            rank.expect("again")
        it.expect("destroyed")
        it.end()


def test_a_quota_of_the_cpu(job, path, clock):
    """Each rank runs a fifth of the time, in its own intervals: no rank takes another for lost."""
    with job(3, "scenarios_busy.busy", OPTIONS, False, env=clock.env) as it:
        running(it, path)
        for rank in it.ranks:
            rank.signal(signal.SIGSTOP)
        for _ in range(6):  # periods of half the limit
            for rank in it.ranks:
                rank.signal(signal.SIGCONT)
                clock.run(0.1 * LIMIT_S, [rank.pid])
                rank.signal(signal.SIGSTOP)
            clock.jump(0.2 * LIMIT_S)
        for rank in it.ranks:
            rank.signal(signal.SIGCONT)
        rows = goes_on(it)
        assert min(row["rounds"] for row in rows) > 2
