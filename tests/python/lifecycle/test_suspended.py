"""Ranks that lose the CPU for long, as in a machine that a hypervisor suspends or a container beyond
its quota: all their threads stand still, and every timer is late when they go on."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time

import pytest
from job import GRACE_S

LIMIT_MS = 600
# "seconds": what silence is added up to. Whoever was away finds the group failed, or its peers gone.
CAUSE = (
    r"rank \d (has been silent for \d+\.\d s \(liveness limit 0\.6 s\)|is lost \(|closed its connections"
    r"|has left the group)"
)


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


@pytest.fixture
def path(request):
    return request.node.callspec.params["job"]


@pytest.mark.parametrize(
    "length_s", [2 * LIMIT_MS / 1e3, pytest.param(60, marks=pytest.mark.all_tier)]
)
def test_a_machine_suspended_beyond_the_limit(job, path, length_s):
    """All ranks at once, as when they are in one machine: each finds that time has passed, for the
    others as for itself."""
    with job(4, "scenarios_busy.busy", {"liveness_limit": LIMIT_MS}, False) as it:
        running(it, path)
        for rank in it.ranks:
            rank.signal(signal.SIGSTOP)
        time.sleep(length_s)  # of the fault
        for rank in it.ranks:
            rank.signal(signal.SIGCONT)
            time.sleep(0.1 * LIMIT_MS / 1e3)  # CPUs come back one by one
        goes_on(it)


def test_ranks_suspended_one_by_one(job, path):
    """Each stands still for longer than the limit, also in the midst of connecting, and no two for the
    same time: nobody takes another for lost who was away when it was."""
    limit_ms = 1500
    with job(4, "scenarios_busy.busy", {"liveness_limit": limit_ms}, False) as it:
        running(it, path)
        for rank in it.ranks:
            rank.signal(signal.SIGSTOP)
            time.sleep(0.1 * limit_ms / 1e3)
        time.sleep(1.5 * limit_ms / 1e3)  # the length of the fault
        for rank in reversed(it.ranks):
            rank.signal(signal.SIGCONT)
            time.sleep(0.1 * limit_ms / 1e3)
        goes_on(it)


def test_suspended_within_the_limit(job, path):
    """One of two machines, several times: together longer than the limit, each time less."""
    with job(4, "scenarios_busy.busy", {"liveness_limit": 2 * LIMIT_MS}, False) as it:
        running(it, path)
        for _ in range(3):
            for rank in it.ranks[2:]:
                rank.signal(signal.SIGSTOP)
            time.sleep(LIMIT_MS / 1e3)
            for rank in it.ranks[2:]:
                rank.signal(signal.SIGCONT)
            time.sleep(0.2)
        goes_on(it)


def test_suspended_beyond_the_limit(job, path):
    """One of two machines: all ranks raise, those that come back too, and say whom they lack."""
    with job(4, "scenarios_busy.busy", {"liveness_limit": LIMIT_MS}, True) as it:
        running(it, path)
        for rank in it.ranks[2:]:
            rank.signal(signal.SIGSTOP)
        for rank in it.ranks[:2]:
            text = rank.expect("error", LIMIT_MS / 1e3 + GRACE_S)["text"]
            assert re.search(rf"rank [23] {CAUSE[8:]}", text), text
            rank.expect("again")
        for rank in it.ranks[2:]:
            rank.signal(signal.SIGCONT)
        for rank in it.ranks[2:]:
            text = rank.expect("error", LIMIT_MS / 1e3 + GRACE_S)["text"]
            assert re.search(CAUSE, text), text
            rank.expect("again")
        it.expect("destroyed")
        it.end()


def test_a_quota_of_the_cpu(job, path):
    """Each rank runs a fifth of the time, in periods of 100 ms and turns of its own: no rank takes
    another for lost."""
    period_s, share, enough = 0.1, 0.2, threading.Event()
    with job(3, "scenarios_busy.busy", {"liveness_limit": LIMIT_MS}, False) as it:
        running(it, path)
        stops = [0] * it.world

        def throttle(rank) -> None:
            time.sleep(period_s * rank.number / it.world)
            with contextlib.suppress(ProcessLookupError):  # it has ended: others may still go on
                while not enough.is_set():
                    rank.signal(signal.SIGSTOP)
                    time.sleep((1 - share) * period_s)
                    rank.signal(signal.SIGCONT)
                    stops[rank.number] += 1
                    time.sleep(share * period_s)

        threads = [threading.Thread(target=throttle, args=[rank]) for rank in it.ranks]
        for thread in threads:
            thread.start()
        try:
            time.sleep(3 * LIMIT_MS / 1e3)  # the length of the fault
            it.ranks[0].order("stop")
            rows = it.expect("good")
            assert min(stops) > 3, stops
        finally:
            enough.set()
            for thread in threads:
                thread.join()
        assert len({row["rounds"] for row in rows}) == 1
        it.expect("destroyed")
        it.end()
