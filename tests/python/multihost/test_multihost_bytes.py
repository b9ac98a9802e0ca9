"""What is on the wire, by the lab's counters of frames (`tc -s`), beside what the ranks say."""

import programs
import pytest
import torch.distributed as dist

import torch_mcast

BLOCK = 16 << 20
# 1514 bytes of frame carry a chunk of 1408 bytes here: header, IP, UDP, Ethernet are 74.
FRAMING = (1408 + 74) / 1408


def measured(ctx, op, count):
    """Runs between two signals, so that creating the group is not counted."""
    programs.join(ctx, algorithm="multicast")
    dist.barrier()
    ctx.notify("ready")
    ctx.wait("go")
    for salt in range(count):
        if op == "all_gather":
            programs.all_gather(BLOCK, salt)
        else:
            programs.broadcast(BLOCK, 1, salt)
    ctx.notify("done")
    ctx.wait("end")
    return torch_mcast.stats()["counters"]


def moved(cluster, function, *args):
    """What crossed the links between two signals of `function`, and its results."""
    call = cluster.start(function, *args)
    call.wait("ready")
    before = cluster.lab.counters()
    call.signal("go")
    call.wait("done")
    after = cluster.lab.counters()
    call.signal("end")
    return after - before, call.results()


def check_nothing_lost(crossed, counters):
    """The network dropped nothing. A rank that the machine let wait past a cutoff may still have asked
    for a few chunks that were only late; what that costs is in the ratios."""
    assert all(port.queue_drops == 0 for port in crossed.ports.values())
    # The root of a broadcast places nothing.
    chunks = max(c["chunks_placed"] for c in counters)
    for c in counters:
        asked = {
            name: c[name] for name in ("gaps", "cutoffs", "fetches_sent", "repair_chunks_sent")
        }
        assert c["repair_chunks_sent"] <= 0.005 * chunks + 1, asked


def test_an_all_gather_sends_each_block_once(four, record_property):
    crossed, counters = moved(four, measured, "all_gather", 2)
    check_nothing_lost(crossed, counters)
    assert all(c["own_echo"] == 0 for c in counters)
    for host in four.lab.workers:
        ratio = crossed.sent(host.name) / (2 * BLOCK)
        record_property(f"sent/{host.name}", round(ratio, 4))
        assert FRAMING <= ratio <= 1.07
        assert crossed.received(host.name) <= 1.07 * 3 * 2 * BLOCK


def test_a_broadcast_crosses_each_link_once(four, record_property):
    crossed, counters = moved(four, measured, "broadcast", 2)
    check_nothing_lost(crossed, counters)
    for host in four.lab.workers:
        sent = crossed.sent(host.name) / (2 * BLOCK)
        received = crossed.received(host.name) / (2 * BLOCK)
        record_property(f"{host.name}", (round(sent, 4), round(received, 4)))
        if host.name == "h2":
            assert FRAMING <= sent <= 1.07 and received <= 0.02
        else:
            assert FRAMING <= received <= 1.07 and sent <= 0.02


@pytest.mark.all_tier
def test_eight_roots_do_not_overrun_the_switch(hosts, record_property):
    """Roots take turns; what waits at the switch for one host stays below its queue (4 MiB)."""
    cluster = hosts(8)
    crossed, counters = moved(cluster, measured, "all_gather", 2)
    check_nothing_lost(crossed, counters)
    again = [c["repair_bytes_sent"] + c["remulticast_chunks"] * 1408 for c in counters]
    sent = [crossed.sent(host.name) for host in cluster.lab.workers]
    record_property("sent/host", [round(bytes / (2 * BLOCK), 4) for bytes in sent])
    record_property("sent again", again)
    # Without the little that was sent again for ranks that this machine let wait (see above).
    ratios = [(s - FRAMING * a) / (2 * BLOCK) for s, a in zip(sent, again, strict=True)]
    assert min(sent) >= FRAMING * 2 * BLOCK and max(ratios[1:]) <= 1.07
    # The top of the tree sends credit limits to seven: the more frames, the less each rank that has
    # to wait for a core finds in one.
    assert ratios[0] <= FRAMING + 0.03


@pytest.mark.all_tier
def test_racks_carry_a_block_once_over_each_uplink(hosts):
    cluster = hosts(8, racks=[4, 4], uplink_rate="1gbit")
    crossed, _ = moved(cluster, measured, "broadcast", 1)
    for uplink, port in crossed.uplinks.items():
        wanted = uplink in ("up1", "rack2")  # h2 is in rack 1
        ratio = port.wire_bytes / BLOCK
        assert (FRAMING <= ratio <= 1.07) if wanted else ratio <= 0.02, (uplink, ratio)
