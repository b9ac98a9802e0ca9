"""Sandboxes and old kernels that deny system calls: either the group works with exact bytes and
reports the missing feature, or an error names the call. Each call alone, and all of them together.
"""

from __future__ import annotations

import errno
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from named_errors import SECONDS, check_error

SETSOCKOPT, GETSOCKOPT = "setsockopt", "getsockopt"
SOL_SOCKET, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 1, 32, 33
IPPROTO_TCP, IPPROTO_UDP, UDP_SEGMENT, UDP_GRO = 6, 17, 103, 104
F_ADD_SEALS, SIOCGIFMTU = 1033, 0x8921
PIDFD, KILL = ("pidfd_open", {}), ("kill", {})

MEMORY, NETS, RING = "shared memory", "multicast", "ring"
# Name: the calls, the group's path without them, and a text in its reason or transport in stats(),
# or in the log.
HOST = {
    "pidfd_open": ([PIDFD], MEMORY, ""),
    "kill": ([KILL], MEMORY, ""),
    "process_vm_readv": ([("process_vm_readv", {})], MEMORY, "peers' memory cannot be read"),
    "madvise": ([("madvise", {})], MEMORY, ""),
    "prctl": ([("prctl", {})], MEMORY, ""),
    "memfd_create": ([("memfd_create", {})], NETS, "no shared memory: memfd_create: "),
    "seals": (
        [("fcntl", {1: F_ADD_SEALS})],
        NETS,
        "no shared memory: cannot make shared memory of",
    ),
}
NETWORK = {
    "epoll_pwait2": ([("epoll_pwait2", {})], NETS, ""),
    "getrandom": ([("getrandom", {})], NETS, ""),
    "prlimit64": ([("prlimit64", {})], NETS, ""),
    "tcp": ([(call, {1: IPPROTO_TCP}) for call in (SETSOCKOPT, GETSOCKOPT)], NETS, ""),
    "gso": ([(GETSOCKOPT, {1: IPPROTO_UDP, 2: UDP_SEGMENT})], NETS, "gso off (this kernel has no"),
    "gro": ([(c, {1: IPPROTO_UDP, 2: UDP_GRO}) for c in (SETSOCKOPT, GETSOCKOPT)], NETS, "gro off"),
    "buffers": (
        [(SETSOCKOPT, {1: SOL_SOCKET, 2: name}) for name in (SO_SNDBUFFORCE, SO_RCVBUFFORCE)],
        NETS,
        "raise net.core.rmem_max",
    ),
    "sendmmsg": ([("sendmmsg", {})], RING, "does not hear"),
}
# Calls without a substitute.
NEEDED = {
    "eventfd2": ([("eventfd2", {})], "eventfd: "),
    "epoll_create1": ([("epoll_create1", {})], "epoll_create1: "),
    "threads": ([("clone", {}), ("clone3", {})], "cannot start a thread: "),
    "mtu": ([("ioctl", {1: SIOCGIFMTU})], "can send datagrams of 0 bytes only"),
}
ENV = {"host": "auto", "network": "off"}
ERRORS = [errno.ENOSYS, errno.EPERM]
ids = errno.errorcode.get
# Each path with the errors of either old kernels or filters in every run, with the other error in
# the slow tier.
both_errors = pytest.mark.parametrize(
    ("path", "error"),
    [
        pytest.param("host", errno.EPERM, id="host-EPERM"),
        pytest.param("network", errno.ENOSYS, id="network-ENOSYS"),
        pytest.param("host", errno.ENOSYS, id="host-ENOSYS", marks=pytest.mark.all_tier),
        pytest.param("network", errno.EPERM, id="network-EPERM", marks=pytest.mark.all_tier),
    ],
)


def all_calls(cases: dict) -> list:
    return [call for case in cases.values() for call in case[0]]


def works(network_job, where: str, calls: list, error: int, path: str, told: str) -> None:
    env = {
        "MCAST_SHARED_MEMORY": ENV[where],
        "MCAST_DEBUG": "info",
        "MCAST_PROBE_TIMEOUT": "300",  # for the ring, where no probe is sent
    }
    with network_job(3, "scenarios_denied.works", calls, error, env=env) as it:
        for rank, row in zip(it.ranks, it.expect("good"), strict=True):
            said = f"{row['reason']}, {row['transport']}\n{rank.output()}"
            assert row["path"] == path and told in said, f"{row['path']}, {said}"
            # Features without a warning are replaced silently.
            warnings = [line for line in said.splitlines() if "] warn: " in line]
            assert len(warnings) == len(set(warnings)), warnings
            assert not any("descriptors" in line for line in warnings), warnings
        it.end()


@both_errors
def test_the_group_works_without_a_call(network_job, path, error):
    cases = HOST if path == "host" else NETWORK
    with ThreadPoolExecutor(4) as threads:
        runs = [
            threads.submit(works, network_job, path, calls, error, *then)
            for calls, *then in cases.values()
        ]
    for run in runs:
        run.result()


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_the_group_works_without_all_of_them(network_job, error):
    """The ring remains, since sendmmsg is among the denied calls."""
    calls = all_calls(HOST) + all_calls(NETWORK)
    works(network_job, "host", calls, error, RING, "")
    shared = {name: case for name, case in HOST.items() if name not in ("memfd_create", "seals")}
    works(network_job, "host", all_calls(shared), error, MEMORY, "peers' memory cannot be read")


@both_errors
def test_a_call_that_is_needed_is_named(network_job, path, error):
    def one(case: str) -> None:
        calls, named = NEEDED[case]
        env = {"MCAST_SHARED_MEMORY": ENV[path]}
        with network_job(3, "scenarios_denied.refused", calls, error, env=env) as it:
            for row in it.expect("error"):
                assert row["text"].startswith("mcast: rank ") and named in row["text"], row["text"]
            it.end()

    with ThreadPoolExecutor(len(NEEDED)) as threads:
        list(threads.map(one, NEEDED))


# Without pidfd, kill() shows whether a process has died; without kill(), only its silence.
DEATHS = {
    "by kill": ([PIDFD], "rank_ended", {}),
    "by silence": ([PIDFD, KILL], "rank_silent", {"silence": SECONDS, "limit": "10.0 s"}),
}


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_a_death_is_seen_without_pidfd(network_job, clock, error, how):
    calls, name, fields = DEATHS[how]
    env = {"MCAST_SHARED_MEMORY": "auto", **clock.env}
    with network_job(3, "scenarios_denied.dies", calls, error, env=env) as it:
        it.expect("ready")
        it.ranks[2].signal(signal.SIGKILL)
        for rank in it.others(2):
            rank.order("go")
        if how == "by silence":
            it.pass_time(clock, "error", it.others(2))
        if how == "by kill":
            fields = {"pid": it.ranks[2].pid}
        for rank in it.others(2):
            check_error(rank.expect("error")["text"], name, rank=2, **fields)
            rank.expect("again")
            rank.expect("destroyed")
        it.end(0, 0, -signal.SIGKILL)
