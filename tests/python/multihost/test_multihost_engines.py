"""Ranks of several hosts whose networking is done by engines: several ranks of a host at one
engine, and two jobs that share a link."""

import programs
import pytest
import torch
import torch.distributed as dist
from test_multihost_hosts import BYTES, FRAMING, measured
from waiting import until
from wire import again_by_host, moved

import torch_mcast
from torch_mcast.lab.pool import Pool


@pytest.mark.parametrize("op", ["all_gather", "broadcast", "reduce_scatter", "all_reduce"])
def test_ranks_of_a_host_share_its_engine_s_memory(hosts, op, record_property):
    """They fold before they send, and a host receives large streams once: as in process, and the
    bytes on the links have the same bound."""
    cluster = hosts(2, 2, engine_options=())
    crossed, rows = moved(cluster, measured, op)
    for row in rows:
        assert row["transport_reason"].startswith("engine of this host (process ")
        assert row["contributions"] == "one per host (2)"
        assert row["streams"] == "one rank per host (2)"
    # (A rank that is the source receives nothing.)
    key = "shm_mapped_bytes" if op in ("all_gather", "broadcast") else "shm_direct_bytes"
    assert sum(row["counters"][key] > 0 for row in rows) >= 2
    resent = again_by_host(crossed, [row["counters"] for row in rows], 2)
    sent = [crossed.sent(host) for host in ("h1", "h2")]
    record_property("sent", (sent, resent))
    # (All of a broadcast is sent by one host, and all of an all_reduce is sent twice in halves.)
    part = BYTES if op in ("broadcast", "all_reduce") else BYTES / 2
    assert part <= max(sent)
    for bytes, again in zip(sent, resent, strict=True):
        assert bytes <= FRAMING * part + 100_000 + again


def gathers(ctx, size: int) -> int:
    """Runs all-gathers of `size` bytes in all until the driver sends "stop" to rank 0. Returns how
    often it waited."""
    programs.join(ctx, fallback="none")
    world = dist.get_world_size()
    output, told, done = torch.empty(size, dtype=torch.uint8), torch.zeros(1), 0
    mine = programs.pattern(size // world, ctx.rank, 0)
    while not told.item():
        # Several in a row, so that messages of the ranks between them do not count.
        for _ in range(max(1, (64 << 20) // size)):
            dist.all_gather_into_tensor(output, mine)
        done += 1
        if done == 1:
            ctx.notify("running")
        if ctx.rank == 0:
            told.fill_(float(ctx.told("stop")))
        dist.broadcast(told, 0)
    return torch_mcast.stats()["counters"]["share_waits"]


MOVED = 240 << 20  # bytes that both jobs together send from a host while they are watched


def sent(cluster):
    """Returns by host the engine's byte counts of each client."""
    return {
        host: {c["pid"]: c["sent_bytes"] for c in cluster.lab.engines.status(host)["clients"]}
        for host in ("h1", "h2")
    }


# Shares of a link need ranks that always have work: in `make test-all`, after the others.
@pytest.mark.all_tier
@pytest.mark.alone
@pytest.mark.parametrize("sizes", [(64 << 20, 8 << 20), (64 << 20, 64 << 20)])
def test_two_jobs_divide_a_link_evenly(hosts, sizes, record_property):
    cluster = hosts(2, engine_options=(), rate="300mbit")
    with Pool.in_lab(cluster.lab, programs.PRELOAD) as pool:
        first = cluster.start(gathers, sizes[0])
        second = pool.start(gathers, sizes[1], env={"MASTER_PORT": "33334"})
        for call in (first, second):
            call.wait("running")
        before, moved = sent(cluster), {}

        def much(before=before, moved=moved):
            after = sent(cluster)
            for host, by in before.items():
                moved[host] = {pid: after[host][pid] - by[pid] for pid in by}
            return all(sum(by.values()) >= MOVED for by in moved.values())

        until(much, lambda moved=moved: moved)
        for call in (first, second):
            call.signal("stop", ranks=[0])
        waits = first.results() + second.results()
    assert sum(waits) > 0, "somebody was held"
    for host, by in moved.items():
        assert len(by) == 2
        share = 100 * min(by.values()) / sum(by.values())
        record_property(f"lesser share at {host}, %", round(share, 1))
        assert share >= 45, moved
