"""Multicast that is blocked or fails, and traffic that does not belong to a group."""

import contextlib
import dataclasses
import os
import re
import socket

import programs
import pytest
import torch
import torch.distributed as dist
from named_errors import check_error

import torch_mcast
from torch_mcast.lab import system
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.topology import NIC

SIZE = 1 << 20


def test_blocked_multicast_uses_the_ring(four):
    four.lab.set_multicast("blocked")
    outcomes = four.start(programs.every_op, [0, 1, 1437, SIZE]).outcomes(120)
    assert all(outcome.ok for outcome in outcomes), outcomes
    for outcome in outcomes:
        assert outcome.value["path"] == "ring" and "does not hear" in outcome.value["reason"]
        assert outcome.value["counters"]["ring_bytes_sent"] > 0
    logs = "".join(outcome.log for outcome in outcomes)
    assert logs.count("uses the unicast ring") == 1, logs


def test_blocked_multicast_is_an_error_if_multicast_is_a_must(four):
    four.lab.set_multicast("blocked")
    outcomes = four.start(programs.every_op, [1], (), {"algorithm": "multicast"}).outcomes(60)
    for outcome in outcomes:
        assert outcome.state == "error", outcome
        deaf = re.compile(r"rank \d does not hear rank \d").match
        check_error(outcome.text, "multicast_unreachable", why=deaf)


def test_snooping_with_a_querier_keeps_multicast(four):
    four.lab.set_multicast("snooping")
    stats = four.run(programs.every_op, [1, SIZE])
    assert all(row["path"] == "multicast" for row in stats)


@pytest.mark.parametrize("before", ["flood", pytest.param("snooping", marks=pytest.mark.all_tier)])
def test_multicast_that_dies_later_gives_way_to_the_ring(four, before):
    """Memberships age out, as on a switch without a querier: no data is lost."""
    four.lab.set_multicast(before)
    call = four.start(programs.until_told, SIZE, None, 60.0, None, "ring")
    call.wait("running")
    four.lab.set_multicast("blocked")
    call.wait("path")
    call.signal("stop")
    outcomes = call.outcomes(60)
    assert all(outcome.ok for outcome in outcomes), outcomes
    for outcome in outcomes:
        row = outcome.value
        assert row["path"] == "ring" and row["counters"]["path_switches"] == 1
        assert "no longer hears" in row["reason"] and not row["failure"]
    assert (
        "".join(outcome.log for outcome in outcomes).count("continues with the unicast ring") == 1
    )


@pytest.mark.all_tier
@pytest.mark.alone
def test_multicast_that_is_limited_gives_way_to_the_ring(hosts):
    """As behind a cloud gateway, which drops a host's multicast above some rate: the reach probe
    cannot see that. All but the root fetch the dropped data from the root, each its own copy, over
    the root's one link: with five hosts multicast moves a quarter of what unicast does, far below
    the threshold of a half. (In an all-gather all links carry such copies, as many as a ring's, so
    the difference only shows in broadcasts.)"""
    limited = hosts(5, rate="100mbit", multicast_rate="2mbit")
    call = limited.start(programs.until_told, SIZE, None, 60.0, 0, "ring")
    call.wait("path", timeout_s=180)
    call.signal("stop")
    outcomes = call.outcomes(120)
    assert all(outcome.ok for outcome in outcomes), outcomes
    for outcome in outcomes:
        row = outcome.value
        assert "multicast moves" in row["reason"] and "unicast" in row["reason"], row["reason"]
        assert row["counters"]["rate_tests"] >= 1 and row["counters"]["rate_test_bytes"] > 0
    [hits] = [hit for hit in limited.lab.fault_counters() if hit["host"] == "h1"]
    assert hits["kind"] == "multicast rate" and hits["packets"] > 0


def fragmented_in_steps(ctx, steps):
    """Runs several broadcasts from rank 0 in each step. Returns the number of fragmented datagrams
    it has sent by the end of each step."""
    programs.join(ctx)
    counts = []
    for step in range(steps):
        if ctx.rank == 0:
            ctx.notify("ready", step)
            ctx.wait("go")
        for i in range(3):
            programs.broadcast(SIZE, 0, 3 * step + i)
        dist.barrier()
        counts.append(torch_mcast.stats()["counters"]["fragmented"])
    return {**torch_mcast.stats(), "fragmented": counts}


def test_an_mtu_that_shrinks_under_a_group_is_told_and_counted(four):
    """The chunk size is agreed, so the group continues by multicast in IP fragments, and
    unfragmented once the MTU is back."""
    host = four.lab.host(0)
    mtus = [1500, 1300, 1500]
    call = four.start(fragmented_in_steps, len(mtus))
    try:
        for mtu in mtus:
            call.wait("ready", ranks=[0])
            system.ip_batch([f"link set {NIC} mtu {mtu}"], host.namespace)
            call.signal("go", ranks=[0])
        outcomes = call.outcomes(120)
    finally:
        system.ip_batch([f"link set {NIC} mtu 1500"], host.namespace)
    assert all(outcome.ok for outcome in outcomes), outcomes
    before, shrunk, after = outcomes[0].value["fragmented"]
    chunks = 3 * SIZE // 1408
    assert before == 0 and shrunk > chunks * 9 // 10 and after - shrunk < chunks // 10
    for outcome in outcomes:
        assert outcome.value["path"] == "multicast" and not outcome.value["failure"]
    assert all(outcome.value["fragmented"][-1] == 0 for outcome in outcomes[1:])
    log = outcomes[0].log
    assert log.count(f"interface {NIC}: its MTU is now 1300, it was 1500") >= 1, log


