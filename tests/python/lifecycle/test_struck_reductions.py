"""A rank is killed, stopped or aborts in the middle of a reduction: the errors of all ranks. Like
test_signals.py, which has operations without arithmetic."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from job import Rank
from moved_clock import MovedClock
from named_errors import is_error
from test_signals import BROKEN, LIMITS, Reason, are_gone, is_lost, is_silent

BROKEN_INSIDE = BROKEN.replace("broke: ", "broke( in the middle of a frame)?: ")
VICTIMS = {"reduce_scatter": 2, "all_reduce": 1, "reduce": 0}  # the last one is its root
PATHS = {"network": "multicast", "host": "shared memory"}


def names(text: str, op: str, rank: int, reason: Reason) -> None:
    """Checks that the text names the call in flight, or the one after it, and the reason."""
    for pattern in (
        rf"^mcast {op}\w* #\d+ on rank {rank} of 3 in group '0': ",
        rf"(failed on rank {rank} after \d+\.\d s \(limit 600\.0 s\)"
        r"|group '0' failed earlier and cannot be used): ",
    ):
        assert re.search(pattern, text), f"{pattern}\n{text}"
    assert reason(text), text


def reason_of(how: str, victim: Rank) -> Reason:
    if how == "abort":
        reason = f"abort() on rank {victim.number}"
        return lambda text: is_error(text, "aborted", rank=victim.number, reason=reason)
    if how == "SIGSTOP":
        return partial(is_silent, rank=victim)
    return partial(is_lost, rank=victim, why=BROKEN_INSIDE)


def strike(job, clock, path: str, op: str, how: str, code: int, victim: int) -> None:
    with job(3, "scenarios_reduce.struck", victim, op, how, LIMITS, env=clock.env) as it:
        reason = reason_of(how, it.ranks[victim])
        assert {row["path"] for row in it.expect("path")} == {PATHS[path]}
        it.ranks[victim].expect("strikes")
        if how == "SIGSTOP":
            it.pass_time(clock, "error", it.others(victim))
        for rank in it.others(victim):
            names(rank.expect("error")["text"], op, rank.number, reason)
            text = rank.expect("again")["text"]
            assert "failed earlier and cannot be used" in text and reason(text), text
        survivors = it.ranks if code == 0 else it.others(victim)
        if how == "SIGSTOP":
            it.ranks[victim].signal(signal.SIGCONT)
            it.pass_time(clock, "error", [it.ranks[victim]])
        if code == 0:
            text = it.ranks[victim].expect("error")["text"]
            assert reason(text) or are_gone(text, it.others(victim)), text
            it.ranks[victim].expect("again")
        for rank in survivors:
            rank.expect("destroyed")
        codes = [0, 0, 0]
        codes[victim] = code
        it.end(*codes)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "abort"])
def test_struck_in_the_middle_of_a_reduction(job, request, tmp_path, how):
    path = request.node.callspec.params["job"]
    code = -signal.SIGKILL if how == "SIGKILL" else 0

    def one(op: str) -> None:
        victim = VICTIMS[op]
        clock = MovedClock(tmp_path / op)
        strike(job, clock, path, op, how, code, victim)

    with ThreadPoolExecutor(len(VICTIMS)) as threads:
        list(threads.map(one, VICTIMS))
