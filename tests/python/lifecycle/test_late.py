"""Whoever leaves waits for ranks that are late: what it has given reaches them, however late they are."""

from __future__ import annotations

import signal

import pytest
from scenarios_late import LATE

WAIT_S = 45.0  # twice the liveness limit, within the time limit of operations


@pytest.mark.parametrize("how", ["destroy", "exit", "subgroup"])
@pytest.mark.parametrize("what", ["broadcast", "all_gather", "gather", "reduce", "barrier"])
def test_who_leaves_waits_for_a_late_rank(job, clock, what, how):
    with job(3, "scenarios_late.leaves", what, how, env=clock.env) as it:
        it.ranks[LATE].expect("late")
        for rank in it.others(LATE):
            rank.expect("calls")
        clock.run(WAIT_S, [rank.pid for rank in it.ranks])
        it.ranks[LATE].order("go")
        it.expect("good")
        it.end()
        assert "closed:" not in it.output(), it.output()


def test_who_never_calls_is_named(network_job, clock):
    """The operation's own limit, 60 s, ends the wait on all ranks. (In shared memory what a root has given
    stays when it leaves.)"""
    with network_job(3, "scenarios_late.never_comes", env=clock.env) as it:
        it.ranks[0].expect("calls")
        it.pass_time(clock, "destroyed", [it.ranks[0]])
        it.ranks[0].expect("destroyed")
        assert clock.moved_s > WAIT_S
        for rank in it.others(0):
            rank.order("go")
            assert "broadcast" in rank.expect("error")["text"]
        it.end()
        assert "rank(s) 1, 2 have not called it" in it.ranks[0].output(), it.ranks[0].output()


def test_an_interrupt_ends_the_wait(network_job, clock):
    with network_job(3, "scenarios_late.interrupted", env=clock.env) as it:
        it.ranks[0].expect("waiting")
        it.ranks[0].signal(signal.SIGINT)
        it.pass_time(clock, "interrupted", [it.ranks[0]])
        it.ranks[0].expect("interrupted")
        for rank in it.others(0):
            rank.order("go")
            assert "rank 0 closed the group" in rank.expect("error")["text"]
        it.end()
