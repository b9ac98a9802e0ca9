"""A rank is killed, terminated or stopped during each operation and phase: the errors of the others."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from job import Rank
from moved_clock import MovedClock
from named_errors import SECONDS, is_error
from scenarios import OPS

# On a clock that the test moves: in real time no rank is silent for so long.
LIMIT_MS = 10_000
LIMITS = {"liveness_limit": LIMIT_MS, "timeout_s": 600}
PHASES = ["before", "middle", "waiting"]
Reason = Callable[[str], bool]  # returns True if a text is the expected error


def check_first(row: dict, op: str, rank: int, world: int, reason: Reason, posted: bool) -> None:
    """Checks that one text names operation, sequence, group, culprit, elapsed time, limit and hint.

    A rank that had not posted may find the group failed already: then there is no elapsed time.
    """
    text = row["text"]
    assert row["kind"] == "DistBackendError" and reason(text), text
    failed = rf"{op} \(sequence \d+\) of group '0' failed on rank {rank} after \d+\.\d s"
    failed += r" \(limit 600\.0 s\): "
    earlier = rf"{op}: group '0' failed earlier and cannot be used: .*; destroy it and make"
    for pattern in (
        rf"^mcast {op} #2 on rank {rank} of {world} in group '0': peer_lost: ",
        failed if posted else f"({failed}|{earlier})",
        r" Hint: .*liveness_limit \(MCAST_LIVENESS_LIMIT\)",
    ):
        assert re.search(pattern, text), f"{pattern}\n{text}"


def check_again(row: dict, op: str, reason: Reason) -> None:
    text = row["text"]
    assert re.search(
        rf"peer_lost: {op}: group '0' failed earlier and cannot be used: .*"
        "; destroy it and make a new one",
        text,
    ), text
    assert reason(text), text


# RST instead of FIN if the dead rank had unread input; EPIPE for a write after that.
BROKEN = (
    r"(peer 127\.0\.0\.1:\d+ closed its connection without a goodbye"
    r"|connection to peer 127\.0\.0\.1:\d+ broke: (Connection reset by peer|Broken pipe))"
    r"( in the middle of a frame)?"
)
UNANSWERED = (
    r"peer 127\.0\.0\.1:\d+ did not answer a connection attempt "
    r"\(its log tells if it is out of descriptors\)"
)


def is_lost(text: str, rank: Rank, why: str = BROKEN) -> bool:
    return is_error(text, "rank_ended", rank=rank.number, pid=rank.pid) or is_error(
        text, "rank_lost", rank=rank.number, why=re.compile(why).fullmatch
    )


def is_silent(text: str, rank: Rank, limit_ms: int = LIMIT_MS) -> bool:
    """Returns True if the error is that of a silent rank. Such a rank also does not accept a
    connection that is needed only then."""
    if is_error(text, "rank_lost", rank=rank.number, why=re.compile(UNANSWERED).fullmatch):
        return True
    limit = f"{limit_ms / 1000:.1f} s"
    silent = is_error(text, "rank_silent", rank=rank.number, silence=SECONDS, limit=limit)
    return silent and "; its process is stopped" in text


def are_gone(text: str, ranks: list[Rank]) -> bool:
    """Returns True if the error is that one of these has ended its group: what a rank finds that was
    stopped, unless it reads first what they wrote to it."""
    return any(
        is_lost(text, rank) or f"rank {rank.number} closed its connections" in text
        for rank in ranks
    )


def strike(job, folder: Path, op: str, phase: str, number: int, world: int) -> None:
    victim = world - 1
    if op == "broadcast" and phase == "waiting":
        victim = 0  # the root, else the wait is short
    clock = MovedClock(folder / op)
    with job(world, "scenarios.struck", victim, op, phase, LIMITS, env=clock.env) as it:
        is_due = is_silent if number == signal.SIGSTOP else is_lost
        reason = partial(is_due, rank=it.ranks[victim])
        it.expect("ready")
        at = it.ranks[victim].signal(number)
        survivors = it.others(victim)
        for rank in survivors:
            rank.order("go")
        if number == signal.SIGSTOP:
            it.pass_time(clock, "error", survivors)
        for rank in survivors:
            row = rank.expect("error")
            print(f"{op} {phase} {number}: rank {rank.number} after {row['at'] - at:.2f} s")
            check_first(row, op, rank.number, world, reason, phase != "before")
            check_again(rank.expect("again"), op, reason)
        for rank in survivors:
            rank.expect("destroyed")
        codes = [0] * world
        if number == signal.SIGSTOP:
            # It continues in a group that has failed without it, and also gets an error, in bounded
            # time.
            back = it.ranks[victim]
            back.signal(signal.SIGCONT)
            back.order("go")
            it.pass_time(clock, "error", [back])
            text = back.expect("error")["text"]
            assert reason(text) or are_gone(text, survivors), text
            back.expect("again")
            back.expect("destroyed")
        else:
            codes[victim] = -number
        it.end(*codes)


def all_ops(run, *args, **options) -> None:
    # In parallel: they mostly wait.
    with ThreadPoolExecutor(len(OPS)) as threads:
        runs = [threads.submit(run, op, world, *args, **options) for world, op in enumerate(OPS, 2)]
    for each in runs:
        each.result()


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


# The others see no difference between a terminated rank and a killed one.
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        signal.SIGSTOP,
        pytest.param(signal.SIGTERM, marks=pytest.mark.all_tier),
    ],
)
def test_survivors_name_a_rank_that_is_killed_or_stopped(job, tmp_path, number, phase):
    all_ops(lambda op, world: strike(job, tmp_path, op, phase, number, world))


# In the case of a rank that has not published its address, no rank listens yet while the group is
# created; and a connection may be refused before it is established.
REFUSED = rf"cannot connect to peer .*|{BROKEN}"


def is_reason(text: str, victim: Rank, number: int, phase: str) -> bool:
    """Returns True if the error of a failed creation is the one for this signal in this phase."""
    if phase == "rendezvous":
        missing = (
            r"waiting for the addresses of all ranks, for \d+\.\d s \(limit 2\.0 s\): "
            rf"rendezvous: 1 of 3 keys missing \(rank/{victim.number}\)"
        )
        return bool(re.search(missing, text))
    # Refused connections are retried: the liveness limit may pass before they are given up. A rank
    # that is stopped before it has joined counts as late until the time is over.
    if is_silent(text, victim, 3000):
        return True
    if number != signal.SIGSTOP:
        return is_lost(text, victim, REFUSED)
    waited = re.compile(r"rank \d waited too long for the group to be made: ").match
    return f"rank(s) {victim.number} have not joined" in text and (
        is_error(text, "creation_late", group=0, elapsed=SECONDS, limit="6.0 s")
        or is_error(text, "aborted", rank={0, 1}, reason=waited)
    )


def strike_creation(job, number: int, phase: str) -> None:
    world, victim = 3, 2
    with job(world, "scenarios.struck_in_creation", victim, phase) as it:
        it.ranks[victim].expect("ready")
        at = it.ranks[victim].signal(number)
        for rank in it.others(victim):
            row = rank.expect("error")
            print(f"{phase} {number}: rank {rank.number} after {row['at'] - at:.2f} s")
            text = row["text"]
            head = f"mcast: rank {rank.number} of 3 could not make group '0'"
            assert row["kind"] == "DistBackendError" and text.startswith(head), text
            assert is_reason(text, it.ranks[victim], number, phase) and " Hint: " in text, text
        codes = [0] * world
        if number == signal.SIGSTOP:
            back = it.ranks[victim]
            back.signal(signal.SIGCONT)
            back.order("go")
            row = back.expect("error")
            assert "could not make group '0'" in row["text"], row["text"]
        else:
            codes[victim] = -number
        for rank in it.ranks if number == signal.SIGSTOP else it.others(victim):
            rank.order("end")
        it.end(*codes)


@pytest.mark.parametrize("phase", ["rendezvous", "probe"])
def test_a_rank_killed_or_stopped_in_creation_is_named(job, phase):
    with ThreadPoolExecutor(len(SIGNALS)) as threads:
        list(threads.map(lambda number: strike_creation(job, number, phase), SIGNALS))


def pause(job, op: str, world: int) -> None:
    """A rank stopped for less than the limit delays the operation and has no other effect."""
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


def test_a_rank_paused_within_the_limit_only_delays_the_operation(job):
    all_ops(lambda op, world: pause(job, op, world))


@pytest.mark.parametrize("rounds", [500, pytest.param(40_000, marks=pytest.mark.all_tier)])
def test_a_signal_that_is_handled_ends_nothing(job, rounds):
    """Four ranks of one host used to die within seconds: an interrupted poll() was taken for a death."""
    with job(4, "scenarios.interrupted", rounds) as it:
        for rank in it.ranks:
            assert rank.expect("good", 30 + rounds / 100)["handled"] > 10
        it.end()
