"""Reductions between hosts: exact, with as few bytes as the algorithm needs, concurrent with the
multicast lane.

Tests with two hosts come first, so that the lab of four is built once."""

import os
import re
import time

import lab_fixtures
import programs
import pytest
import reductions
from named_errors import by_rank, check_error
from seeds import seed_of
from test_multihost_failures import LIMIT, others, raised_by
from wire import again_by_host, moved

from torch_mcast.lab import Loss, system, topology
from torch_mcast.lab.units import parse_rate

all_tier = pytest.mark.all_tier
SIZES = [0, 1, 1021, 4096, 70_001, 1 << 20]  # elements of float32: of the whole input
LARGE = [4 << 20]  # 16 MiB
OPS = ("reduce_scatter_tensor", "all_reduce", "reduce")


def check_served(stats, path="multicast"):
    for row in stats:
        assert row["path"] == path and not row["failure"]
        for op in OPS:
            assert row["calls"][op]["engine"] > 0 and row["calls"][op]["fallback"] == 0


def test_each_lane_has_its_nic_queue(hosts, record_property):
    """XPS is set by CPU and lane threads are pinned: one lane's data leaves by one queue, the
    other's by another. Links are not shaped: data that a shaper queues leaves later, on other CPUs.
    """
    if len(os.sched_getaffinity(0)) < 2:
        lab_fixtures.skip_or_fail("one CPU")
    cluster = hosts(2, rate=None, tx_queues=2)
    lanes = ("all_gather", "reduce_scatter")
    env = {"MCAST_PIN": "1"}
    call = cluster.start(reductions.one_lane_after_the_other, 16 << 20, lanes, env=env)
    call.wait("ready")
    used = {}
    for lane in lanes:
        before = cluster.lab.counters()
        call.signal(lane)
        call.wait(lane)
        moved = cluster.lab.counters() - before
        used[lane] = {host.name: moved.nics[host.name].queues for host in cluster.lab.workers}
    call.signal("end")
    call.results()
    record_property("bytes by queue", used)
    for host in cluster.lab.workers:
        busiest = []
        for lane, queues in used.items():
            bytes = queues[host.name]
            assert sum(bytes) >= 8 << 20, (lane, bytes)
            assert max(bytes) >= 0.95 * sum(bytes), (lane, host.name, bytes)
            busiest.append(bytes.index(max(bytes)))
        assert busiest[0] != busiest[1], used


@pytest.fixture
def two_nics(hosts):
    """Two hosts with a second NIC, back to back."""
    cluster = hosts(2)
    one, two = (host.namespace for host in cluster.lab.workers)
    system.ip_batch([f"link add eth1 netns {one} type veth peer name eth1 netns {two}"])
    for number, namespace in enumerate([one, two], 1):
        system.ip_batch([f"addr add 10.98.0.{number}/24 dev eth1", "link set eth1 up"], namespace)
    yield cluster
    system.ip_batch(["link del eth1"], one)


def test_each_lane_has_its_interface(two_nics):
    """An exact list of interfaces: the first multicasts, the second reduces, and runs all-reduces
    as a whole."""
    env = {"MCAST_SOCKET_IFNAME": "=eth0,eth1"}
    lanes = ("all_gather", "reduce_scatter", "all_reduce")
    call = two_nics.start(reductions.one_lane_after_the_other, 16 << 20, lanes, env=env)
    call.wait("ready")
    used = {}
    for lane in lanes:
        before = sent_by_nic(two_nics.lab)
        call.signal(lane)
        call.wait(lane)
        after = sent_by_nic(two_nics.lab)
        used[lane] = {key: after[key] - before[key] for key in after}
    call.signal("end")
    call.results()
    for host in ("h1", "h2"):
        for lane in lanes:
            busy, quiet = ("eth0", "eth1") if lane == "all_gather" else ("eth1", "eth0")
            assert used[lane][host, busy] >= 8 << 20, used
            assert used[lane][host, quiet] < 64 << 10, used


def set_second_rail(cluster, rate):
    for host in cluster.lab.workers:
        lines = topology.shaper_lines("eth1", parse_rate(rate), cluster.lab.spec, 1)
        system.tc_batch(lines, host.namespace)