def second_job(cluster, hosts, base_port):
    """Starts another job's workers on some of the lab's hosts."""
    places = []
    for rank, number in enumerate(hosts):
        place = cluster.pool.places[number]
        env = {
            **place.env,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "MASTER_ADDR": cluster.lab.hosts[hosts[0]].address,
        }
        places.append(dataclasses.replace(place, env=env))
    return Pool(places, programs.PRELOAD, base_port)


def one_of_two_jobs(ctx, count, same_address):
    """Runs `count` rounds of operations, or until told if it is 0. The address is hashed from the
    job's identity; jobs that agree in it (two behind one rendezvous host) share the address."""
    programs.join(ctx)
    if same_address:
        os.environ.update(MASTER_ADDR="shared", MASTER_PORT="1")
    group = dist.new_group(backend="mcast")
    told, done = torch.zeros(1, dtype=torch.uint8), 0
    while not told.item():
        programs.all_gather(SIZE, done, group)
        programs.broadcast(SIZE, done % ctx.world_size, done, group)
        done += 1
        if done == 2:
            ctx.notify("running")
        if ctx.rank == 0 and (done == count or (not count and ctx.told("stop"))):
            told.fill_(1)
        dist.broadcast(told, 0, group)
    return torch_mcast.stats(group)


@pytest.mark.parametrize("same_address", [False, True], ids=["own-address", "same-address"])
def test_two_jobs_do_not_disturb_each_other(four, same_address):
    """This holds even if they share the multicast address: their members differ, and so do their ports."""
    count = 6
    with contextlib.closing(second_job(four, [1, 2, 3, 0], 40000)) as other:
        call = four.start(one_of_two_jobs, 0, same_address)
        call.wait("running")
        theirs = other.run(one_of_two_jobs, count, same_address)
        call.signal("stop")
        ours = call.results(60)
    sent = 2 * count * SIZE // 1408  # by the other job, at least
    for row in [*ours, *theirs]:
        assert row["path"] == "multicast" and not row["failure"], row["reason"]
        counters = row["counters"]
        assert counters["mismatched"] == 0 and counters["corrupt"] == 0
        # (Probes that arrive before a rank knows its group also count: a few on a busy machine.)
        others = counters["neighbour"] + counters["foreign"]
        assert others < sent // 10, others


SMALL = 1000


def replayed(ctx):
    """Sends datagrams of one group again while its successor waits for the same operation."""
    programs.join(ctx)
    store = dist.distributed_c10d._get_default_store()
    raw = None
    if ctx.rank == 0:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        raw.bind(("eth0", 0))
        raw.settimeout(5)
    store_barrier(store, "captures", ctx)
    first = dist.new_group(backend="mcast")
    for salt in range(3):
        programs.all_gather(SMALL, salt, first)
    dist.destroy_process_group(first)
    store_barrier(store, "first is over", ctx)
    second = dist.new_group(backend="mcast")
    late = 0
    if ctx.rank == 0:
        late = replay(raw, ctx.address)
        store.set("replayed", b"1")
    store.wait(["replayed"])
    for salt in range(3):  # the same sequence numbers and shapes, other bytes
        programs.all_gather(SMALL, 500 + salt, second)
    return late, torch_mcast.stats(second)


def store_barrier(store, name, ctx):
    """A barrier that sends no datagram."""
    if store.add(name, 1) == ctx.world_size:
        store.set(name + " go", b"1")
    store.wait([name + " go"])


def replay(raw, address):
    """Sends every captured data datagram again from an ordinary socket. Returns their number."""
    captured = []
    raw.setblocking(False)
    while True:
        try:
            frame = raw.recv(1 << 16)
        except BlockingIOError:
            break
        ip, udp = frame[14:], frame[14 + 20 :]
        if frame[12:14] != b"\x08\x00" or ip[9] != 17 or not 224 <= ip[16] < 240:
            continue
        target = socket.inet_ntoa(ip[16:20]), int.from_bytes(udp[2:4], "big")
        payload = udp[8 : int.from_bytes(udp[4:6], "big")]
        if payload[4:6] == b"CM" and payload[6] == 0x11 and len(payload) == 32 + SMALL:
            captured.append((target, payload))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        for target, payload in captured:
            sender.sendto(payload, target)
    return len(captured)


def test_late_datagrams_of_a_previous_group_are_ignored(four):
    answers = four.run(replayed)
    late = answers[0][0]
    assert late >= 12  # of 4 roots and 3 operations each
    for _, row in answers[1:]:
        assert row["counters"]["late"] >= late, row["counters"]
    for _, row in answers:
        assert row["path"] == "multicast" and not row["failure"]
        assert row["counters"]["mismatched"] == 0
