"""The choice of the interface, which the doctor gets from the library, on made-up hosts."""

import socket
from dataclasses import replace

import pytest

from torch_mcast import _load
from torch_mcast.doctor import context, netif
from torch_mcast.doctor.checks import interfaces as interfaces_check
from torch_mcast.doctor.findings import Verdict
from torch_mcast.doctor.netif import Interface, choose_interface

LO = Interface("lo", 1, "127.0.0.1", 8, 65536, up=True, loopback=True)
ETH0 = Interface("eth0", 2, "10.0.0.1", 24, 1500, up=True, multicast=True)
ETH1 = Interface("eth1", 3, "10.1.0.1", 16, 9000, up=True, multicast=True, default_route=True)
DOCKER = Interface("docker0", 4, "172.17.0.1", 16, 1500, up=True, multicast=True)
DOWN = Interface("ib0", 5, "10.2.0.1", 24, 4092, multicast=True)
BARE = Interface("eth2", 6, "", 32, 1500, up=True, multicast=True)
SIX = Interface("eth6", 8, "fd00:1::7", 64, 1500, up=True, multicast=True)
TUN = Interface("tun0", 7, "10.3.0.1", 24, 1400, up=True, default_route=True)


@pytest.mark.parametrize(
    ("interfaces", "pattern", "name"),
    [
        ([LO, ETH0, ETH1], "", "eth1"),  # the default route takes precedence over the order
        ([LO, DOCKER, ETH0], "", "eth0"),  # a container bridge is not an ordinary interface
        ([LO, DOCKER], "", "lo"),
        ([LO, TUN], "", "tun0"),  # no multicast, but it has the default route
        ([LO, TUN, ETH0], "", "eth0"),
        ([LO, DOWN, BARE], "", "lo"),
        ([LO, ETH0, ETH1], "eth", "eth0"),
        ([LO, ETH0, ETH1], "eth1,eth0", "eth1"),  # first the list's order, then the system's
        ([LO, ETH0, ETH1], "=eth0", "eth0"),
        ([LO, ETH0, ETH1], "^eth1", "eth0"),
        ([LO, ETH0, ETH1], "^=eth", "eth1"),
        ([LO, ETH0], "^eth", "lo"),
        ([LO, ETH0], "lo", "lo"),
        ([LO, DOWN, ETH0], "ib,eth", "eth0"),
        ([LO, DOCKER], "docker", "docker0"),  # requested
        ([LO, SIX], "", "eth6"),  # IPv6 only
        ([LO, ETH0, SIX], "fd00:1::/64", "eth6"),
    ],
)
def test_choice(interfaces, pattern, name):
    chosen, why = choose_interface(interfaces, pattern)
    assert chosen.name == name
    assert why


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("wlan", ["matches no usable interface", "lo 127.0.0.1", "ib0 10.2.0.1 (down)"]),
        ("=eth", ["matches no usable interface"]),
        ("ib", ["down or have no IP address"]),
        ("eth2", ["down or have no IP address", "eth2 (no IP address)"]),
        ("^lo,eth,ib", ["matches no usable interface"]),
        ("eth,,ib", ["empty name"]),
        ("^", ["empty name"]),
        ("=", ["empty name"]),
        ("=eth0+", ["empty name"]),
        ("eth0+eth1", ["stripe that is not exact"]),
        ("=eth0+eth0", ["one name twice in a stripe"]),
        ("=eth0+eth1", ["stripes over eth0, which does not exist, is down"]),
    ],
)
def test_an_impossible_choice_gives_the_reason(pattern, words):
    with pytest.raises(ValueError) as error:
        choose_interface([LO, DOWN, BARE], pattern)
    for word in words:
        assert word in str(error.value)


def test_reason_names_the_variable_or_the_rule():
    assert 'MCAST_SOCKET_IFNAME="eth"' in choose_interface([LO, ETH0], "eth")[1]
    assert "default route" in choose_interface([LO, ETH0, ETH1], "")[1]
    assert 'MCAST_SOCKET_IFNAME="^x" allows it' in choose_interface([LO, ETH0], "^x")[1]