@pytest.fixture
def two_rails(hosts):
    """Two hosts with two NICs of 500 Mbit/s each: one at the switch, one back to back. The lab
    stays for the next test, since the workers' lanes have sockets on it."""
    cluster = hosts(2, rate="500mbit")
    one, two = namespaces = [host.namespace for host in cluster.lab.workers]
    if "eth1" not in system.call(["ip", "-n", one, "-br", "link"]):
        system.ip_batch([f"link add eth1 netns {one} type veth peer name eth1 netns {two}"])
        for number, name in enumerate(namespaces, 1):
            system.ip_batch([f"addr add 10.98.0.{number}/24 dev eth1", "link set eth1 up"], name)
    set_second_rail(cluster, "500mbit")
    return cluster


STRIPED = {"MCAST_SOCKET_IFNAME": "=eth0+eth1"}


@all_tier
@pytest.mark.alone
def test_a_lane_is_striped_over_interfaces(two_rails, record_property):
    lanes = ("all_gather", "reduce_scatter", "all_reduce")
    seconds = {}
    for name, env in (("one", {"MCAST_SOCKET_IFNAME": "=eth0"}), ("both", STRIPED)):
        call = two_rails.start(reductions.one_lane_after_the_other, 16 << 20, lanes, env=env)
        call.wait("ready")
        for lane in lanes:
            before = sent_by_nic(two_rails.lab)
            call.signal(lane)
            seconds[name, lane] = max(call.wait(lane))
            after = sent_by_nic(two_rails.lab)
            for host in ("h1", "h2"):
                used = [after[host, nic] - before[host, nic] for nic in ("eth0", "eth1")]
                if name == "both":
                    record_property(f"{lane} {host}", round(used[1] / sum(used), 3))
                    assert sum(used) >= 16 << 20, (lane, host, used)
                    assert min(used) >= 0.35 * sum(used), (lane, host, used)
                else:
                    assert used[1] < 64 << 10, (lane, host, used)
        call.signal("end")
        call.results()
    # Speedup of everything that a lane does, on a machine that is also busy otherwise: recorded,
    # not asserted.
    for lane in lanes:
        record_property(f"speedup of {lane}", seconds["one", lane] / seconds["both", lane])


def test_every_reduction_on_a_stripe(two_rails):
    sizes = [0, 1, 1021, 70_001, 1 << 20]
    check_served(two_rails.run(reductions.every_reduction, sizes, env=STRIPED))
    two_rails.lab.set_faults(Loss("1%"))
    stats = two_rails.run(reductions.both_at_once, 4 << 20, 2, env=STRIPED)
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)


@all_tier
@pytest.mark.alone
def test_a_stripe_of_unequal_interfaces_uses_what_each_takes(two_rails, record_property):
    """eth1 at a quarter of eth0's rate gets a clearly smaller part of the bytes. There are so many
    that the bytes which a socket buffers for the slow interface do not matter."""
    set_second_rail(two_rails, "125mbit")
    lanes = ("all_gather", "reduce_scatter")
    call = two_rails.start(reductions.one_lane_after_the_other, 64 << 20, lanes, env=STRIPED)
    call.wait("ready")
    for lane in lanes:
        before = sent_by_nic(two_rails.lab)
        call.signal(lane)
        call.wait(lane)
        after = sent_by_nic(two_rails.lab)
        for host in ("h1", "h2"):
            fast, slow = (after[host, nic] - before[host, nic] for nic in ("eth0", "eth1"))
            record_property(f"{lane} {host}", round(slow / (fast + slow), 3))
            assert 0.05 <= slow / (fast + slow) <= 0.4, (lane, host, fast, slow)
    call.signal("end")
    call.results()


def test_an_interface_of_a_stripe_that_goes_down_is_named(two_rails):
    call = two_rails.start(reductions.until_it_fails, 32 << 20, LIMIT, env=STRIPED)
    call.wait("running")
    system.ip_batch(["link set eth1 down"], two_rails.lab.workers[0].namespace)
    texts = [text for _, text in call.wait("raised")]
    assert any("10.98.0." in text for text in texts), texts
    system.ip_batch(["link set eth1 up"], two_rails.lab.workers[0].namespace)
    assert all(outcome.state == "error" for outcome in call.outcomes(60))


def test_ranks_that_stripe_differently_are_told(two_rails):
    for text in two_rails.run(reductions.refused_group, "=eth0+eth1", "=eth0"):
        assert "number of interfaces that the multicast lane is striped over" in text
        assert "MCAST_SOCKET_IFNAME" in text


def sent_by_nic(lab):
    return {
        (host.name, nic): int(
            lab.run(host, ["cat", f"/sys/class/net/{nic}/statistics/tx_bytes"]).stdout
        )
        for host in lab.workers
        for nic in ("eth0", "eth1")
    }


