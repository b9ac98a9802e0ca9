"""A long job holds as much at its end as after its first steps: memory, descriptors, threads.

MCAST_TEST_LONG_JOB_S is its duration with MCAST_TEST_ALL=1: 300 s by default, 3600 for an hour."""

from __future__ import annotations

import os
from pathlib import Path

import host_engine
import pytest

SECONDS = float(os.environ.get("MCAST_TEST_LONG_JOB_S", "300"))
STEPS = 80  # in every run
KiB = 1 << 10


def trains(job, seconds: float, env: dict[str, str] | None = None) -> None:
    with job(2, "scenarios_long.trains", seconds, STEPS, env=env) as it:
        for row in it.expect("trained", 120 + 2 * seconds):
            first, last = row["rows"]
            print(row)
            assert last["descriptors"] == first["descriptors"], row
            assert last["threads"] == first["threads"], row
            # Traces and torch's own tables grow up to their bounds; a group takes 4 KiB
            # (test_reinit_leaks_nothing).
            allowed = 1536 * KiB if seconds else 256 * KiB
            allowed += row["steps"] // 10 * 5 * KiB
            assert last["memory"] - first["memory"] < allowed, row
            print("grown by", last["memory"] - first["memory"], "of", allowed)
            assert not any(row["faults"].values()), row
        it.order("end")
        it.end()


def test_a_job_of_some_steps_holds_no_more_at_its_end(job):
    trains(job, 0)


@pytest.mark.all_tier
def test_a_long_job_holds_no_more_at_its_end(job):
    trains(job, SECONDS)


def engine_holds(pid: int) -> tuple[int, int, int]:
    """Returns descriptors, threads, and resident bytes without mapped files and shared memory."""
    folder = Path(f"/proc/{pid}")
    fields = dict(line.split(":\t") for line in (folder / "status").read_text().splitlines())
    resident = int(fields["RssAnon"].split()[0]) * KiB
    return len(list((folder / "fd").iterdir())), int(fields["Threads"]), resident


@pytest.mark.all_tier
def test_an_engine_holds_nothing_of_long_jobs_that_have_ended(network_job, tmp_path):
    """Runs two equal jobs; the engine may keep memory after the first one, but not more after the
    second."""
    socket = tmp_path / "engine.sock"
    engine = host_engine.start(socket)
    env = {"MCAST_ENGINE": f"host:{socket}", "MCAST_SHARED_MEMORY": "auto"}
    after = []
    for seconds in (10, SECONDS):
        trains(network_job, seconds, env)
        after.append(engine_holds(engine.pid))
    host_engine.end(engine)
    (descriptors, threads, memory), (descriptors2, threads2, memory2) = after
    assert (descriptors2, threads2) == (descriptors, threads) and memory2 - memory < 1024 * KiB, (
        after
    )
