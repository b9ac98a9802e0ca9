"""Hosts with a second network: which one a job chooses, and its errors if a network does not lead
to the other hosts."""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import timedelta

import programs
import pytest
import torch
import torch.distributed as dist
from named_errors import check_error, is_error
from waiting import until

import torch_mcast
from torch_mcast.lab import system, topology
from torch_mcast.lab.network import Lab

FAST = "fast0"
LIMIT = timedelta(seconds=8)
MBITS = 40000  # more than the 10000 that the kernel reports for a virtual link

# A bridge is as fast as its fastest port that has a carrier: here a tap of that speed, which a
# process holds open.
HOLD = """
import fcntl, struct, sys
tap = open("/dev/net/tun", "rb+", buffering=0)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x1002))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def second_network(hosts):
    """second_network(per_host=1, same=False): a lab of two hosts that also have `fast0`: another
    switch, whose speed makes it the fastest. `same`: both have the same address there."""
    with contextlib.ExitStack() as held:

        def get(per_host=1, same=False):
            pool = hosts(2, per_host)
            lab = pool.lab
            switch = topology.switch_namespace(lab.id)
            system.ip_batch(
                ["link add br9 type bridge mcast_snooping 0", "link set br9 up"], switch
            )
            held.callback(system.ip_batch, ["link del br9"], switch)
            for host in lab.workers:
                add_interface(held, lab, host, switch, 1 if same else host.number + 1)
            return pool

        yield get


def add_interface(held: contextlib.ExitStack, lab: Lab, host, switch: str, number: int) -> None:
    port = f"fast-{host.name}"
    system.ip_batch(
        [
            f"link add eth9 type veth peer name {port} netns {switch}",
            f"link add {FAST} type bridge mcast_snooping 0",
            "tuntap add dev tap0 mode tap",
            f"link set eth9 master {FAST}",
            f"link set tap0 master {FAST}",
            f"addr add 10.98.0.{number}/24 dev {FAST}",
            *(f"link set {name} up" for name in ("eth9", "tap0", FAST)),
        ],
        host.namespace,
    )
    held.callback(
        system.ip_batch, [f"link del {name}" for name in ("eth9", "tap0", FAST)], host.namespace
    )
    system.ip_batch([f"link set {port} master br9", f"link set {port} up"], switch)
    system.shell(host.namespace, f"ethtool -s tap0 speed {MBITS} duplex full autoneg off")
    holder = lab.popen(host, [sys.executable, "-c", HOLD], stdin=-1, stdout=-1, text=True)
    held.callback(holder.wait)
    held.callback(holder.stdin.close)
    assert holder.stdout.readline() == "held\n"

    def told() -> str:
        return system.shell(host.namespace, f"ethtool {FAST}")

    until(lambda: f"{MBITS}Mb/s" in told(), told, pause_s=0.02)  # a port counts once it forwards


def used(ctx, interface=None, groups=1, ttl=1, security="off") -> list:
    """Returns the transport of each group, after it has moved some data, and the number of new
    lanes. `interface`: None leaves it unset. `ttl`: a value that no other test uses gives the group
    its own lanes."""
    before = lanes()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MCAST_SOCKET_IFNAME")
        options = {"ttl": ttl, "security": security, "trust_store": int(security != "off")}
        options |= {} if interface is None else {"interface": interface}
        programs.join(ctx, **options)
        made = [dist.group.WORLD] + [
            dist.new_group(pg_options=torch_mcast.Options(**options)) for _ in range(1, groups)
        ]
        for group in made:
            programs.all_gather(1 << 16, 1, group)
            total = torch.ones(3)
            dist.all_reduce(total, group=group)
            assert total.tolist() == [float(ctx.world_size)] * 3
        return [torch_mcast.stats(group)["transport"] for group in made] + [lanes() - before]


def lanes() -> int:
    count = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as comm:
            count += comm.read().startswith("mcast-lane")
    return count


def test_the_fastest_network_of_all_hosts_is_taken(second_network):
    for rank, (first, second, more) in enumerate(second_network(2).run(used, None, 2, 2)):
        assert first.startswith(f"udp {FAST} 10.98.0.{rank // 2 + 1} "), first
        assert second == first and more == 1


def test_a_setting_wins_over_the_fastest(second_network):
    pool = second_network()
    for setting in (topology.NIC, "^fast", f"{topology.NETWORK}.0/24"):
        for transport, _ in pool.run(used, setting):
            assert transport.startswith(f"udp {topology.NIC} "), (setting, transport)


def differing(ctx) -> str:
    return used(ctx, topology.NIC if ctx.rank == 1 else None)[0]


def test_ranks_follow_the_one_that_has_a_setting(second_network):
    for transport in second_network().run(differing):
        assert transport.startswith(f"udp {topology.NIC} "), transport


def test_a_faster_network_that_carries_nothing_is_passed_over(second_network):
    """The interfaces are up, but the switch is down."""
    pool = second_network()
    system.ip_batch(["link set br9 down"], topology.switch_namespace(pool.lab.id))
    for first, second, more in pool.run(used, None, 2, 3):
        assert first.startswith(f"udp {topology.NIC} ") and second == first
        assert more == 1, "those of the first choice have ended"


def test_guarded_groups_change_their_network_too(second_network):
    pool = second_network()
    system.ip_batch(["link set br9 down"], topology.switch_namespace(pool.lab.id))
    for first, _, more in pool.run(used, None, 2, 4, "auth"):
        assert first.startswith(f"udp {topology.NIC} ") and more == 1


def test_a_faster_network_with_one_address_for_all_is_passed_over(second_network):
    for transport, _ in second_network(same=True).run(used):
        assert transport.startswith(f"udp {topology.NIC} "), transport


def refused(ctx, **options) -> str:
    """Returns the error of a group with these options, next to the group whose store it uses."""
    programs.join(ctx)
    with pytest.raises(dist.DistBackendError) as raised:
        dist.new_group(timeout=LIMIT, pg_options=torch_mcast.Options(**options))
    programs.all_gather(100, 1)
    return str(raised.value)


def refused_interface(ctx, interface) -> str:
    return refused(ctx, interface=interface)


def test_one_address_on_two_hosts_is_refused_if_it_is_asked_for(second_network):
    for text in second_network(same=True).run(refused_interface, FAST):
        assert "rank 0 on host h1 has 10.98.0.1 (interface fast0)" in text, text
        assert "rank 1 on host h2 has 10.98.0.1 (interface fast0)" in text
        assert "MCAST_SOCKET_IFNAME" in text


def test_loopback_between_hosts_is_refused(hosts):
    for text in hosts(2).run(refused_interface, "lo"):
        assert "has 127.0.0.1 (interface lo), which is loopback" in text, text
        assert "MCAST_SOCKET_IFNAME" in text


def unreached(ctx) -> str:
    return refused(ctx, interface=FAST, liveness_limit=2000)


def test_hosts_that_cannot_be_reached_at_the_start_are_not_called_lost(second_network):
    pool = second_network()
    system.ip_batch(["link set br9 down"], topology.switch_namespace(pool.lab.id))
    for rank, text in enumerate(pool.run(unreached)):
        mine, other = (f"10.98.0.{1 + r}" for r in (rank, 1 - rank))
        if is_error(text, "aborted", rank=1 - rank):  # it has seen the same first
            found = torch_mcast.read_error(torch_mcast.read_error(text)["fields"]["reason"])
            assert (found["error"], found["fields"]["rank"]) == ("rank_unreached", rank), text
        else:
            check_error(text, "rank_unreached", rank=1 - rank)
            assert f"from {mine} (fast0)" in text and other in text, text
        assert "MCAST_SOCKET_IFNAME" in text and "look at its log" not in text, text


def test_a_switch_with_a_smaller_mtu_is_named(hosts):
    pool = hosts(2, mtu=9000)
    switch = topology.switch_namespace(pool.lab.id)
    ports = [host.port for host in pool.lab.workers]
    system.ip_batch([f"link set {port} mtu 1500" for port in ports], switch)
    try:
        options = {"probe_timeout": 500}
        for stats in pool.run(programs.every_op, [1], (), options):
            assert stats["path"] == "ring", stats["reason"]
            assert "hears only small datagrams of rank" in stats["reason"], stats["reason"]
            assert "IP packets of 8956 bytes are lost" in stats["reason"], stats["reason"]
            assert "MCAST_MAX_MTU" in stats["reason"]
        # With the setting that the reason names, multicast works.
        for stats in pool.run(programs.every_op, [1, 1 << 20], (), {"max_mtu": 1500}):
            assert stats["path"] == "multicast", stats["reason"]
    finally:
        system.ip_batch([f"link set {port} mtu 9000" for port in ports], switch)
