"""Ranks that get no more memory or threads: they still work, or all ranks get an error in bounded time."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import GUARD_S

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize("victims", [[0, 1, 2], [1]], ids=["all", "one"])
def test_memory_is_short_while_the_group_is_made(job, victims):
    """Address space is too small for anything, for one thread, for some, for all. Once it suffices,
    the same processes create the group."""
    refused = set()

    def one(room: int) -> str:
        with job(3, "scenarios_memory.creation", victims, room) as it:
            events = [rank.events.get(timeout=GUARD_S) for rank in it.ranks]
            for rank, row in zip(it.ranks, events, strict=True):
                if row["event"] == "good":
                    continue
                text = row["text"]
                if rank.number in victims and row["kind"] == "MemoryError" and not text:
                    continue  # Python or c10d was refused memory before the group's code was called
                head = f"mcast: rank {rank.number} of 3 could not make group '0': "
                assert text.startswith(head), text
                short = "resource_exhausted: group '0': (out of memory|cannot start a thread: )"
                if rank.number in victims and re.search(short, text):
                    refused.add(room)
                    continue
                # A rank that has enough waits for those that have not.
                assert re.search(rf"rank(/|\(s\) | ){victims}", text), text
            it.order("again")
            it.expect("good")
            it.end()
            return events[victims[0]]["event"]

    rooms = [0, 64 * KIB, 4 * MIB, 9 * MIB, 17 * MIB, 512 * MIB]
    with ThreadPoolExecutor(len(rooms)) as threads:
        ended = list(threads.map(one, rooms))
    assert ended[0] == "error" and ended[-1] == "good", ended
    assert refused, ended


@pytest.mark.parametrize("room", [0, 256 * KIB, MIB, 16 * MIB])
def test_memory_ends_in_the_middle_of_operations(job, room):
    """One rank gets no memory. A refused request of its script raises there; a refused request of a
    thread ends the process, and the others name it."""
    with job(3, "scenarios_memory.operations", 1, room) as it:
        last = it.ranks[1].events.get(timeout=GUARD_S)
        good = last["event"] == "good"
        for rank in it.others(1):
            row = rank.events.get(timeout=GUARD_S)
            assert good == (row["event"] == "good"), (last, row)
            if not good:
                assert row["kind"] == "DistBackendError" and "rank 1 " in row["text"], row
        if good:
            return it.end()
        if last["event"] == "error":
            assert last["kind"] == "MemoryError", last
            if it.ranks[1].code() == 0:
                return it.end()
            # Script and thread were refused at the same time: both results appear.
        it.end(0, -signal.SIGABRT, 0)
        assert "std::bad_alloc" in it.ranks[1].output()
