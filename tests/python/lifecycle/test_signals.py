"""A rank is killed, terminated or stopped during each operation and phase: what the others say."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from job import GRACE_S
from scenarios import OPS

LIMIT_MS = 1000
PHASES = ["before", "middle", "waiting"]


def check_error(row: dict, op: str, rank: int, world: int, reason: str, posted: bool) -> None:
    """Operation, sequence, group, culprit, elapsed, limit, hint: all in one text.

    A rank that had not posted may find the group failed already: then there is no elapsed time.
    """
    text = row["text"]
    assert row["kind"] == "DistBackendError", text
    failed = rf"{op} \(sequence \d+\) of group '0' failed on rank {rank} after \d+\.\d s: {reason}"
    earlier = rf"{op}: group '0' failed earlier and cannot be used: {reason}.*; destroy it and make"
    for pattern in (
        rf"^mcast {op} #2 on rank {rank} of {world} in group '0': peer_lost: ",
        failed if posted else f"({failed}|{earlier})",
        r" Hint: .*liveness_limit \(MCAST_LIVENESS_LIMIT\)",
    ):
        assert re.search(pattern, text), f"{pattern}\n{text}"


def check_again(row: dict, op: str, reason: str) -> None:
    assert re.search(
        rf"peer_lost: {op}: group '0' failed earlier and cannot be used: {reason}.*"
        "; destroy it and make a new one",
        row["text"],
    ), row["text"]


# RST in place of FIN where the dead rank had unread input.
LOST = (
    r"is lost \((peer 127\.0\.0\.1:\d+ closed its connection without a goodbye"
    r"|connection to peer 127\.0\.0\.1:\d+ broke: Connection reset by peer)"
    r"( in the middle of a frame)?\); look at its log for the first error"
)
SILENT = r"has been silent for \d\.\d s \(liveness limit 1\.0 s\); its process is stopped"


def strike(job, op: str, phase: str, number: int, world: int, **options) -> None:
    victim = world - 1
    if op == "broadcast" and phase == "waiting":
        victim = 0  # the root, else nobody waits long
    options = {"liveness_limit": LIMIT_MS, **options}
    reason = f"rank {victim} " + (SILENT if number == signal.SIGSTOP else LOST)
    with job(world, "scenarios.struck", victim, op, phase, options) as it:
        it.expect("ready")
        at = it.ranks[victim].signal(number)
        survivors = it.others(victim)
        for rank in survivors:
            rank.order("go")
        for rank in survivors:
            row = rank.expect("error", LIMIT_MS / 1e3 + GRACE_S)
            print(f"{op} {phase} {number}: rank {rank.number} after {row['at'] - at:.2f} s")
            check_error(row, op, rank.number, world, reason, phase != "before")
            check_again(rank.expect("again", GRACE_S), op, reason)
        for rank in survivors:
            rank.expect("destroyed")
        codes = [0] * world
        if number == signal.SIGSTOP:
            # It comes back to a group that has failed without it: an error there too, in bounded time.
            back = it.ranks[victim]
            back.signal(signal.SIGCONT)
            back.order("go")
            row = back.expect("error", LIMIT_MS / 1e3 + GRACE_S)
            assert re.search(rf"{reason}|rank \d closed its connections", row["text"]), row["text"]
            back.expect("again")
            back.expect("destroyed")
        else:
            codes[victim] = -number
        it.end(*codes)


def all_ops(run, *args, **options) -> None:
    # At once: they mostly wait.
    with ThreadPoolExecutor(len(OPS)) as threads:
        runs = [threads.submit(run, op, world, *args, **options) for world, op in enumerate(OPS, 2)]
    for each in runs:
        each.result()


CASES = [(number, phase) for number in (signal.SIGKILL, signal.SIGSTOP) for phase in PHASES]


@pytest.mark.parametrize(("number", "phase"), [*CASES, (signal.SIGTERM, "middle")])
def test_struck(job, number, phase):
    all_ops(lambda op, world: strike(job, op, phase, number, world))


def pause(job, op: str, world: int) -> None:
    """Stopped for less than the limit: nobody notices but by the time it takes."""
    with job(world, "scenarios.paused", op) as it:
        it.expect("posted")
        it.ranks[1].signal(signal.SIGSTOP)
        for rank in it.others(1):
            rank.order("go")
        for rank in it.others(1):
            rank.expect("pings sent")
        it.ranks[1].signal(signal.SIGCONT)
        it.ranks[1].order("go")
        it.expect("good")
        it.end()


def test_paused(job):
    all_ops(lambda op, world: pause(job, op, world))
