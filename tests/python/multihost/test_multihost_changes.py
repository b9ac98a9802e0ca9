"""Networks that change under a group: what comes back in time costs nothing but time, and for what
does not every rank gets an error that names the rank behind it."""

import contextlib
import re
import time

import changes
import programs
import pytest

from torch_mcast.lab import faults, system
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.topology import NIC

# Of ranks that are to be lost. No rank that runs is silent for as long, however busy the machine is.
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
    """All but the victim name it; it names somebody, since to it all the others are gone. Without a
    victim: each names somebody."""
    ranks = range(cluster.world_size)
    for rank, (_, text) in zip(ranks, call.wait("raised", ranks, 60), strict=True):
        who = r"\d" if victim is None or rank == victim else victim
        assert re.search(rf"rank {who} (is lost|has been silent|closed its)", text), (
            f"{rank}: {text}"
        )


@contextlib.contextmanager
def address(cluster, number, *commands):
    """These commands on the host's interface, and back."""
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
    """IP packets above `most` bytes towards this host vanish, and nobody is told."""
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
    """Control frames still pass, so the rank behind it lives; its data does not arrive. Who sends it
    data gives the connection up, and the first to say so may be either end of it."""
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
    """Down, up, and down again while data is on its way: in fragments, whole, in fragments."""
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
    """Workers that have no connections of earlier groups."""
    with Pool.in_lab(four.lab, programs.PRELOAD) as pool:
        yield pool


@contextlib.contextmanager
def no_connections(cluster, verdict):
    """Connection attempts between hosts are refused, or vanish, as with a firewall that is reloaded or a network
    that is set up late; connections that exist go on. The store, at a port below, can be reached."""
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


# (Of SYNs that vanish, the kernel sends the next one 1, 3 and 7 s after the first.)
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
    """Each path in turn, and exact bytes on all of them."""
    call = four.start(changes.until_told, SIZE)
    call.wait("path multicast")
    for mode, path in (("blocked", "ring"), ("flood", "multicast"), ("blocked", "ring")):
        four.lab.set_multicast(mode)
        call.wait(f"path {path}")
    for row in goes_on(call):
        assert row["paths"] == ["multicast", "ring", "multicast", "ring"]
        assert row["counters"]["path_switches"] >= 3 and "no longer hears" in row["reason"]


def test_multicast_that_one_host_does_not_hear_any_more(four):
    """As by a firewall there: nothing else of its traffic is hit."""
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
