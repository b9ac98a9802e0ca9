"""Links: rates, faults, cuts, multicast, racks, queues. The tests assert bytes and counts."""

import os
import sys
import time

import pytest
from lab_fixtures import skip_or_fail

from torch_mcast.lab import BitErrors, Lab, LabSpec, Loss

pytestmark = pytest.mark.usefixtures("lab_rights")
GROUP = "239.7.7.7"
FRAME = 14 + 20 + 8  # Ethernet, IP and UDP headers


@pytest.fixture(scope="module")
def shared(lab_rights):
    """One lab for tests that restore everything."""
    with Lab(LabSpec(hosts=3)) as lab:
        yield lab


@pytest.fixture
def plain(shared):
    yield shared
    shared.restore(LabSpec(hosts=3))


def test_wire_bytes_are_the_frames(plain, traffic):
    traffic(plain).send("h1", ["h2"], 10)  # address resolution is done
    before = plain.counters()
    assert traffic(plain).send("h1", ["h2"], 300, 1000) == [(300, 0)]
    moved = plain.counters() - before
    expected = 300 * (1000 + FRAME)
    assert expected <= moved.sent("h1") <= expected + 200
    assert moved.received("h2") == moved.sent("h1") and moved.received("h3") <= 200
    assert moved.ports["h1"].rx_bytes == moved.nics["h1"].tx_bytes
    assert moved.fabric_bytes >= 2 * expected


def test_hosts_of_a_large_lab_take_no_room_in_the_kernels_neighbour_table(traffic):
    """The kernel has 1,024 entries for all namespaces: 32 hosts that resolve each other would fill
    it, and then connections fail with "No route to host"."""
    with Lab(LabSpec(hosts=17)) as lab:
        assert traffic(lab).send("h1", ["h17"], 10) == [(10, 0)]
        rows = lab.run("h1", ["ip", "neigh", "show", "dev", "eth0"]).stdout.splitlines()
        assert len(rows) == 16 and all("extern_learn" in row for row in rows), rows
        # Still, a host that is gone is noticed, as in a small lab.
        lab.cut("h17")
        script = f"""
import errno, socket, sys
try:
    socket.create_connection(("{lab.host("h17").address}", 9), timeout=30)
except OSError as error:
    sys.exit(0 if error.errno == errno.EHOSTUNREACH else str(error))
"""
        lab.run("h1", [sys.executable, "-c", script])


def test_multicast_crosses_each_link_once(plain, traffic):
    before = plain.counters()
    assert traffic(plain).send("h1", ["h2", "h3"], 200, 1000, GROUP) == [(200, 0), (200, 0)]
    moved = plain.counters() - before
    data = 200 * (1000 + FRAME)
    for crossed in (moved.sent("h1"), moved.received("h2"), moved.received("h3")):
        assert data <= crossed <= data + 5000


def test_blocked_multicast_does_not_arrive_and_unicast_does(plain, traffic):
    plain.set_multicast("blocked")
    assert traffic(plain).send("h1", ["h2"], 20, 100, GROUP) == [(0, 0)]
    assert traffic(plain).send("h1", ["h2"], 20) == [(20, 0)]
    plain.set_multicast("flood")
    assert traffic(plain).send("h1", ["h2"], 20, 100, GROUP) == [(20, 0)]


def test_snooping_delivers_to_members_only(plain, traffic):
    plain.set_multicast("snooping")
    for _ in range(50):  # the bridge trusts its querier after a response interval
        before = plain.counters()
        assert traffic(plain).send("h1", ["h2"], 50, 1000, GROUP) == [(50, 0)]
        stray = (plain.counters() - before).received("h3")
        if stray < 5000:
            break
    assert stray < 5000
    # With version 2 they would suppress reports after another host's, and their ports would be
    # pruned.
    for host in plain.hosts:
        memberships = plain.run(host, ["cat", "/proc/net/igmp"]).stdout.splitlines()
        assert [line.split()[-1] for line in memberships if "eth0" in line] == ["V3"]


