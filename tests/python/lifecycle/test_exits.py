"""Every way a process ends, forks or is interrupted."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from job import Rank
from named_errors import LOST, check_error, is_error

ENDS = {"return": 0, "exception": 1, "sys.exit": 3, "os._exit": 4, "in flight": 0}


def left(text: str, operations: int) -> bool:
    """Returns True if the error says that rank 1 has left in order, after as many operations."""
    return (
        is_error(text, "rank_left", rank=1, operations=operations)
        or is_error(text, "rank_left_before", rank=1, sequence=lambda number: number >= operations)
        or "rank 1 closed its connections; look at its log" in text
    )


def is_lost(text: str, rank: Rank) -> bool:
    broken = re.compile(r"peer \S+ closed its connection without a goodbye|.*reset by peer").match
    return is_error(text, "rank_ended", rank=rank.number, pid=rank.pid) or is_error(
        text, "rank_lost", rank=rank.number, why=broken
    )


@pytest.mark.parametrize("how", ENDS)
def test_one_rank_ends(job, how):
    code = ENDS[how]
    with job(3, "scenarios_exit.ends", how) as it:
        it.expect("posted")
        it.ranks[1].order("go")
        for rank in it.others(1):
            for _ in range(2 if how == "in flight" else 3):
                text = rank.expect("error")["text"]
                if how == "os._exit":
                    assert is_lost(text, it.ranks[1]), text
                else:
                    assert left(text, 3 if how == "in flight" else 2), text
        it.end(0, code, 0)
        assert ("deliberate" in it.ranks[1].output()) == (how == "exception")


@pytest.mark.parametrize("how", ["return", "sys.exit", "thread"])
def test_all_end_without_destroy(job, how):
    with job(3, "scenarios_exit.all_end", how) as it:
        it.expect("posted")
        it.end(3 if how == "sys.exit" else 0)
        assert "Traceback" not in it.output() and "terminate" not in it.output()


def test_workers_end_without_destroy(job, tmp_path):
    with job(1, "scenarios_exit.workers_end", str(tmp_path)) as it:
        for _ in range(2):
            text = it.ranks[0].expect("error")["text"]
            assert left(text, 1), text
        it.end()


def test_threads_that_go_on_calling_do_not_end_the_process(network_job):
    """Before Python 3.14, a thread that requests the GIL while the interpreter ends is terminated
    in the middle of a binding: std::terminate. Each rank met that in one run of five. (Groups of one
    rank, which have no path.)"""
    for _ in range(4):
        with network_job(4, "scenarios_exit.threads_go_on") as it:
            it.expect("posted")
            it.end()
            assert "terminate" not in it.output()


@pytest.mark.parametrize("what", ["operation", "event", "polls"])
def test_a_callback_waits(job, what):
    with job(2, "scenarios_exit.callback_waits", what) as it:
        it.ranks[0].expect("posted")
        it.ranks[1].order("post")
        it.ranks[0].expect("ends")
        it.ranks[0].code(60)
        it.ranks[1].order("go")
        it.end()
        named = "callbacks of mcast barrier #1 on rank 0" in it.ranks[0].output()
        assert named == (what != "operation")


def test_time_limits_of_many_groups_do_not_add_up(job):
    with job(2, "scenarios_exit.waits_at_exit", 30) as it:
        it.ranks[0].expect("ends")
        it.ranks[0].code(60)
        it.ranks[1].order("go")
        it.end()


@pytest.mark.parametrize("how", ["exception", "sleep", "caught", "finally"])
def test_an_error_does_not_wait_for_work_in_flight(job, how):
    """linger is an hour, but no rank waits for it."""
    with job(2, "scenarios_exit.leaves_in_a_hurry", how) as it:
        it.ranks[0].expect("waiting")
        if how != "exception":
            it.ranks[0].signal(signal.SIGINT)
        code = {"exception": 1, "caught": 0}.get(how, -signal.SIGINT)
        assert it.ranks[0].code() == code
        it.ranks[1].order("go")
        text = it.ranks[1].expect("error")["text"]
        closed = "closed the group with 2 operation(s) in flight, after an error or interrupt"
        assert (
            is_error(text, "rank_left", rank=0, operations=3)
            or f"rank 0 {closed}" in text
            or "rank 0 closed its connections" in text
        ), text
        it.end(code, 0)


def test_an_error_still_confirms_what_is_over(job):
    """The root of a small broadcast ends with an exception before the others have called it; none
    of the data has reached them by multicast."""
    with job(2, "scenarios_exit.confirms_then_raises") as it:
        it.ranks[0].expect("raises")
        it.ranks[1].order("go")
        it.ranks[1].expect("good")
        it.end(1, 0)
        assert "deliberate" in it.ranks[0].output()


@pytest.mark.parametrize("where", ["wait", "file store", "tcp store", "creation"])
def test_a_keyboard_interrupt_ends_every_kind_of_wait(job, where):
    with job(2, "scenarios_exit.interrupted", where) as it:
        it.ranks[0].expect("waiting")
        it.ranks[0].signal(signal.SIGINT)
        it.ranks[0].expect("interrupted")
        assert it.ranks[0].code() == -signal.SIGINT
        assert "KeyboardInterrupt" in it.ranks[0].output()
        it.ranks[1].order("go")
        if where == "wait":
            assert "rank 0" in it.ranks[1].expect("error")["text"]
        if where == "creation":
            text = it.ranks[1].expect("error")["text"]
            assert (
                is_error(text, "aborted", rank=0, reason="rank 0 was interrupted")
                or is_error(text, LOST, rank=0)
                or "rank 0 closed" in text
            ), text
        it.end(-signal.SIGINT, 0)


def test_child_of_a_killed_rank_lives_on(job):
    with job(3, "scenarios_exit.leaves_a_child") as it:
        child = it.ranks[1].expect("child")["pid"]
        for rank in it.others(1):
            rank.expect("posted")
        it.ranks[1].signal(signal.SIGKILL)
        for rank in it.others(1):
            check_error(rank.expect("error")["text"], LOST, rank=1)
        assert any(line.startswith(str(child)) for line in it.left())
        os.kill(child, signal.SIGTERM)
        it.end(0, -signal.SIGKILL, 0)


def test_group_in_a_forked_child(job):
    with job(2, "scenarios_exit.uses_group_in_child") as it:
        for rank in it.ranks:
            for group in (0, 1, 0, 0, 0):
                text = rank.expect("error")["text"]
                check_error(text, "group_of_parent", group=group)
                assert "; make a new group after fork" in text, text
            rank.expect("child good")
            rank.expect("good")
        it.end()


def test_forks_while_posting(job):
    children = 400 if os.environ.get("MCAST_TEST_ALL") == "1" else 60
    with job(1, "scenarios_exit.forks_while_posting", children) as it:
        it.ranks[0].expect("good", 120)
        it.end()


@pytest.mark.parametrize(
    "job", ["network", pytest.param("host", marks=pytest.mark.all_tier)], indirect=True
)
def test_data_loader_workers(job):
    with job(2, "scenarios_exit.loads") as it:
        it.expect("trained", 60)
        it.end()


def test_a_hundred_groups_share_one_lane(job):
    with job(2, "scenarios_exit.many_groups", 100) as it:
        for row in it.expect("made"):
            print(row)
            assert row["lanes"] == 1  # shared by all of them
        it.end()


def test_backend_strings_and_debug_wrapper(job):
    with job(2, "scenarios_exit.strings") as it:
        for row in it.expect("error"):
            assert "Detected mismatch between collectives on ranks" in row["text"], row["text"]
        it.expect("good")
        it.end()


@pytest.mark.parametrize(
    "job", [pytest.param("network", marks=pytest.mark.all_tier), "host"], indirect=True
)
def test_several_jobs_on_one_host_end_at_the_same_time(job):
    """Runs ranks of several jobs on one host at the same time."""

    def one(_: int) -> None:
        with job(3, "scenarios_exit.all_end", "return") as it:
            it.expect("posted")
            it.end()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(4)))
