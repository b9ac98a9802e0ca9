"""Loss and damage between hosts: exact bytes, and repair in proportion to what was lost.

Lost bytes are those that the lab's rules dropped (multicast datagrams and super-packets of them:
streams are TCP here); repaired bytes are those that ranks sent again, on streams or by multicast.
"""

import programs
import pytest

import torch_mcast
from torch_mcast.lab import BitErrors, Loss

all_tier = pytest.mark.all_tier
MULTICAST = {"algorithm": "multicast"}
SIZE = 2 << 20


def total(stats, name):
    return sum(row["counters"][name] for row in stats)


def account(cluster, stats):
    """Returns (bytes lost in all, bytes sent again) of a run, from the lab's counters and the ranks'."""
    lost = sum(hit["bytes"] for hit in cluster.lab.fault_counters() if hit["kind"] == "loss")
    again = total(stats, "remulticast_chunks") * stats[0]["chunk"]
    return lost, total(stats, "repair_bytes_sent") + again


def check_repairs(cluster, stats, record_property, receivers=1):
    """receivers: how many miss the data that one of the lab's rules drops."""
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
    lost, repaired = account(cluster, stats)
    lost *= receivers
    record_property("lost", lost)
    record_property("repaired / lost", round(repaired / lost, 3) if lost else None)
    assert lost > 0 and total(stats, "repair_chunks_received") > 0
    assert repaired <= 1.5 * lost


CI = [
    pytest.param(Loss("1%", hosts=["h2"]), 8, id="1%-datagrams-h2"),
    pytest.param(Loss("20%", hosts=["h2"]), 3, id="20%-datagrams-h2"),
    pytest.param(Loss("5%", unit="superpacket"), 6, id="5%-superpackets-all"),
]


@pytest.mark.parametrize("fault, count", CI)
def test_losses_are_repaired(four, record_property, fault, count):
    four.lab.set_faults(fault)
    stats = four.run(programs.rounds, SIZE, count, MULTICAST)
    check_repairs(four, stats, record_property)


@all_tier
@pytest.mark.parametrize("who", ["h2", "h2+h3", "all"])
@pytest.mark.parametrize("unit", ["datagram", "superpacket"])
@pytest.mark.parametrize("rate", ["0.1%", "1%", "5%", "20%"])
def test_losses_on_eight_hosts(hosts, record_property, rate, unit, who):
    cluster = hosts(8)
    cluster.lab.set_faults(Loss(rate, unit=unit, hosts=[] if who == "all" else who.split("+")))
    # So many datagrams that even some of the super-packets, 64 times fewer, are lost.
    count = 4 if unit == "datagram" else 40 if rate == "0.1%" else 12
    stats = cluster.run(programs.rounds, 4 << 20, count, MULTICAST, timeout_s=300)
    check_repairs(cluster, stats, record_property)


@all_tier
def test_loss_on_the_way_out(four, record_property):
    """Every receiver misses the same datagrams: they are multicast again, once for all."""
    four.lab.set_faults(Loss("5%", hosts=["h1"], direction="out"))
    stats = four.run(programs.rounds, SIZE, 6, MULTICAST)
    check_repairs(four, stats, record_property, receivers=3)


@all_tier
@pytest.mark.parametrize("rate", ["0.1%", "1%"])
def test_loss_on_everything(four, rate):
    """TCP and address resolution lose frames, too."""
    four.lab.set_faults(Loss(rate, protocol="all"))
    stats = four.run(programs.rounds, SIZE, 5, timeout_s=240)
    assert all(not row["failure"] for row in stats)
    assert sum(hit["packets"] for hit in four.lab.fault_counters()) > 0


def test_damaged_datagrams_are_dropped_and_repaired(four):
    four.lab.set_faults(BitErrors("1%"))
    stats = four.run(programs.rounds, SIZE, 4, MULTICAST)
    hits = sum(hit["packets"] for hit in four.lab.fault_counters())
    caught = total(stats, "corrupt") + total(stats, "malformed")
    assert hits > 0 and total(stats, "corrupt") > 0
    assert caught <= hits  # two flips may hit one datagram; a flip in a tag makes it a foreign one
    assert total(stats, "repair_chunks_received") > 0
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)


def over_damaged_streams(ctx, size, count):
    """The ring sends its data over TCP. Returns 'ok', or the text of the error. Wrong bytes fail
    compare()."""
    import torch.distributed as dist

    programs.join(ctx, algorithm="ring")
    ctx.notify("ready")
    ctx.wait("go")
    try:
        for salt in range(count):
            programs.all_gather(size, salt)
    except dist.DistBackendError as error:
        return torch_mcast.stats()["counters"]["corrupt"], str(error)
    return 0, "ok"


def test_damage_in_a_stream_raises_on_all(four):
    """A veth pair does not verify TCP's checksum. Wrong data is never delivered."""
    call = four.start(over_damaged_streams, SIZE, 30)
    call.wait("ready")
    four.lab.set_faults(BitErrors("1%", hosts=["h3"], protocol="tcp"))
    call.signal("go")
    answers = call.results(60)
    assert all(text != "ok" for _, text in answers), answers
    assert sum(corrupt for corrupt, _ in answers) >= 1, answers