def test_loss_counters_account_for_every_datagram(plain, traffic):
    plain.set_faults(Loss(0.5, hosts=["h2"]))
    [(got_2, _), (got_3, _)] = traffic(plain).send("h1", ["h2", "h3"], 400, 1000, GROUP)
    hits = {hit["host"]: hit for hit in plain.fault_counters()}
    assert got_3 == 400 and "h3" not in hits
    lost = 400 - got_2
    assert 120 <= lost <= 280  # 8 standard deviations
    assert hits["h2"]["packets"] == lost


def test_loss_from_a_host_is_behind_its_shaper(plain, traffic):
    plain.set_faults(Loss(1.0, hosts=["h1"], direction="out"))
    before = plain.counters()
    assert traffic(plain).send("h1", ["h2"], 100, 1000) == [(0, 0)]
    moved = plain.counters() - before
    assert moved.sent("h1") >= 100 * 1000 and moved.received("h2") < 5000
    assert traffic(plain).send("h2", ["h1"], 20) == [(20, 0)]


def test_a_super_packet_is_one_loss_event_unless_datagrams_are_asked_for(plain):
    # UDP_SEGMENT (103): one call, 40 datagrams of 1000 bytes, split behind the queue.
    script = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.IPPROTO_UDP, 103, 1000)\n"
        "for _ in range(20): s.sendto(bytes(40000), ('10.99.0.2', 9))\n"
    )
    plain.run(
        "h1", ["python3", "-c", "import socket; socket.socket(2, 2).sendto(b'', ('10.99.0.2', 9))"]
    )
    for unit, events in (("superpacket", 20), ("datagram", 800)):
        plain.set_faults(Loss(1.0, hosts=["h2"], unit=unit))
        plain.run("h1", ["python3", "-c", script])
        assert plain.fault_counters()[0]["packets"] == events


def test_bit_errors_reach_the_program(plain, traffic):
    plain.set_faults(BitErrors(0.3, hosts=["h2"]))
    [(got, damaged)] = traffic(plain).send("h1", ["h2"], 400, 1400)
    hits = plain.fault_counters()[0]
    assert hits["kind"] == "bits" and 40 <= hits["packets"] <= 240
    # A second hit on the same frame is rare; a flipped bit in the number yields another datagram.
    assert got >= 350 and 0.6 * hits["packets"] <= damaged <= hits["packets"]


@pytest.mark.parametrize("silent", [False, True])
def test_cut_and_heal(plain, traffic, silent):
    with traffic(plain).echo("h2"):
        assert traffic(plain).answers("h1", "h2")
        plain.cut("h2", silent=silent)
        carrier = plain.run("h2", ["cat", "/sys/class/net/eth0/carrier"]).stdout.strip()
        assert carrier == ("1" if silent else "0")
        assert not traffic(plain).answers("h1", "h2")
        plain.heal("h2")
        # Neighbour entries that failed meanwhile are resolved again.
        assert any(traffic(plain).answers("h1", "h2") for _ in range(10))


def test_restoring_a_lab_heals_every_cut(plain, traffic):
    plain.cut("h1", silent=True)
    plain.cut("h2")
    plain.set_faults(Loss(1.0, hosts=["h3"]))
    plain.restore(LabSpec(hosts=3))
    for source, target in (("h1", "h3"), ("h3", "h1"), ("h3", "h2")):
        # Neighbour entries that failed meanwhile are resolved again.
        assert any(traffic(plain).send(source, [target], 20) == [(20, 0)] for _ in range(10))
    assert plain.fault_counters() == []


def test_attach_sees_and_changes_the_same_lab(plain, traffic):
    other = Lab.attach(plain.id)
    assert other.spec == plain.spec
    other.set_faults(Loss(1.0, hosts=["h3"]))
    assert traffic(plain).send("h1", ["h3"], 20) == [(0, 0)]
    other.set_faults()
    assert traffic(plain).send("h1", ["h3"], 20) == [(20, 0)]


