"""Bytes on the wire, by the lab's counters of frames (`tc -s`), compared with the ranks' own counters."""

import programs
import pytest
import torch.distributed as dist
from wire import ASKED, CHUNK, FRAMING, again_by_host, moved

import torch_mcast

BLOCK = 16 << 20
CHUNKS = -(-BLOCK // CHUNK)


def measured(ctx, op, count):
    """Runs between two signals, so that creating the group is not counted."""
    programs.join(ctx, algorithm="multicast")
    dist.barrier()
    before = torch_mcast.stats()["counters"]
    ctx.notify("ready")
    ctx.wait("go")
    for salt in range(count):
        if op == "all_gather":
            programs.all_gather(BLOCK, salt)
        else:
            programs.broadcast(BLOCK, 1, salt)
    ctx.notify("done")
    ctx.wait("end")
    return since(before)


def since(before):
    return {name: n - before[name] for name, n in torch_mcast.stats()["counters"].items()}


def repaired(crossed, counters):
    """Returns by host (one rank each) the bytes as framed (sent, received) of repairs. The network
    drops nothing here, but a rank that this machine delays loses datagrams, or takes late ones for
    lost."""
    assert all(port.queue_drops == 0 for port in crossed.counters.ports.values())
    remulticast = [FRAMING * CHUNK * c["remulticast_chunks"] for c in counters]
    bytes = {}
    for rank, (c, sent) in enumerate(zip(counters, again_by_host(crossed, counters), strict=True)):
        others = sum(remulticast) - remulticast[rank] + sum(crossed.tcp_again.values())
        asked = ASKED * (c["fetches_sent"] + c["fetches_received"])
        received = others + FRAMING * CHUNK * c["repair_chunks_received"] + asked
        bytes[f"h{rank + 1}"] = sent, received
    return bytes


def check_multicast_once(counters, chunks):
    """Checks the ranks' counters: each has multicast this many chunks for the first time. Other
    datagrams carry a root's position, which it may also send in its streams."""
    for c, own in zip(counters, chunks, strict=True):
        first = c["datagrams_sent"] - c["remulticast_chunks"]
        assert own <= first <= own + c["positions_sent"], (own, first, c["positions_sent"])


def test_an_all_gather_sends_each_block_once(four, record_property):
    crossed, counters = moved(four, measured, "all_gather", 2)
    again = repaired(crossed, counters)
    check_multicast_once(counters, [2 * CHUNKS] * 4)
    assert all(c["own_echo"] == 0 for c in counters)
    for host in four.lab.workers:
        sent, received = crossed.sent(host.name), crossed.received(host.name)
        record_property(f"sent/{host.name}", (sent / (2 * BLOCK), again[host.name]))
        assert FRAMING * 2 * BLOCK <= sent <= 1.07 * 2 * BLOCK + again[host.name][0]
        assert received <= 1.07 * 3 * 2 * BLOCK + again[host.name][1]


def test_a_broadcast_crosses_each_link_once(four, record_property):
    crossed, counters = moved(four, measured, "broadcast", 2)
    again = repaired(crossed, counters)
    check_multicast_once(counters, [0, 2 * CHUNKS, 0, 0])
    for host in four.lab.workers:
        sent, received = crossed.sent(host.name), crossed.received(host.name)
        record_property(host.name, (sent / (2 * BLOCK), received / (2 * BLOCK), again[host.name]))
        source, sink = (sent, received) if host.name == "h2" else (received, sent)
        extra = again[host.name] if host.name == "h2" else again[host.name][::-1]
        assert FRAMING * 2 * BLOCK <= source <= 1.07 * 2 * BLOCK + extra[0]
        assert sink <= 0.02 * 2 * BLOCK + extra[1]


@pytest.mark.all_tier
def test_eight_roots_do_not_overrun_the_switch(hosts, record_property):
    """Roots take turns; the data that waits at the switch for one host stays below its queue (4 MiB)."""
    cluster = hosts(8)
    crossed, counters = moved(cluster, measured, "all_gather", 2)
    again = [sent for sent, _ in repaired(crossed, counters).values()]
    check_multicast_once(counters, [2 * CHUNKS] * 8)
    sent = [crossed.sent(host.name) for host in cluster.lab.workers]
    record_property("sent/host", [round(bytes / (2 * BLOCK), 4) for bytes in sent])
    record_property("sent again", again)
    ratios = [(s - a) / (2 * BLOCK) for s, a in zip(sent, again, strict=True)]
    assert min(sent) >= FRAMING * 2 * BLOCK and max(ratios[1:]) <= 1.07
    # The top of the tree sends credit limits to seven ranks. It sends more frames if it often gets
    # a core, because each time a limit has then grown by less.
    assert ratios[0] <= FRAMING + 0.03


@pytest.mark.all_tier
def test_racks_carry_a_block_once_over_each_uplink(hosts):
    cluster = hosts(8, racks=[4, 4], uplink_rate="1gbit")
    crossed, counters = moved(cluster, measured, "broadcast", 1)
    again = sum(sent for sent, _ in repaired(crossed, counters).values())
    for uplink, port in crossed.counters.uplinks.items():
        wanted = uplink in ("up1", "rack2")  # h2 is in rack 1
        least, most = (FRAMING, 1.07) if wanted else (0, 0.02)
        bytes = port.wire_bytes
        assert least * BLOCK <= bytes <= most * BLOCK + again, (uplink, bytes, again)