CLUSTERS = [
    pytest.param(2, 1, 1500, id="2"),
    pytest.param(4, 1, 1500, id="4"),
    pytest.param(4, 1, 9000, id="4-mtu9000", marks=all_tier),
    pytest.param(4, 2, 1500, id="4x2", marks=all_tier),
    pytest.param(8, 1, 1500, id="8", marks=all_tier),
    pytest.param(8, 1, 9000, id="8-mtu9000", marks=all_tier),
]


@pytest.mark.parametrize("number, per_host, mtu", CLUSTERS)
def test_exact(hosts, number, per_host, mtu):
    cluster = hosts(number, per_host, **({} if mtu == 1500 else {"mtu": mtu}))
    check_served(cluster.run(reductions.every_reduction, [*SIZES, *LARGE], timeout_s=300))


# Bytes of payload that a host sends, in multiples of its input: contributions to the other blocks,
# and the result of its own block once.
SENT = {"reduce_scatter": lambda p: (p - 1) / p, "all_reduce": lambda p: (p - 1) / p + 1 / p}
ROUNDS = 2


@pytest.mark.parametrize("op", SENT)
def test_bytes_on_the_wire(four, op, record_property):
    size = 16 << 20
    crossed, counters = moved(four, reductions.measured, op, size, ROUNDS)
    payload = ROUNDS * size * SENT[op](4)
    resent = again_by_host(crossed, counters)
    for host, again in zip(four.lab.workers, resent, strict=True):
        sent = crossed.sent(host.name)
        record_property(f"sent/{host.name}", (round(sent / payload, 4), again))
        # TCP has 66 bytes of headers before 1448, a datagram 74 before 1408.
        assert 1514 / 1448 * payload <= sent <= 1.08 * payload + again
    assert all(port.queue_drops == 0 for port in crossed.counters.ports.values())


def test_both_lanes_at_once_under_loss(four):
    four.lab.set_faults(Loss("1%"))
    stats = four.run(reductions.both_at_once, 4 << 20, 4)
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
    assert sum(hit["packets"] for hit in four.lab.fault_counters()) > 0
    assert sum(row["counters"]["repair_chunks_received"] for row in stats) > 0


def test_both_lanes_at_once_on_the_ring(four):
    four.lab.set_multicast("blocked")
    stats = four.run(reductions.both_at_once, 4 << 20, 2)
    assert all(row["path"] == "ring" and not row["failure"] for row in stats)


def test_all_reduces_survive_multicast_that_dies(four):
    """The reduce lane changes to the ring by itself, while the other lane is idle."""
    call = four.start(reductions.until_the_ring, 1 << 20)
    call.wait("running")
    four.lab.set_multicast("blocked")
    call.wait("ring")
    call.signal("stop", ranks=[0])
    for row in call.results(60):
        assert not row["failure"] and row["reduce_counters"]["path_switches"] == 1
        assert row["reduce_counters"]["ring_bytes_sent"] > 0


SCHEDULES = [
    pytest.param(None, "1%", "flood", id="fresh"),
    *(pytest.param(n, "1%", "flood", id=str(n), marks=all_tier) for n in range(1, 8)),
    pytest.param(8, "10%", "flood", id="8-lossy", marks=all_tier),
    pytest.param(9, "0%", "flood", id="9-clean", marks=all_tier),
    pytest.param(10, "0%", "blocked", id="10-ring", marks=all_tier),
]


@pytest.mark.parametrize("seed, loss, mode", SCHEDULES)
def test_any_schedule_on_several_groups(four, seed, loss, mode):
    four.lab.set_multicast(mode)
    if loss != "0%":
        four.lab.set_faults(Loss(loss))
    for groups in four.run(reductions.drawn, seed_of(seed), 4, 3, timeout_s=240):
        assert all(not row["failure"] for row in groups)
        assert all(row["counters"]["ops_failed"] == 0 for row in groups)


def test_a_stopped_owner_holds_up_its_reduction_only(four):
    call = four.start(reductions.beside_a_stopped_owner, 2)
    call.wait("posted", [2])
    four.pool.stop(2)
    call.signal("go")
    call.wait("broadcasts done", others(four, 2))
    four.pool.resume(2)
    stats = call.results()
    assert all(not row["failure"] for row in stats)


def test_a_killed_owner_is_named(four):
    call = four.start(reductions.until_it_fails, 32 << 20, LIMIT)
    call.wait("running")
    four.pool.kill(2)
    raised_by(call, others(four, 2), 2)
    outcomes = call.outcomes(60)
    assert all(outcomes[rank].state == "error" for rank in others(four, 2))


