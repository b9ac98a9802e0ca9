"""Late and differing ranks, abort, and creating the group again in the same processes."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from named_errors import LOST, by_rank, check_error


@pytest.mark.parametrize(
    ("victim", "op"), [(2, "all_gather_into_tensor"), (0, "barrier"), (0, "broadcast")]
)
def test_late_rank_is_named_at_the_timeout(job, victim, op):
    with job(3, "scenarios_failure.late", victim, op, 1.5) as it:
        for rank in it.ranks:
            row = rank.expect("error")  # checking on the other ranks takes a second
            text = row["text"]
            check_error(text, "ranks_late", ranks=victim)
            assert re.search(
                rf"operation \d+ \({op}.*\) passed its time limit of 1\.5 s: "
                ".*; check that all ranks make the same calls",
                text,
            ), text
            assert "Hint: look at the ranks named here" in text
            if rank.number != victim:
                assert re.search(
                    rf"{op} \(sequence 0\) of group '\d+' failed on rank \d after \d+\.\d s "
                    r"\(limit 1\.5 s\): ",
                    text,
                )
            check_error(rank.expect("again")["text"], "ranks_late", ranks=victim)
        it.expect("good")
        it.end()


def test_late_rank_is_waited_for(job, clock):
    with job(3, "scenarios_failure.late_but_in_time", env=clock.env) as it:
        it.ranks[1].expect("elsewhere")
        for rank in it.others(1):
            rank.expect("waiting")
        pids = [rank.pid for rank in it.ranks]
        for rank in it.others(1):
            clock.run_until(lambda rank=rank: rank.events.qsize() >= 2, "two errors", pids)
            for limit_ms in (15_000, 20_000):
                text = rank.expect("error")["text"]
                assert (
                    f"wait() gave up after its timeout of {limit_ms} ms; the operation goes on"
                    in text
                )
        it.order("go")
        it.expect("good")
        it.end()


# Case: the calls of ranks 0 and 2, and of rank 1, as the error shows them.
MISMATCHES = {
    "size": [r"all_gather_into_tensor\(300000 bytes", r"all_gather_into_tensor\(300064 bytes"],
    "small size": [r"broadcast\(8 bytes", r"broadcast\(9 bytes"],
    "dtype": [r"element type 3\)", r"element type 6\)"],
    "op": [r"all_gather_into_tensor\(", r"broadcast\(.*, root 0\)"],
    "barrier": [r"broadcast\(.*, root 0\)", "barrier"],
    "root": [r"broadcast\(.*, root [02]\)", r"broadcast\(.*, root 1\)"],
    "list length": ["barrier", r"all_gather_into_tensor_coalesced\("],
}


def test_mismatch(job):
    def one(case: str) -> None:
        theirs, its = MISMATCHES[case]
        sequence = 2 if case == "list length" else 1  # rank 1's list is the longer one
        with job(3, "scenarios_failure.differ", case) as it:
            for row in it.expect("error"):
                text = row["text"]
                calls = by_rank(check_error(text, "operation_differs", sequence=sequence), "call")
                for rank, call in calls.items():
                    assert re.search(its if rank == 1 else theirs, call), f"{case}: {text}"
                assert len(set(calls.values())) == 2, f"{case}: {text}"
                assert " Hint: all ranks must make the same calls" in text, f"{case}: {text}"
            it.expect("again")
            it.expect("destroyed")
            it.end()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, MISMATCHES))


@pytest.mark.parametrize(
    ("options", "env", "other", "setting", "values"),
    [
        ([{"eager": 4096}, {}, {}], {}, 1, "eager", ["4096", "32768"]),
        ([{}] * 3, {1: {"MCAST_ARITY": "4"}}, 1, "arity", ["32", "4"]),
        ([{}] * 3, {2: {"MCAST_LIVENESS_LIMIT": "3000"}}, 2, "liveness_limit", ["20000", "3000"]),
    ],
)
def test_settings_differ(job, options, env, other, setting, values):
    """`values`: of rank 0 and of the first rank that differs from it, `other`."""
    with job(3, "scenarios_failure.options_differ", options, by_rank=env) as it:
        for row in it.expect("error"):
            fields = check_error(row["text"], "settings_differ", rank=0, other=other)
            assert "mismatch: group '" in row["text"], row["text"]
            for settings, value in zip(by_rank(fields, "settings").values(), values, strict=True):
                assert re.search(rf"\b{setting}={value}\b", settings), row["text"]
        it.expect("good")
        it.end()


def test_abort_from_a_thread(job):
    with job(3, "scenarios_failure.aborted") as it:
        for rank in it.ranks:
            for _ in range(5 if rank.number == 0 else 1):
                text = rank.expect("error")["text"]
                check_error(text, "aborted", rank=0, reason="abort() on rank 0")
        for _ in range(2):
            it.expect("again")
            it.expect("worked")
            it.order("go")
        it.expect("good")
        it.end()


@pytest.mark.parametrize(
    ("abort_first", "algorithm"), [(False, "multicast"), (True, "multicast"), (False, "ring")]
)
def test_begin_again_after_silence(job, clock, abort_first, algorithm):
    with job(3, "scenarios_failure.begin_again", abort_first, algorithm, env=clock.env) as it:
        it.expect("posted")
        it.ranks[2].signal(signal.SIGSTOP)
        it.pass_time(clock, "error", it.others(2))
        for rank in it.others(2):
            text = rank.expect("error")["text"]
            check_error(text, {"rank_silent", *LOST}, rank=2)
            print(text)
        it.ranks[2].signal(signal.SIGCONT)
        it.ranks[2].order("continued")
        it.pass_time(clock, "error", [it.ranks[2]])
        it.ranks[2].expect("error")
        it.order("again")
        it.expect("good")
        it.end()


def test_begin_again_after_broken_connections(network_job):
    with network_job(3, "scenarios_failure.cut") as it:
        it.expect("ready")
        it.order("go")
        for rank in it.ranks:
            check_error(rank.expect("error")["text"], "rank_lost", rank={0, 1, 2})
        for row in it.expect("used"):  # the lanes of the failed group are gone
            (fds, threads), (fds2, threads2) = row["before"], row["after"]
            print(row)
            # Connections are made when they are needed: up to three per peer may be new.
            assert fds2 <= fds + 3 * 2 and threads2 == threads
        it.end()


def test_survivors_begin_again(job):
    with job(3, "scenarios_failure.replaced") as it:
        for rank in it.others(2):
            check_error(rank.expect("error")["text"], LOST, rank=2)
        for rank in it.others(2):
            rank.expect("good")
        it.end(0, 0, -signal.SIGKILL)


def test_destroy_with_work_in_flight(job):
    with job(3, "scenarios_failure.in_flight") as it:
        texts = [it.ranks[0].expect("error")["text"]]
        for rank in it.others(0):
            rank.order("go")
            texts.append(rank.expect("error")["text"])
        it.expect("good")
        it.end()
        late = r"operation 1 \(barrier.*\) passed its time limit of 1\.0 s: .*"
        warned = re.search(f"closed: timeout: {late}", it.output())
        assert warned, it.output()
        for text in (*texts, warned[0]):
            assert re.search(late, text), text
            check_error(text, "ranks_late", ranks="1, 2")


@pytest.mark.parametrize("store", ["file", "tcp"])
@pytest.mark.parametrize("why", ["setting", "interface"])
def test_creation_again_on_the_same_store(job, why, store):
    """One rank fails before it meets the others, or before it has published anything: the next
    attempt, under the same keys, is not affected by it."""
    with job(3, "scenarios_failure.fails_before_the_others", why, store) as it:
        text = it.ranks[1].expect("error")["text"]
        if why == "setting":
            assert "MCAST_EAGER is not valid" in text, text
        else:
            check_error(text, "no_interface", pattern="nope0")
        for rank in it.others(1):
            text = rank.expect("error")["text"]
            assert "1 of 3 keys missing (rank/1)" in text and "(limit 2.0 s)" in text, text
        it.order("again")
        it.expect("good")
        it.order("end")
        it.end()


def test_a_store_in_which_all_numbers_are_given_up(job):
    with job(2, "scenarios_failure.all_numbers_are_given_up") as it:
        for row in it.expect("error"):
            assert "the attempts 1 to 1000 to make this group are over" in row["text"]
        it.end()


def test_a_last_key_that_is_set_after_the_limit_still_counts(job):
    with job(2, "scenarios_failure.last_key_after_a_look") as it:
        it.expect("good")
        it.end()


def test_errors_of_a_subgroup_tell_global_ranks(job):
    with job(4, "scenarios_failure.subgroup") as it:
        for number, me in ((1, 0), (3, 1)):
            text = it.ranks[number].expect("error")["text"]
            assert re.match(
                rf"mcast barrier #1 on rank {me} of 2 in group '\d+' "
                r"\(group rank=global rank: 0=1, 1=3\): aborted: ",
                text,
            ), text
            check_error(text, "aborted", rank=0, reason="abort() on rank 0")
        it.expect("good")
        it.end()


@pytest.mark.parametrize("rounds", [70, pytest.param(200, marks=pytest.mark.all_tier)])
def test_reinit_leaks_nothing(job, rounds):
    with job(2, "scenarios_failure.reinit", rounds) as it:
        for row in it.expect("used", 90):
            (fds, threads, memory), (fds2, threads2, memory2) = row["rows"]
            print(row["rows"])
            # Connections are made when they are needed: up to three per peer may be new.
            assert fds2 <= fds + 3 and threads2 == threads
            groups = rounds - rounds // 4
            assert memory2 - memory < groups * 7 << 10  # 4 KiB each, of which 1 is torch's own
        it.end()