def test_a_rate_limits_both_directions(traffic):
    """Compares the bytes that cross in a time window with those that the rate allows in that window."""
    with Lab(LabSpec(hosts=2, rate="8mbit", burst=20000)) as lab:
        traffic(lab).send("h1", ["h2"], 1)
        start = time.monotonic()
        before = lab.counters()
        assert traffic(lab).send("h1", ["h2"], 600, 1400) == [(600, 0)]
        moved = lab.counters() - before
        elapsed = time.monotonic() - start
        assert moved.sent("h1") >= 600 * 1400
        for crossed in (moved.sent("h1"), moved.received("h2")):
            assert crossed <= 1_000_000 * elapsed + 20000


def test_one_slow_host_and_a_new_rate():
    with Lab(LabSpec(hosts=2, rate="1gbit", host_rates={"h2": "10mbit"})) as lab:

        def rate(host):
            return (
                lab.run(host, ["tc", "qdisc", "show", "dev", "eth0"])
                .stdout.split("rate ")[1]
                .split()[0]
            )

        assert (rate("h1"), rate("h2")) == ("1Gbit", "10Mbit")
        lab.set_rate("h2", "20mbit")
        assert rate("h2") == "20Mbit"


def test_racks_keep_local_traffic_off_the_uplinks(traffic):
    with Lab(LabSpec(hosts=4, racks=[2, 2], uplink_rate="1gbit")) as lab:
        for pair in (["h2"], ["h3"]):  # bridges learn the ports of all hosts
            traffic(lab).send("h1", pair, 5)
            traffic(lab).send(pair[0], ["h1"], 5)
        before = lab.counters()
        assert traffic(lab).send("h1", ["h2"], 100, 1000) == [(100, 0)]
        middle = lab.counters()
        assert traffic(lab).send("h1", ["h3"], 100, 1000) == [(100, 0)]
        after = lab.counters()
        local, remote = middle - before, after - middle
        assert all(port.wire_bytes < 5000 for port in local.uplinks.values())
        assert remote.uplinks["up1"].wire_bytes >= 100 * (1000 + FRAME)
        assert remote.uplinks["rack2"].wire_bytes >= 100 * (1000 + FRAME)
        assert remote.uplinks["up2"].wire_bytes < 5000
        assert traffic(lab).send("h1", ["h2", "h3", "h4"], 50, 500, GROUP) == [(50, 0)] * 3


def test_a_thread_on_cpu_k_leaves_by_queue_k(traffic):
    if len(os.sched_getaffinity(0)) < 2:
        skip_or_fail("one CPU")
    with Lab(LabSpec(hosts=2, tx_queues=2, rate="1gbit")) as lab:
        # Datagrams that wait for address resolution leave on the CPU that receives the reply.
        traffic(lab).send("h1", ["h2"], 5)
        cpus = sorted(os.sched_getaffinity(0))[:2]
        for cpu in cpus:
            before = lab.counters().nics["h1"].queues
            lab.run(
                "h1",
                [
                    "taskset",
                    "-c",
                    str(cpu),
                    "python3",
                    "-c",
                    "import socket; s = socket.socket(2, 2)\n"
                    "for _ in range(100): s.sendto(bytes(1000), ('10.99.0.2', 9))",
                ],
            )
            after = lab.counters().nics["h1"].queues
            moved = [b - a for a, b in zip(before, after, strict=True)]
            assert moved[cpu % 2] >= 100_000 and moved[1 - cpu % 2] < 5000


def test_mtu(traffic):
    with Lab(LabSpec(hosts=2, mtu=9000)) as lab:
        before = lab.counters()
        assert traffic(lab).send("h1", ["h2"], 10, 8900) == [(10, 0)]
        assert (lab.counters() - before).nics["h1"].wire_packets <= 10 + 5
