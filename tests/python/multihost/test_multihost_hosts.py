"""Several ranks on a host: network traffic does not grow with them, by the lab's counters of frames
(`tc -s`)."""

import itertools
import time

import programs
import pytest
import torch
import torch.distributed as dist
from contents import close
from test_multihost_failures import LIMIT, others, raised_by
from wire import again_by_host, moved

import torch_mcast

BYTES = 16 << 20  # of a rank's input to reductions; of all outputs when gathered
FRAMING = 1.07


def whole(rank, salt, dtype=torch.int32):
    generator = torch.Generator().manual_seed(rank * 1000 + salt)
    count = BYTES // torch.empty(0, dtype=dtype).element_size()
    return torch.randint(-100, 100, (count,), generator=generator).to(dtype)


def total(salt, dtype=torch.int32):
    result = torch.zeros_like(whole(0, salt, dtype))
    for rank in range(dist.get_world_size()):
        result += whole(rank, salt, dtype)
    return result


def run(op, salt):
    size, rank = dist.get_world_size(), dist.get_rank()
    if op == "all_gather":
        programs.all_gather(BYTES // size, salt)
    elif op == "broadcast":
        programs.broadcast(BYTES, size - 1, salt)
    elif op == "reduce_scatter":
        out = torch.empty(BYTES // 4 // size, dtype=torch.int32)
        dist.reduce_scatter_tensor(out, whole(rank, salt))
        assert torch.equal(out, total(salt).chunk(size)[rank])
    else:
        out = whole(rank, salt)
        dist.all_reduce(out)
        assert torch.equal(out, total(salt))


def measured(ctx, op):
    programs.join(ctx)
    dist.barrier()
    ctx.notify("ready")
    ctx.wait("go")
    run(op, 1)
    ctx.notify("done")
    ctx.wait("end")
    return torch_mcast.stats()


@pytest.mark.parametrize("op", ["all_gather", "broadcast", "reduce_scatter", "all_reduce"])
def test_bytes_per_host_are_those_of_one_rank(hosts, op, record_property):
    sent = {}
    for per_host in (1, 2):
        crossed, stats = moved(hosts(4, per_host), measured, op)
        resent = again_by_host(crossed, [row["counters"] for row in stats], per_host)
        sent[per_host] = [crossed.sent(f"h{h}") - bytes for h, bytes in enumerate(resent, 1)]
        record_property(f"sent, {per_host} per host", sent[per_host])
        assert {s["contributions"] for s in stats} == {
            "one per rank" if per_host == 1 else "one per host (4)"
        }
    parts = {
        "all_gather": BYTES / 4,
        "broadcast": BYTES,  # sent by the root's host
        "reduce_scatter": BYTES * 3 / 4,
        "all_reduce": BYTES * 3 / 4 + BYTES / 4,
    }
    for per_host in (1, 2):
        assert max(sent[per_host]) <= FRAMING * parts[op] + 100_000


def in_groups(ctx):
    """Runs in subgroups of two hosts with two ranks each: hosts with two and with one, one of each,
    one host."""
    programs.join(ctx)
    found = {}
    for ranks in ([0, 1, 2], [1, 2, 3], [0, 3], [2, 3], [0, 1, 2, 3]):
        group = dist.new_group(ranks)
        if ctx.rank not in ranks:
            continue
        place, size = ranks.index(ctx.rank), len(ranks)
        inputs = [whole(rank, 5, torch.float64) for rank in ranks]
        mean = sum(inputs) / size
        for salt in range(3):
            tensor = inputs[place].clone()
            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
            close(tensor, mean, f"{ranks} {salt}", rtol=1e-7)
        blocks = [t[: len(t) // size * size].chunk(size)[place] for t in inputs]
        parts = list(inputs[place][: len(mean) // size * size].chunk(size))
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, dist.ReduceOp.MAX, group=group)
        assert torch.equal(mine, torch.stack(blocks).amax(0))
        halves = torch.stack([t.to(torch.bfloat16) for t in inputs])
        tensor = halves[place].clone()
        dist.all_reduce(tensor, group=group)
        close(tensor.float(), halves.float().sum(0), ranks, rtol=2**-7, atol=2.0)
        stats = torch_mcast.stats(group)
        assert not stats["failure"]
        found[tuple(ranks)] = stats["contributions"] or stats["path"]
    return found


def test_subgroups_over_any_ranks(hosts):
    found = {}
    for groups in hosts(2, 2).run(in_groups):
        for ranks, how in groups.items():
            assert found.setdefault(ranks, how) == how
    assert found == {
        (0, 1, 2): "one per host (2)",
        (1, 2, 3): "one per host (2)",
        (0, 3): "one per rank",
        (2, 3): "shared memory",
        (0, 1, 2, 3): "one per host (2)",
    }


@pytest.mark.parametrize("setting", ["slots", "off"])
def test_without_reading_each_other_every_rank_contributes(hosts, setting):
    cluster = hosts(2, 2)
    crossed = cluster.lab.counters()
    stats = cluster.run(once, setting)
    crossed = cluster.lab.counters() - crossed
    assert {s["contributions"] for s in stats} == {"one per rank"}
    # Two ranks of each host send to two owners of the other.
    assert crossed.sent("h1") >= 2 * 2 * BYTES // 4


def once(ctx, setting):
    programs.join(ctx, shared_memory=setting)
    run("reduce_scatter", 1)
    return torch_mcast.stats()


def until_it_fails(ctx, limits):
    programs.join(ctx, **limits)
    rank = dist.get_rank()
    try:
        for turn in itertools.count():
            if turn == 3:
                ctx.notify("running")
            out = torch.empty(BYTES // 4 // dist.get_world_size(), dtype=torch.int32)
            dist.reduce_scatter_tensor(out, whole(rank, 2))
            assert torch.equal(out, total(2).chunk(dist.get_world_size())[rank])
    except dist.DistBackendError as error:
        ctx.notify("raised", (time.monotonic(), str(error)))
        raise


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_neighbour_that_is_lost_is_named(hosts, fault):
    cluster = hosts(2, 2)
    call = cluster.start(until_it_fails, LIMIT)
    call.wait("running")
    getattr(cluster.pool, fault)(1)
    raised_by(call, others(cluster, 1), 1)
    if fault == "stop":
        cluster.pool.resume(1)
    outcomes = call.outcomes(60)
    assert all(outcomes[rank].state == "error" for rank in others(cluster, 1))
    assert (outcomes[1].state == "error") == (fault == "stop")
