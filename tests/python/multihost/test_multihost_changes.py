"""Networks that change under a group: a fault that ends in time only causes a delay; after any
other fault, every rank gets an error that names the rank behind it."""

import contextlib
import re
import time

import changes
import programs
import pytest
from named_errors import blames

from torch_mcast.lab import faults, system
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.topology import NIC

# For ranks that are to be lost. A running rank is never silent for as long, however busy the
# machine is.
LIMIT = {"liveness_limit": 6000}
FAULT_S = 2.0
SIZE = 1 << 20
VICTIM = 2


def running(cluster, *args):
    call = cluster.start(changes.until_told, *args)
    call.wait("running")
    return call


def goes_on(call):
    call.signal("stop")
    rows = call.results(60)
    assert len({row["rounds"] for row in rows}) == 1
    assert all(not row["failure"] and row["counters"]["ops_failed"] == 0 for row in rows)
    return rows


def all_raise(cluster, call, victim=None):
    """All but the victim name it; the victim names any rank, since it has lost all the others.
    Without a victim, each names some rank."""
    ranks = range(cluster.world_size)
    for rank, (_, text) in zip(ranks, call.wait("raised", ranks, 60), strict=True):
        who = set(ranks) if victim is None or rank == victim else {victim}
        assert blames(text, who, "6.0 s"), f"{rank}: {text}"


@contextlib.contextmanager
def address(cluster, number, *commands):
    """Runs these commands on the host's interface, and undoes them."""
    host = cluster.lab.host(number)
    try:
        system.ip_batch([f"{command} dev {NIC}" for command in commands], host.namespace)
        yield
    finally:
        system.ip_batch(
            [f"addr flush dev {NIC}", f"addr add {host.address}/24 brd + dev {NIC}"], host.namespace
        )


def own(cluster, number):
    return f"{cluster.lab.host(number).address}/24"


def test_an_address_that_comes_back_in_time(four):
    call = running(four, SIZE)
    with address(four, VICTIM, f"addr del {own(four, VICTIM)}"):
        time.sleep(FAULT_S)  # the length of the fault
    rows = goes_on(call)
    [path] = {row["path"] for row in rows}
    assert path in ("multicast", "ring")


def test_an_address_that_is_gone_is_an_error(four):
    call = running(four, SIZE, LIMIT)
    with address(four, VICTIM, f"addr del {own(four, VICTIM)}"):
        all_raise(four, call, VICTIM)
    assert [outcome.state for outcome in call.outcomes(60)] == ["error"] * 4
    stats = four.run(programs.rounds, SIZE, 2)
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)


def test_another_address_is_used_by_the_next_group(four):
    other = four.lab.host(VICTIM).address.rsplit(".", 1)[0] + ".240"
    call = running(four, SIZE, LIMIT)
    with address(four, VICTIM, f"addr del {own(four, VICTIM)}", f"addr add {other}/24 brd +"):
        all_raise(four, call, VICTIM)
        call.outcomes(60)
        stats = four.run(programs.rounds, SIZE, 2)
        assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
        assert other in stats[VICTIM]["transport"]


@contextlib.contextmanager
def black_hole(cluster, number, most):
    """Drops IP packets above `most` bytes towards this host without notifying anyone."""
    host = cluster.lab.host(number)
    device = faults.devices(host, cluster.lab.switch)["in"]
    table = "netdev black_hole"
    rule = f'type filter hook ingress device "{NIC}" priority 0; meta length > {most} counter drop'
    sender, off = faults.offload_script(device, host, True)
    _, on = faults.offload_script(device, host, False)
    system.shell(sender or cluster.lab.switch, off)
    system.nft(host.namespace, f"table {table} {{ chain ingress {{\n{rule}\n}}\n}}\n")
    try:
        yield
        told = system.shell(host.namespace, f"nft list table {table}")
        assert int(re.search(r"counter packets (\d+)", told)[1]) > 0, "nothing was that long"
    finally:
        system.nft(host.namespace, f"delete table {table}\n")
        system.shell(sender or cluster.lab.switch, on)


def test_a_path_mtu_that_shrinks_silently_is_an_error(four):
    """Control frames still pass, so the rank behind the path is alive, but its data does not
    arrive. The rank that sends it data gives up the connection, and either end of it may be the
    first to report that."""
    call = running(four, SIZE, LIMIT)
    with black_hole(four, VICTIM, 1300):
        all_raise(four, call)
    assert [outcome.state for outcome in call.outcomes(60)] == ["error"] * 4


