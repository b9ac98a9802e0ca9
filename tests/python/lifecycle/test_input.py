"""Invalid arguments, settings and environments; the log of a healthy job."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from named_errors import check_error

KINDS = "ValueError|RuntimeError|NotImplementedError"
ARGUMENTS = [
    ("ValueError", r"broadcast: expected a root rank from 0 to 2, got -1"),
    ("ValueError", r"broadcast: expected a root rank from 0 to 2, got 3"),
    # Kinds that do not reach the backend in every version of torch.
    (KINDS, r"from the 'SparseCPU' backend|must be a dense tensor, got layout Sparse"),
    ("ValueError", r"broadcast: input is a meta tensor and has no data"),
    (KINDS, r"[Qq]uantized"),
    (KINDS, r"from the 'SparseCsrCPU' backend|must be a dense tensor, got layout SparseCsr"),
    ("ValueError", r"broadcast: expected 1 input tensor, got 2"),
    ("ValueError", r"all_gather_into_tensor: expected an output of 3 x 4 = 12 elements, got 13"),
    ("ValueError", r"all_gather_into_tensor: expected an output of 3 x 4 = 12 elements, got 0"),
    ("TypeError", r"all_gather_into_tensor: output must have dtype Float, got Double"),
    ("ValueError", r"all_gather_into_tensor: input is a meta tensor and has no data"),
    ("ValueError", r"all_gather_into_tensor: output is a meta tensor and has no data"),
    ("ValueError", r"all_gather: expected 3 output tensors, one per rank, got 2"),
    ("ValueError", r"all_gather: expected 3 output tensors, one per rank, got 4"),
    ("ValueError", r"all_gather: output 0 must have shape \[4\], got \[3\]"),
    ("ValueError", r"torch\.int32.*torch\.float32"),  # torch checks it first
    ("ValueError", r"expected as many outputs as inputs \(2\), got 1"),
    ("TypeError", r"parameter `tensor`"),
    ("TypeError", r"parameter `input_tensor`"),
]
AFTER_THE_END = [
    (
        "DistBackendError",
        r"broadcast #\d+ on rank \d of 3 in group '0': closed: the group was shut down",
    ),
    (
        "DistBackendError",
        r"barrier #\d+ on rank \d of 3 in group '0': closed: the group was shut down",
    ),
    ("ValueError", r"there is no default process group; call init_process_group\(\)"),
]


def test_wrong_arguments_are_refused_with_the_reason(job):
    with job(3, "scenarios_input.arguments") as it:
        for rank in it.ranks:
            for kind, text in ARGUMENTS + AFTER_THE_END:
                row = rank.expect("error")
                assert re.fullmatch(kind, row["kind"]) and re.search(text, row["text"]), (
                    kind,
                    text,
                    row,
                )
            rank.expect("good")
        it.end()


# Variables, options, and what the error says: a text, or the fields of no_interface.
SETTINGS = [
    ({"MCAST_EAGER": "lots"}, {}, 'setting eager: "lots" from environment variable MCAST_EAGER is not valid'),
    ({"MCAST_EAGER": "-1"}, {}, "MCAST_EAGER is not valid"),
    ({"MCAST_LIVENESS_LIMIT": "5"}, {}, "MCAST_LIVENESS_LIMIT is not valid; allowed: milliseconds from 100"),
    ({"MCAST_ALGORITHM": "magic"}, {}, "MCAST_ALGORITHM is not valid; allowed: "),
    ({"MCAST_TRANSPORT": "pigeon"}, {}, "MCAST_TRANSPORT is not valid"),
    ({"MCAST_DEBUG": "loud"}, {}, "MCAST_DEBUG is not valid; allowed: "),
    ({"MCAST_FAULTS": "explode:now"}, {}, "faults, position 0"),
    ({"MCAST_SOCKET_IFNAME": "nope0"}, {}, {"pattern": "nope0", "why": "matches no usable interface"}),
    ({"MCAST_SOCKET_IFNAME": "eth,,ib"}, {}, 'interface pattern "eth,,ib" has an empty name'),
    ({"MCAST_CHUNK": "100"}, {}, "MCAST_CHUNK is not valid"),
    ({"MCAST_ARITY": "1"}, {}, "MCAST_ARITY is not valid; allowed: a whole number from 2 to"),
    ({"MCAST_MAX_MTU": "99999"}, {}, "MCAST_MAX_MTU is not valid; allowed: a whole number from 576 to"),
    ({}, {"interface": "=nope1"}, {"pattern": "=nope1", "why": "matches no usable interface"}),
    ({}, {"eagre": 1}, "unknown option 'eagre'; there are"),
]  # fmt: skip


def test_wrong_settings_are_refused_with_the_reason(job):
    with job(2, "scenarios_input.settings", [case[:2] for case in SETTINGS]) as it:
        for rank in it.ranks:
            for _, _, said in SETTINGS:
                row = rank.expect("error")
                assert row["kind"] in ("ValueError", "TypeError", "DistBackendError"), row
                if isinstance(said, dict):
                    check_error(row["text"], "no_interface", **said)
                else:
                    assert said in row["text"], (said, row)
        it.expect("good")
        it.end()


def test_few_descriptors(network_job):
    def one(spare: int) -> tuple[str, str, str]:
        with network_job(2, "scenarios_input.descriptors", spare) as it:
            rows = it.expect("made")
            for rank in it.ranks:
                rank.order("again")
            it.expect("good")
            it.order("end")
            it.end()
            warnings = [
                line for line in it.ranks[1].output().splitlines() if "torch-mcast[" in line
            ]
            return rows[0]["text"], rows[1]["text"], "\n".join(warnings)

    # Two lanes need about eight each; connections come later.
    spares = [0, 2, 5, 8, *range(10, 17), 24]
    with ThreadPoolExecutor(5) as threads:
        rows = dict(zip(spares, threads.map(one, spares), strict=True))
    for spare, (other, own, log) in rows.items():
        print(spare, "|", other, "|", own, "|", log)
    assert "resource_exhausted: group '0': interface lo: socket: Too many open files" in rows[2][1]
    assert rows[24] == ("", "", "")
    for spare, (other, own, log) in rows.items():
        # Both fail or none. Only rank 1 can know the reason (in its error, or in a warning if
        # sockets were available but connections failed); the other one names the rank.
        assert bool(other) == bool(own), (spare, other, own)
        assert not other or "Too many open files" in own + log, (spare, own, log)
        assert not other or "rank 1" in other or "rank/1" in other, (spare, other)
    assert any(
        "cannot open another connection: Too many open files" in own + log
        for _, own, log in rows.values()
    )


def test_sockets_are_forbidden(network_job):
    """A sandbox refuses socket() on one rank: that rank reports it, the other names the missing rank."""
    with network_job(2, "scenarios_input.forbidden") as it:
        row = it.ranks[1].expect("error")
        assert row["kind"] == "DistBackendError", row
        assert re.search(
            r"system: group '0': .*socket: Operation not permitted Hint: .*sandbox", row["text"]
        ), row
        text = it.ranks[0].expect("error")["text"]
        assert "1 of 2 keys missing (rank/1)" in text, text
        it.end()


def test_no_locked_memory(network_job):
    """RLIMIT_MEMLOCK matters for RDMA, which this job does not use."""
    with network_job(2, "scenarios_input.works", 1 << 20, {}, limits={"RLIMIT_MEMLOCK": 0}) as it:
        assert {row["path"] for row in it.expect("stats")} == {"multicast"}
        it.end()


def test_small_buffers_and_lies_about_the_mtu(network_job):
    # A buffer takes one datagram of the probe at a time, so that some are lost.
    env = {"MCAST_RCVBUF": "4K", "MCAST_SNDBUF": "4K", "MCAST_PROBE_TIMEOUT": "60000"}
    with network_job(3, "scenarios_input.works", 3 << 20, {}, env=env) as it:
        for row in it.expect("stats"):
            assert row["path"] == "multicast" and row["window"] > 0, row["reason"]
            assert "raise net.core.rmem_max" not in row["transport"]  # it got the requested size
        it.end()
    with network_job(
        2, "scenarios_input.works", 1 << 20, {"rcvbuf": 1 << 30, "max_mtu": 65535}
    ) as it:
        for row in it.expect("stats"):
            assert "(asked 1073741824; raise net.core.rmem_max)" in row["transport"]
        it.end()


@pytest.fixture
def small_mtu():
    """Makes a network namespace whose loopback carries packets of 1500 bytes only."""
    from torch_mcast.lab.system import LabError, require_rights

    try:
        require_rights()
    except LabError as error:
        pytest.skip(str(error))
    name = f"mcast-life-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up"], check=True)
        yield f"/run/netns/{name}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_larger_mtu_than_the_interface_has(network_job, small_mtu):
    with network_job(2, "scenarios_input.works", 1 << 20, {"max_mtu": 9000}, netns=small_mtu) as it:
        for row in it.expect("stats"):
            assert " mtu 1500 " in row["transport"] and row["chunk"] < 1500, row
            assert row["path"] == "multicast"
        it.end()


def test_a_healthy_job_logs_nothing_at_the_default_level(network_job):
    """A healthy job logs nothing at the default level; with info it logs one line per lane and per
    group."""
    with network_job(2, "scenarios_input.works", 1000, {}) as it:
        it.expect("stats")
        it.end()
        assert "torch-mcast[" not in it.output() and "mcast:" not in it.output(), it.output()
    with network_job(2, "scenarios_input.works", 1000, {}, env={"MCAST_DEBUG": "info"}) as it:
        it.expect("stats")
        it.end()
        for rank in it.ranks:
            lines = [line for line in rank.output().splitlines() if "torch-mcast[" in line]
            start = rf"torch-mcast\[{rank.pid}\] info: "
            for lane, line in zip(("multicast", "reduce"), lines, strict=False):
                assert re.match(
                    start + rf"{lane} lane: transport udp lo 127\.0\.0\.1 mtu 9000 rcvbuf \d+.* "
                    r"sndbuf \d+.* gso o\w+.* gro",
                    line,
                ), lines
            # The second group has the same ranks, which the first one has probed.
            for number, whose in enumerate(("the probe", "the probe of another group")):
                assert re.match(
                    start
                    + rf"group '{number}': rank {rank.number} of 2 on 1 host\(s\), path multicast "
                    rf"\({whose} reached every rank\), chunk \d+, udp lo 127.*"
                    "; no shared memory: shared_memory is off$",
                    lines[2 + number],
                ), lines
            assert len(lines) == 4, lines
    shared = {"MCAST_DEBUG": "info", "MCAST_SHARED_MEMORY": "auto"}
    with network_job(2, "scenarios_input.works", 1000, {}, env=shared) as it:
        it.expect("stats")
        it.end()
        for rank in it.ranks:
            text = rf"info: group '0': rank {rank.number} of 2 on this host, shared memory: 8 slots"
            assert len(re.findall(text, rank.output())) == 1, rank.output()
    no_probes = {"MCAST_FAULTS": "drop:type=probe", "MCAST_PROBE_TIMEOUT": "100"}
    with network_job(2, "scenarios_input.works", 1000, {}, env=no_probes) as it:
        assert {row["path"] for row in it.expect("stats")} == {"ring"}
        it.end()
        # One warning from one rank, not one per group.
        warnings = re.findall(
            r"torch-mcast\[\d+\] warn: group '0' uses the unicast ring: rank 0 does not hear",
            it.output(),
        )
        assert len(warnings) == 1 and it.output().count("warn:") == 1, it.output()