def with_speed(interface: Interface, speed: int, **fields) -> Interface:
    return replace(interface, speed=speed, **fields)


def test_the_fastest_is_chosen_where_the_speed_of_the_route_is_known():
    slow, fast = with_speed(ETH1, 1000), with_speed(ETH0, 25000)
    assert choose_interface([LO, fast, slow], "")[0] is fast
    assert "fastest (25000 Mbit/s)" in choose_interface([LO, fast, slow], "")[1]
    assert choose_interface([LO, fast, ETH1], "")[0] is ETH1
    bridge = with_speed(DOCKER, 50000)
    assert choose_interface([LO, bridge, slow], "")[0] is slow
    to_store = with_speed(ETH0, 1000, store_route=True)
    assert choose_interface([LO, slow, to_store], "")[0] is to_store


def test_a_faster_interface_that_is_not_used_has_a_row():
    slow, fast = with_speed(ETH1, 1000), with_speed(ETH0, 25000)
    judge = interfaces_check.judge_faster
    [finding] = judge(slow, [LO, fast, slow])
    assert finding.verdict is Verdict.WARN
    assert (
        "eth0 10.0.0.1 (25000 Mbit/s) is up and not used; eth1 has 1000 Mbit/s" in finding.finding
    )
    assert 'MCAST_SOCKET_IFNAME="10.0.0.0/24"' in finding.fix
    assert judge(fast, [LO, fast, slow]) == []
    assert judge(slow, [LO, replace(fast, up=False), slow]) == []
    assert judge(slow, [LO, with_speed(DOCKER, 25000), slow]) == []
    assert judge(ETH1, [LO, fast, ETH1]) == [], "nobody knows how fast it is"
    assert judge(LO, [LO, fast]) == [] and judge(None, [fast]) == []


def test_the_interface_that_leads_to_the_store_is_marked():
    here = netif.list_interfaces()
    default = next((i for i in here if i.default_route and i.address), None)
    netif.mark_store_route(here, "127.0.0.1")
    assert not any(i.store_route for i in here)
    netif.mark_store_route(here, "nosuch.invalid")
    assert not any(i.store_route for i in here)
    if default is not None:
        netif.mark_store_route(here, default.address)
        assert [i.name for i in here if i.store_route] == [default.name]


def test_a_stripe_is_taken_by_its_first_interface():
    assert choose_interface([LO, ETH0, ETH1], "=eth1+eth0")[0] is ETH1
    assert choose_interface([LO, ETH0, ETH1], "=lo,eth1+eth0")[0] is LO


def test_without_the_extension_the_choice_is_not_known(monkeypatch):
    def missing():
        raise ImportError("torch_mcast has no compiled extension here")

    monkeypatch.setattr(_load, "extension", missing)
    assert context.gather({"MCAST_SOCKET_IFNAME": "=lo"}).chosen.name == "lo"
    found = context.gather({"MCAST_SOCKET_IFNAME": "^docker"})
    assert found.chosen is None and found.interfaces
    (used,) = (f for f in interfaces_check.run(found) if f.check == "interface used")
    assert used.verdict is Verdict.WARN
    assert "cannot be loaded" in used.finding


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t00000000\t010200C0\t0003\t0\t0\t50\t00000000\t0\t0\t0
eth2\t00000000\t010200C0\t0002\t0\t0\t1\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
broken line
"""


def test_routes_are_parsed_and_the_least_metric_that_is_up_wins():
    routes = netif.parse_routes(ROUTES)
    assert len(routes) == 3  # without the one that is down and the malformed one
    assert netif.default_route_interface(routes) == "eth1"
    assert (routes[2].destination, routes[2].mask) == (0xC0000200, 0xFFFFFF00)
    assert netif.default_route_interface([]) == ""


def test_listing_agrees_with_the_system():
    interfaces = {i.name: i for i in netif.list_interfaces()}
    for index, name in socket.if_nameindex():
        assert interfaces[name].index == index
    loopback = netif.find_loopback(list(interfaces.values()))
    assert (loopback.address, loopback.prefix, loopback.subnet) == (
        "127.0.0.1",
        8,
        "127.0.0.0/8",
    )
    assert loopback.mtu > 0
