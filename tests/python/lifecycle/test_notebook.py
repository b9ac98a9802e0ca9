"""Notebooks: a cell is interrupted while it waits for a rank that does not come."""

from __future__ import annotations

import re
import signal

import pytest

GONE = "rank 0 (left|has left|closed)"
# The call, and the error of the rank that comes after rank 0 has destroyed the group.
CALLS = {
    "barrier": GONE,
    "all_reduce": GONE,
    "all_gather_object": GONE,
    "recv": GONE,
    "send": GONE,
    "functional": GONE,
    "fsdp2": GONE,
    "monitored_barrier": "waiting for send/recv from rank 0: Rank 0 was interrupted in monitoredBarrier",
    "new_group": r"could not make group .*1 of 2 keys missing \(rank/0\)",
}
# One reduction, one operation of the other lane, and one without a lane; the others with
# MCAST_TEST_ALL=1.
USUAL = {"barrier", "all_reduce", "recv", "monitored_barrier", "fsdp2"}


def wait_and_interrupt(it) -> None:
    kernel = it.ranks[0]
    kernel.expect("waiting")
    kernel.signal(signal.SIGINT)
    kernel.expect("interrupted")


@pytest.mark.parametrize(
    "call", [c if c in USUAL else pytest.param(c, marks=pytest.mark.all_tier) for c in CALLS]
)
def test_after_an_interrupted_cell_a_new_group_works(job, call):
    with job(2, "scenarios_notebook.interrupted", call) as it:
        wait_and_interrupt(it)
        kernel, late = it.ranks
        kernel.order("destroy")
        kernel.expect("destroyed")
        late.order("call")
        text = late.expect("error")["text"]
        assert re.search(CALLS[call], text, re.DOTALL), text
        assert re.search(GONE, text := late.expect("again")["text"]), text
        it.order("begin again")
        it.expect("good")
        it.end()


@pytest.mark.parametrize("call", ["barrier", "all_reduce", "functional"])
def test_an_interrupted_operation_ends_when_the_late_rank_comes(job, call):
    """The group is still in step: the next cells of both ranks use it."""
    with job(2, "scenarios_notebook.resumed", call) as it:
        wait_and_interrupt(it)
        it.ranks[1].order("call")
        it.ranks[1].expect("called")
        it.expect("good")
        it.end()