@all_tier
@pytest.mark.parametrize("fault", ["stop", "cut", "kill-0"])
def test_an_owner_lost_for_good_is_named(four, fault):
    call = four.start(reductions.until_it_fails, 32 << 20, LIMIT)
    call.wait("running")
    culprit = 0 if fault == "kill-0" else 2
    if fault == "cut":
        four.lab.cut(culprit, silent=True)
    elif fault == "stop":
        four.pool.stop(culprit)
    else:
        four.pool.kill(culprit)
    raised_by(call, others(four, culprit), culprit)
    if fault == "cut":
        four.lab.heal(culprit)
    elif fault == "stop":
        four.pool.resume(culprit)
    states = {outcome.state for outcome in call.outcomes(60)}
    assert states == ({"error", "died"} if fault == "kill-0" else {"error"})


@all_tier
@pytest.mark.parametrize("fault", ["stop", "cut"])
def test_an_owner_that_comes_back_survives(four, fault):
    call = four.start(reductions.until_the_ring, 16 << 20)
    call.wait("running")
    if fault == "stop":
        four.pool.stop(2)
    else:
        four.lab.cut(2, silent=True)
    time.sleep(3)  # the length of the fault
    if fault == "stop":
        four.pool.resume(2)
    else:
        four.lab.heal(2)
    call.signal("stop", ranks=[0])
    assert all(not row["failure"] for row in call.results(90))


@pytest.mark.parametrize(
    ("how", "call_of_2"),
    [
        ("operator", r"reduce_scatter_tensor\(.*, max\)"),
        ("dtype", r"reduce_scatter_tensor\(.*, element type 6, sum\)"),
        ("kind", r"all_reduce\("),
    ],
)
def test_ranks_that_reduce_differently_are_told(four, how, call_of_2):
    call = four.start(reductions.differing, how, 60.0)
    call.wait("joined")
    call.signal("all joined")
    texts = call.wait("raised")
    call.results()
    for text in texts:
        calls = by_rank(check_error(text, "operation_differs", sequence=0), "call")
        assert re.match(call_of_2, calls[2]), text


def test_a_rank_that_does_not_reduce_is_named(four):
    call = four.start(reductions.differing, "absent", 2.0)
    call.wait("joined")
    call.signal("all joined")
    texts = call.wait("raised", others(four, 2))
    call.signal("go", ranks=[2])
    assert "reduce_scatter" in call.wait("raised", [2])[0]  # the group has failed
    call.results()
    for text in texts:
        check_error(text, "ranks_late", ranks=2)


@all_tier
@pytest.mark.alone
def test_the_policy_decides_how_the_lanes_share_a_link(hosts, record_property):
    """Compares the bytes of both lanes that a host has received when its all-gather ends, while the
    reduce-scatter next to it is still running. Links are slow compared with any CPU."""
    four, shares = hosts(4, rate="200mbit"), {}
    for policy in ("fair", "gather"):
        rows = four.run(reductions.shares_at_the_end_of_a_gather, policy, 32 << 20, 96 << 20)
        assert all(not over for _, over in rows), "the reduce-scatter was over first"
        shares[policy] = sum(share for share, _ in rows) / len(rows)
    record_property("reduction's share", shares)
    assert 0.25 <= shares["fair"] <= 0.65, shares
    assert 0.05 <= shares["gather"] <= 0.9 * shares["fair"], shares


def test_fsdp2_learns_as_over_gloo(four):
    ours = four.run(reductions.fsdp2, "mcast")
    theirs = four.run(reductions.fsdp2, "gloo")
    for (losses, _), (reference, _) in zip(ours, theirs, strict=True):
        # Sums have another order than Gloo's, so the last bits differ from three ranks on.
        assert losses == pytest.approx(reference, rel=1e-4)
        assert losses[-1] < losses[0]


@all_tier
@pytest.mark.alone
def test_fsdp2_overlaps_its_collectives(four, record_property):
    """The backward pass gathers the next layer while the last one's gradients are reduced."""
    overlaps = [reductions.overlaps(trace) for _, trace in four.run(reductions.fsdp2, "mcast")]
    record_property("overlapping pairs", overlaps)
    assert max(overlaps) > 0


def test_the_workers_still_work(four):
    """The failed groups above leave nothing behind."""
    stats = four.run(programs.every_op, [0, 1437, 1 << 20])
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