def test_a_path_mtu_that_shrinks_for_a_while_costs_time_only(four):
    call = running(four, SIZE)
    for _ in range(2):
        with black_hole(four, VICTIM, 1300):
            time.sleep(FAULT_S / 2)  # the length of the fault
        time.sleep(0.2)
    goes_on(call)


def test_an_interface_mtu_that_shrinks_in_the_middle(four):
    """Sets the MTU down, up, and down again while data is on its way: in fragments, whole, in fragments."""
    host = four.lab.host(VICTIM)
    call = running(four, SIZE)
    try:
        for mtu in (1300, 1500, 1000, 1500):
            system.ip_batch([f"link set {NIC} mtu {mtu}"], host.namespace)
            time.sleep(0.3)
    finally:
        system.ip_batch([f"link set {NIC} mtu 1500"], host.namespace)
    rows = goes_on(call)
    assert [row["counters"]["fragmented"] > 0 for row in rows] == [False, False, True, False]


@pytest.fixture
def fresh(four):
    """Returns workers that have no connections of earlier groups."""
    with Pool.in_lab(four.lab, programs.PRELOAD) as pool:
        yield pool


@contextlib.contextmanager
def no_connections(cluster, verdict):
    """Connection attempts between hosts are refused, or vanish, as when a firewall is reloaded or a
    network is set up late; existing connections work. The store, at a lower port, can be reached.
    """
    rule = f"tcp dport 32768-65535 tcp flags & (syn | ack) == syn counter {verdict}"
    hook = "type filter hook input priority 0"
    spaces = [cluster.lab.host(number).namespace for number in range(4)]
    for space in spaces:
        system.nft(space, f"table ip closed {{ chain closed {{\n{hook}; {rule}\n}}\n}}\n")
    try:
        yield
        told = [system.shell(space, "nft list table ip closed") for space in spaces]
        refused = sum(int(re.search(r"counter packets (\d+)", text)[1]) for text in told)
        assert refused > 1, "nobody tried again"
    finally:
        for space in spaces:
            system.nft(space, "delete table ip closed\n")


# (If SYNs vanish, the kernel sends the next ones 1, 3 and 7 s after the first.)
REFUSALS = {"refused": "reject with tcp reset", "unreachable": "reject", "dropped": "drop"}
CLOSED_S = 4.0


@pytest.mark.parametrize("verdict", REFUSALS.values(), ids=REFUSALS)
def test_connections_that_fail_at_the_creation_cost_time_only(four, fresh, verdict):
    with no_connections(four, verdict):
        call = fresh.start(programs.rounds, SIZE, 1)
        time.sleep(CLOSED_S)  # the length of the fault
    assert all(not row["failure"] for row in call.results(60))


@pytest.mark.parametrize("verdict", REFUSALS.values(), ids=REFUSALS)
def test_connections_that_fail_in_mid_life_cost_time_only(four, fresh, verdict):
    call = fresh.start(changes.connect_when_told, SIZE)
    call.wait("running")
    with no_connections(four, verdict):
        call.signal("go")
        time.sleep(CLOSED_S)  # the length of the fault
    assert all(not row["failure"] for row in call.results(60))


@pytest.mark.all_tier
def test_multicast_that_dies_and_comes_back_and_dies(four):
    """Runs each path in turn, with exact bytes on all of them."""
    call = four.start(changes.until_told, SIZE)
    call.wait("path multicast")
    for mode, path in (("blocked", "ring"), ("flood", "multicast"), ("blocked", "ring")):
        four.lab.set_multicast(mode)
        call.wait(f"path {path}")
    for row in goes_on(call):
        assert row["paths"] == ["multicast", "ring", "multicast", "ring"]
        assert row["counters"]["path_switches"] >= 3 and "no longer hears" in row["reason"]


def test_multicast_that_one_host_does_not_hear_any_more(four):
    """As with a firewall there: the rest of its traffic is unaffected."""
    host = four.lab.host(VICTIM)
    call = running(four, SIZE)
    rule = f'type filter hook ingress device "{NIC}" priority 0; ip daddr 224.0.0.0/4 counter drop'
    system.nft(host.namespace, f"table netdev unheard {{ chain ingress {{\n{rule}\n}}\n}}\n")
    try:
        call.wait("path ring")
        for row in goes_on(call):
            assert row["path"] == "ring" and f"rank {VICTIM} no longer hears" in row["reason"]
    finally:
        system.nft(host.namespace, "delete table netdev unheard\n")
