"""What passes each NIC when aggregators fold, by the lab's counters of frames (`tc -s`), beside the
model of torch_mcast.cost_model.aggregation."""

import aggregated
import programs
import pytest
import torch
import torch.distributed as dist
from contents import close
from wire import again, moved

import torch_mcast
from torch_mcast.cost_model.aggregation import Case, Servers, plan

SIZE = 16 << 20
# Segments short enough that a shard can be dealt out within a few percent.
INCAST = 128 << 10
# Payload in frames of 1514 bytes: 1448 with TCP, 1408 with multicast.
FRAMING = 1.05
WITHIN = 0.06
# An aggregator acknowledges much more than it sends: up to one frame of 66 bytes for every two
# received, fewer if the kernel joins these.
ACKNOWLEDGED = 66 / (2 * 1514)


def one(op: str, salt: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    vector = torch.arange(SIZE // 4, dtype=torch.float32) + rank
    expected = torch.arange(SIZE // 4, dtype=torch.float32) * world + sum(range(world))
    if op == "all_reduce":
        dist.all_reduce(vector)
        close(vector, expected, op, rtol=2**-22)
        return
    own, shard = torch.zeros(SIZE // 4 // world), programs.pattern(SIZE // world, rank, salt)
    gathered = torch.zeros(SIZE, dtype=torch.uint8)
    works = [
        dist.all_gather_into_tensor(gathered, shard, async_op=True),
        dist.reduce_scatter_tensor(own, vector, async_op=True),
    ]
    for work in works:
        work.wait()
    close(own, aggregated.own_block(expected), op, rtol=2**-22)
    assert torch.equal(gathered, torch.cat(programs.blocks(SIZE // world, salt)))


def measured(ctx, op, order, incast=INCAST):
    programs.join(ctx, fold=order, incast=incast, algorithm="multicast", aggregator_patience=10_000)
    one(op, 1)  # connects
    dist.barrier()
    before = torch_mcast.stats()["counters"]
    ctx.notify("ready")
    ctx.wait("go")
    one(op, 2)
    dist.barrier()
    ctx.notify("done")
    ctx.wait("end")
    stats = torch_mcast.stats()
    dist.barrier()
    assert not stats["failure"] and stats["counters"]["agg_diverted"] == 0
    return {name: count - before[name] for name, count in stats["counters"].items()}


def expected(op, order, hosts, aggregators, size=SIZE):
    """Returns the planner's part and the loads with it, in bytes."""
    servers = Servers(hosts, aggregators, float(aggregators))
    segment = INCAST // (2 * (hosts - 1)) // 64 * 64
    own = "either" if order == "turn" else "sent"
    found = plan(Case(op != "all_reduce", size, hosts, servers, segment, own=own))
    assert found.reason == "placed"
    loads = servers.by_owner(op, found.part, found.kept, 1)
    return found, {
        "worker in": loads.worker_in * size,
        "worker out": loads.worker_out * size,
        "aggregator in": loads.aggregator_in * size,
        "aggregator out": loads.aggregator_out * size,
    }


def by_nic(cluster, crossed, rows):
    """Returns bytes as framed, the mean of each kind of host: shards and lists differ by a segment.
    Each comes with the maximum of retransmitted bytes: their receivers are not counted."""
    workers, aggregators = cluster.lab.workers, cluster.lab.aggregators
    resent = sum(again(row) for row in rows) + sum(crossed.tcp_again.values())

    def mean(read, hosts):
        return sum(read(host.name) for host in hosts) / len(hosts), resent / len(hosts)

    return {
        "worker in": mean(crossed.received, workers),
        "worker out": mean(crossed.sent, workers),
        "aggregator in": mean(crossed.received, aggregators),
        "aggregator out": mean(crossed.sent, aggregators),
    }


def check_bytes(cluster, op, order, record_property):
    aggregators, hosts = len(cluster.lab.aggregators), len(cluster.lab.workers)
    _, model = expected(op, order, hosts, aggregators)
    crossed, rows = moved(cluster, measured, op, order)
    nics = by_nic(cluster, crossed, rows)
    ratios = {name: round(nics[name][0] / model[name] / FRAMING, 4) for name in model}
    record_property(f"{op}, {order}, s = {aggregators}", (ratios, nics["worker out"][1]))
    assert sum(row["agg_bytes_sent"] for row in rows) == pytest.approx(
        model["aggregator in"] * aggregators, rel=0.03
    )
    assert all(row["agg_operations"] == 1 for row in rows)
    for name, wanted in model.items():
        crossed_it, resent = nics[name]
        most = (1 + WITHIN) * FRAMING * wanted + resent
        if name == "aggregator out":
            most += ACKNOWLEDGED * nics["aggregator in"][0]
        assert (1 - WITHIN) * FRAMING * wanted <= crossed_it <= most, (name, ratios, resent)


@pytest.mark.all_tier
@pytest.mark.parametrize("order", ["rank", "turn"])
@pytest.mark.parametrize("op", ["all_reduce", "ag_rs"])
@pytest.mark.parametrize("aggregators", [1, 2, 7])
def test_bytes_are_those_of_the_model(served, aggregators, op, order, record_property):
    check_bytes(served(8, aggregators, rate="300mbit"), op, order, record_property)


@pytest.mark.all_tier
def test_nobody_sends_more_than_its_share(served, record_property):
    """With the segments of the default settings, which need few grants, each worker sends its
    vector once. Each aggregator sends a seventh of the result, less at the last segments of shards,
    which are shorter."""
    cluster = served(8, 7, rate="300mbit")
    found, _ = expected("all_reduce", "turn", 8, 7)
    assert found.part == pytest.approx(1) and found.kept
    crossed, rows = moved(cluster, measured, "all_reduce", "turn", 2 << 20)
    sent = {host.name: crossed.sent(host.name) for host in cluster.lab.hosts}
    resent = [again(row) + crossed.tcp_again[f"h{number}"] for number, row in enumerate(rows, 1)]
    record_property("sent", (sent, resent))
    for host, bytes in zip(cluster.lab.workers, resent, strict=True):
        assert sent[host.name] <= 1.08 * SIZE + bytes, sent
    out, of_it = by_nic(cluster, crossed, rows)["aggregator out"]
    assert out <= 1.08 * SIZE / 7 + of_it, sent


def test_a_host_of_several_ranks_sends_one_contribution(served, record_property):
    """Bytes at the aggregators, and the bytes they have folded, do not grow with the ranks of a host."""
    into, folded, resent = {}, {}, {}
    for per_host in (1, 2):
        cluster = served(4, 2, per_host)
        jobs = []

        def look(cluster=cluster, jobs=jobs):
            aggregation = cluster.lab.aggregation
            jobs += [aggregation.status(host)["jobs"] for host in cluster.lab.aggregators]

        crossed, _ = moved(cluster, measured, "all_reduce", "rank", look=look)
        into[per_host] = sum(crossed.received(host.name) for host in cluster.lab.aggregators)
        resent[per_host] = sum(crossed.tcp_again.values())  # contributions are sent in streams
        folded[per_host] = sum(job["stations"][0]["folded_bytes"] for (job,) in jobs)
        assert {(job["ranks"], job["hosts"]) for (job,) in jobs} == {(4 * per_host, 4)}
    record_property("into aggregators", (into, resent))
    record_property("folded", folded)
    for one, other in ((1, 2), (2, 1)):
        assert into[one] - resent[one] <= 1.03 * into[other], (into, resent)
    assert folded[2] == pytest.approx(folded[1], rel=0.03)
