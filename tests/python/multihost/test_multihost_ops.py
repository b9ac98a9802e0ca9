"""Every engine operation between hosts: exact bytes, over multicast, at sizes from 0 B up."""

import programs
import pytest

all_tier = pytest.mark.all_tier
SIZES = [0, 1, 1437, 1 << 20]
LARGE = [16 << 20]
SHAPES = [
    pytest.param(2, 1, id="2"),
    pytest.param(3, 1, id="3"),
    pytest.param(8, 1, id="8", marks=all_tier),
    pytest.param(4, 2, id="4x2"),
    pytest.param(4, 1, id="4"),
]


def assert_multicast(stats):
    for row in stats:
        assert row["path"] == "multicast" and not row["failure"], row
        assert row["counters"]["path_switches"] == 0
        assert all(calls["fallback"] == 0 for calls in row["calls"].values()), row["calls"]


@pytest.mark.parametrize("number, per_host", SHAPES)
def test_every_op_is_exact(hosts, number, per_host):
    assert_multicast(hosts(number, per_host).run(programs.every_op, SIZES, LARGE))


@all_tier
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("number, per_host", SHAPES)
def test_every_op_large(hosts, number, per_host, mtu):
    cluster = hosts(number, per_host, mtu=mtu)
    stats = cluster.run(programs.every_op, [0, 1, 8191, (4 << 20) + 7], [64 << 20], timeout_s=300)
    assert_multicast(stats)
    assert all((row["chunk"] > 8000) == (mtu == 9000) for row in stats)


@all_tier
@pytest.mark.parametrize("racks", [[4, 4], [2, 3, 3]])
def test_racks(hosts, racks):
    """There are two levels of switches, with uplinks as fast as one host's link."""
    cluster = hosts(8, racks=racks, uplink_rate="1gbit")
    assert_multicast(cluster.run(programs.every_op, SIZES, [64 << 20], timeout_s=300))


@all_tier
def test_thirty_two_hosts(hosts):
    """More roots than may send at once (chains), and a control tree of several levels. Links are
    slow compared with 32 processes on a few cores."""
    stats = hosts(32, rate="100mbit").run(programs.every_op, [0, 1, 1437], [4 << 20], timeout_s=300)
    assert_multicast(stats)


@all_tier
def test_a_host_at_a_tenth_of_the_rate(four):
    """The slow host sets the pace; no rank times out and little is sent twice."""
    four.lab.set_rate("h3", "100mbit")
    stats = four.run(programs.every_op, SIZES, [32 << 20], timeout_s=300)
    assert_multicast(stats)


def thirty_groups(ctx):
    import torch.distributed as dist

    import torch_mcast

    programs.join(ctx)
    with programs.several_groups(30) as groups:
        for salt in range(3):
            for i, group in enumerate(groups):
                programs.all_gather(20_000 + i, 100 * salt + i, group)
        paths = [torch_mcast.stats(group)["path"] for group in groups]
    dist.barrier()
    return paths


def test_thirty_groups_in_a_process(four):
    assert four.run(thirty_groups) == [["multicast"] * 30] * 4
