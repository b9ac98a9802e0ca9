"""A leaving rank waits for late ranks: its data reaches them, however late they are."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import host_engine
import pytest
import test_aggregator
from job import Job
from moved_clock import MovedClock
from named_errors import check_error
from scenarios_late import LATE

from torch_mcast.aggregator import read
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.system import NETNS_DIR
from torch_mcast.lab.topology import NIC

# Transports of tensors: settings of the ranks, and the services that run next to them.
# docs/lifecycles.md has the table.
PATHS = {
    "network": {"MCAST_SHARED_MEMORY": "off"},
    "host": {"MCAST_SHARED_MEMORY": "auto"},
    "engine": {"MCAST_SHARED_MEMORY": "off"},
    "engine-host": {"MCAST_SHARED_MEMORY": "auto"},
    "aggregators": {"MCAST_INCAST": "128K"},  # short segments, so that folding 4 MiB pays
}
# Below the liveness limit, which is 20 s, and at twice that limit; within the time limit of
# operations.
WAITS_S = (12.0, 40.0)
WAIT_S = WAITS_S[-1]


@dataclass
class Way:
    """One of PATHS, with its services running on the test's clock."""

    name: str
    start: Callable[..., Job]
    clock: MovedClock
    services: list[int] = field(default_factory=list)  # processes

    def run(self, seconds: float, job: Job) -> None:
        self.clock.run(seconds, [*self.services, *(rank.pid for rank in job.ranks)])


@pytest.fixture
def lab(lab_rights: None) -> Iterator[Lab]:
    with Lab(LabSpec(hosts=4)) as lab:
        yield lab


@pytest.fixture(params=PATHS)
def way(clock: MovedClock, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Way]:
    env = {**PATHS[request.param], **clock.env}
    services: list[subprocess.Popen[str]] = []
    more: dict[str, Any] = {}
    if request.param.startswith("engine"):
        socket = tmp_path / "engine.sock"
        services.append(host_engine.start(socket, "--guardian", "off", env=clock.env))
        env["MCAST_ENGINE"] = f"host:{socket}"
    if request.param == "aggregators":  # groups of one host do not use them
        lab, socket = request.getfixturevalue("lab"), tmp_path / "aggregator.sock"
        services.append(test_aggregator.start(socket, clock.env, lab))
        env |= {"MCAST_AGGREGATORS": read(socket)["address"], "MCAST_SOCKET_IFNAME": NIC}
        more["netns"] = [str(NETNS_DIR / host.namespace) for host in lab.workers[:3]]

    def start(world: int, *scenario: Any) -> Job:
        return Job(world, *scenario, env=env, **more)

    yield Way(request.param, start, clock, [service.pid for service in services])
    for service in services:
        host_engine.end(service)


def row(name: str, what: str, how: str, wait_s: float, job: Job) -> str:
    """Returns a row for the table, just before the late rank makes its call (pytest -rP)."""
    gone = [rank.number for rank in job.others(LATE) if not rank.events.empty()]
    return f"late: {name}, {what}, {how}, {wait_s:g} s: ranks that have gone before: {gone}"


OPERATIONS = ("broadcast", "all_gather", "gather", "reduce", "all_reduce", "barrier")


# In the gate each pair of operation and way to leave has one of the waits, each in turn.
CASES = [
    pytest.param(*(what, how, wait_s), marks=[pytest.mark.all_tier] if (i + j + k) % 2 else [])
    for i, what in enumerate(OPERATIONS)
    for j, how in enumerate(("destroy", "exit", "subgroup"))
    for k, wait_s in enumerate(WAITS_S)
]


@pytest.mark.parametrize(("what", "how", "wait_s"), CASES)
def test_who_leaves_waits_for_a_late_rank(way, what, how, wait_s):
    with way.start(3, "scenarios_late.leaves", what, how) as it:
        it.ranks[LATE].expect("late")
        for rank in it.others(LATE):
            rank.expect("calls")
        way.run(wait_s, it)
        print(row(way.name, what, how, wait_s, it))
        it.ranks[LATE].order("go")
        it.expect("good")
        it.end()
        assert "closed:" not in it.output(), it.output()


@pytest.mark.all_tier
def test_gloo_ends_alike():
    """All jobs run at once: a test cannot move Gloo's clock."""
    with contextlib.ExitStack() as jobs:
        started = [
            jobs.enter_context(Job(3, "scenarios_late.leaves", what, "destroy", "gloo"))
            for what in OPERATIONS
            for _ in WAITS_S
        ]
        for it in started:
            it.ranks[LATE].expect("late")
        passed = 0.0
        for number, wait_s in enumerate(WAITS_S):
            time.sleep(wait_s - passed)  # how late the rank is
            passed = wait_s
            for what, it in zip(OPERATIONS, started[number :: len(WAITS_S)], strict=True):
                for rank in it.others(LATE):
                    rank.expect("calls")
                print(row("gloo", what, "destroy", wait_s, it))
                it.ranks[LATE].order("go")
                it.expect("good")
                it.end()


@pytest.mark.parametrize("way", ["network", "engine"], indirect=True)
def test_who_never_calls_is_named(way, clock):
    """The operation's own limit, 60 s, ends the wait on all ranks. (In shared memory, the data of a
    root stays when it leaves.)"""
    with way.start(3, "scenarios_late.never_comes") as it:
        it.ranks[0].expect("calls")
        processes = [*way.services, it.ranks[0].pid]
        clock.run_until(lambda: it.ranks[0].events.qsize() > 0, "destroyed", processes)
        it.ranks[0].expect("destroyed")
        assert clock.moved_s > WAIT_S
        for rank in it.others(0):
            rank.order("go")
            assert "broadcast" in rank.expect("error")["text"]
        it.end()
        check_error(it.ranks[0].output(), "ranks_late", ranks="1, 2")


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
