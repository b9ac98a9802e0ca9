"""Functions that ranks run in test_multihost_reduce.py. Their floats have rounded sums, so that a
summation order other than that of the ranks changes the bits."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable

import programs
import torch
import torch.distributed as dist
from contents import compare

import torch_mcast


def values(count: int, rank: int, salt: int) -> torch.Tensor:
    return programs.pattern(4 * count, rank, salt).view(torch.int32).float()


# Of inputs of all ranks: an all_reduce of up to that many bytes takes one step, in which each rank contributes.
ONE_STEP = 64 << 10


def folded(
    count: int, salt: int, part: slice = slice(None), one_step: bool = False
) -> torch.Tensor:
    """Returns the sum in rank order: of the ranks of each host first, if a host contributes once."""
    world, together = dist.get_world_size(), 1
    if not one_step and torch_mcast.stats()["contributions"].startswith("one per host"):
        together = int(os.environ["LOCAL_WORLD_SIZE"])

    def sum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        first, *others = tensors
        return sum(others, first.clone())

    return sum_of(
        sum_of(values(count, host + rank, salt)[part] for rank in range(together))
        for host in range(0, world, together)
    )


def same(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    compare(got.view(torch.uint8), expected.view(torch.uint8), what)


def block_of(count: int) -> tuple[int, slice]:
    """Returns (elements of the whole input, the rank's part of it)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    block = -(-count // world)
    return block * world, slice(rank * block, (rank + 1) * block)


def reduce_scatter(count: int, salt: int, group=None) -> None:
    whole, part = block_of(count)
    output = torch.full((part.stop - part.start,), float("nan"))
    dist.reduce_scatter_tensor(output, values(whole, dist.get_rank(), salt), group=group)
    same(output, folded(whole, salt, part), f"reduce_scatter of {whole}")


def all_reduce(count: int, salt: int) -> None:
    tensor = values(count, dist.get_rank(), salt)
    dist.all_reduce(tensor)
    one_step = 4 * count * dist.get_world_size() <= ONE_STEP
    same(tensor, folded(count, salt, one_step=one_step), f"all_reduce of {count}")


def reduce(count: int, root: int, salt: int) -> None:
    mine = values(count, dist.get_rank(), salt)
    tensor = mine.clone()
    dist.reduce(tensor, root)
    rooted = dist.get_rank() == root
    same(tensor, folded(count, salt) if rooted else mine, f"reduce of {count} to {root}")


def every_reduction(ctx, sizes) -> dict:
    programs.join(ctx)
    for i, count in enumerate(sizes):
        reduce_scatter(count, 3 * i)
        all_reduce(count, 3 * i + 1)
        reduce(count, i % ctx.world_size, 3 * i + 2)
    dist.barrier()
    return torch_mcast.stats()


def measured(ctx, op, size, rounds) -> dict[str, int]:
    """Runs rounds between two signals, so that creating the group is not counted. Returns the
    rank's counts."""
    programs.join(ctx, algorithm="multicast")
    dist.barrier()
    ctx.notify("ready")
    ctx.wait("go")
    for salt in range(rounds):
        (reduce_scatter if op == "reduce_scatter" else all_reduce)(size // 4, salt)
    dist.barrier()
    ctx.notify("done")
    ctx.wait("end")
    return torch_mcast.stats()["counters"]


def both_at_once(ctx, size, rounds) -> dict:
    """Runs both with `size` bytes of output and of input."""
    programs.join(ctx)
    rank, world = dist.get_rank(), dist.get_world_size()
    whole, part = block_of(size // 4)
    for salt in range(rounds):
        shard, gathered = programs.pattern(size // world, rank, salt), torch.zeros(size).byte()
        own, total = torch.zeros(part.stop - part.start), values(whole, rank, salt + 1)
        works = [
            dist.all_gather_into_tensor(gathered, shard, async_op=True),
            dist.reduce_scatter_tensor(own, values(whole, rank, salt), async_op=True),
            dist.all_reduce(total, async_op=True),
        ]
        for work in works:
            work.wait()
        expected = torch.cat(programs.blocks(size // world, salt))
        compare(gathered, expected, "all_gather")
        same(own, folded(whole, salt, part), "reduce_scatter")
        same(total, folded(whole, salt + 1), "all_reduce")
    dist.barrier()
    return torch_mcast.stats()


def one_lane_after_the_other(ctx, size, ops) -> None:
    """Runs each of the operations at its signal; a rank sends about `size` bytes in each."""
    programs.join(ctx, algorithm="multicast")
    run = {
        "all_gather": lambda: programs.all_gather(size, 1),
        "reduce_scatter": lambda: reduce_scatter(size // 2, 1),
        "all_reduce": lambda: all_reduce(size // 4, 1),
    }
    programs.all_gather(1024, 0)  # connects, resolves addresses
    reduce_scatter(1 << 16, 0)
    dist.barrier()
    ctx.notify("ready")
    for op in ops:
        ctx.wait(op)
        start = time.perf_counter()
        run[op]()
        ctx.notify(op, time.perf_counter() - start)
    ctx.wait("end")


def refused_group(ctx, *interfaces) -> str:
    """Returns the error of a group whose ranks name these interfaces. (The store belongs to another
    group, so that the first rank to fail does not remove it.)"""
    ctx.init_process_group("gloo", 20.0)
    options = torch_mcast.Options(interface=interfaces[ctx.rank])
    try:
        dist.new_group(backend="mcast", pg_options=options)
    except dist.DistBackendError as error:
        return str(error)
    return ""


def beside_a_stopped_owner(ctx, stopped) -> dict:
    """`stopped` posts, grants its first segments, and is stopped before the others post."""
    programs.join(ctx)
    rank, world = dist.get_rank(), dist.get_world_size()
    rest = dist.new_group([r for r in range(world) if r != stopped], backend="mcast")
    whole, part = block_of(8 << 20)
    output, mine = torch.zeros(part.stop - part.start), values(whole, rank, 0)
    dist.barrier()
    if rank == stopped:
        work = dist.reduce_scatter_tensor(output, mine, async_op=True)
        ctx.notify("posted")
    else:
        ctx.wait("go")
        work = dist.reduce_scatter_tensor(output, mine, async_op=True)
        for salt in range(10):
            programs.broadcast(1 << 20, (stopped + 1) % world, salt, rest)
        assert not work.is_completed()
        ctx.notify("broadcasts done")
    work.wait()
    same(output, folded(whole, 0, part), "reduce_scatter around a stop")
    dist.barrier()
    return torch_mcast.stats()


def shares_at_the_end_of_a_gather(ctx, policy, gather, scatter) -> tuple[float, bool]:
    """Returns (the reduction's share of the bytes received until the all-gather ended, whether the
    reduction was complete by then). `gather`: bytes of output, `scatter`: of input."""
    programs.join(ctx, algorithm="multicast", lane_policy=policy)
    rank, world = dist.get_rank(), dist.get_world_size()

    def received() -> int:
        return torch_mcast.stats()["reduce_counters"]["reduce_bytes_received"]

    whole, part = block_of(scatter // 4)
    mine, own = values(whole, rank, 0), torch.zeros(part.stop - part.start)
    shard = programs.pattern(gather // world, rank, 1)
    gathered = torch.zeros(gather, dtype=torch.uint8)
    reduce_scatter(1 << 20, 2)  # connections and buffers
    programs.all_gather(1 << 20, 3)
    dist.barrier()
    before = received()
    gathering = dist.all_gather_into_tensor(gathered, shard, async_op=True)
    reducing = dist.reduce_scatter_tensor(own, mine, async_op=True)
    gathering.wait()
    reduced, over = received() - before, reducing.is_completed()
    reducing.wait()
    compare(gathered, torch.cat(programs.blocks(gather // world, 1)), "all_gather")
    same(own, folded(whole, 0, part), "reduce_scatter")
    multicast = gather * (world - 1) // world
    return reduced / (reduced + multicast), over


def until_it_fails(ctx, size, options) -> None:
    """Keeps two reductions in flight."""
    programs.join(ctx, **options)
    whole, part = block_of(size // 4)
    mine = values(whole, dist.get_rank(), 0)
    outputs = [torch.zeros(part.stop - part.start) for _ in range(2)]
    works = [dist.reduce_scatter_tensor(output, mine, async_op=True) for output in outputs]
    ctx.notify("running")
    try:
        while True:
            works.pop(0).wait()
            outputs.append(outputs.pop(0))
            works.append(dist.reduce_scatter_tensor(outputs[-1], mine, async_op=True))
    except dist.DistBackendError as error:
        ctx.notify("raised", (time.monotonic(), str(error)))
        raise


def fsdp2(ctx, backend) -> tuple[list[float], list[dict]]:
    """Returns losses of a few steps, and the trace of the last backward pass."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if backend == "mcast":
        programs.join(ctx)
    else:
        ctx.init_process_group(backend)
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768))
    mesh = init_device_mesh("cpu", (ctx.world_size,))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
        # On a GPU, FSDP uses a separate stream for this.
        layer._set_unshard_async_op(True)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(100 + ctx.rank)
    inputs, targets = torch.randn(8, 768), torch.randn(8, 768)
    losses, trace = [], []
    for _ in range(3):
        loss = (net(inputs) - targets).square().mean()
        losses.append(loss.item())
        since = time.monotonic_ns()
        loss.backward()
        trace = [op for op in torch_mcast.trace() if op["posted"] >= since]
        optimizer.step()
        optimizer.zero_grad()
    return losses, trace


def overlaps(trace: list[dict]) -> int:
    """Counts pairs of an all-gather and a reduce-scatter of one group whose data moved at the same time."""
    moved = [op for op in trace if op["ok"] and op["first_byte"] is not None]
    return sum(
        gather["group"] == scatter["group"]
        and gather["first_byte"] < scatter["last_byte"]
        and scatter["first_byte"] < gather["last_byte"]
        for gather in moved
        if gather["name"] == "all_gather_into_tensor"
        for scatter in moved
        if scatter["name"] == "reduce_scatter_tensor"
    )


def posted(ctx, draw: random.Random, salt: int, group) -> tuple:
    """Posts one operation drawn from the seed that all ranks share. Returns (work, check), of which
    the check keeps the tensors."""
    kind = draw.choice(["all_gather", "broadcast", "reduce_scatter", "all_reduce", "reduce"])
    count = int(2 ** draw.uniform(0, 19)) - 1  # of float32, up to 2 MiB
    root = draw.randrange(ctx.world_size)
    if kind == "all_gather":
        got = torch.zeros(count * ctx.world_size)
        work = dist.all_gather_into_tensor(got, values(count, ctx.rank, salt), group, True)
        return work, lambda: same(
            got, torch.cat([values(count, r, salt) for r in range(ctx.world_size)]), kind
        )
    if kind == "broadcast":
        got = values(count, ctx.rank, salt)
        work = dist.broadcast(got, root, group, True)
        return work, lambda: same(got, values(count, root, salt), kind)
    if kind == "reduce_scatter":
        whole, part = block_of(count)
        got = torch.zeros(part.stop - part.start)
        mine = values(whole, ctx.rank, salt)
        work = dist.reduce_scatter_tensor(got, mine, group=group, async_op=True)
        return work, lambda: same(got, folded(whole, salt, part), kind)
    got = values(count, ctx.rank, salt)
    if kind == "all_reduce":
        work = dist.all_reduce(got, group=group, async_op=True)
    else:
        work = dist.reduce(got, root, group=group, async_op=True)
    rooted = kind == "all_reduce" or root == ctx.rank
    return work, lambda: same(
        got, folded(count, salt) if rooted else values(count, ctx.rank, salt), f"{kind}, {count}"
    )


def drawn(ctx, seed, rounds, number) -> dict:
    """Runs rounds of operations on several groups of all ranks. Each group's operations have one
    order on all ranks; the groups are interleaved in another order on each rank; all works are
    waited for in any order."""
    programs.join(ctx)
    own = random.Random(f"{seed} {ctx.rank}")
    groups = [dist.new_group(backend="mcast") for _ in range(number)]
    draws = [random.Random(f"{seed} group {i}") for i in range(number)]
    for i in range(rounds):
        order = [j for j in range(number) for _ in range(5)]
        own.shuffle(order)
        flying = [posted(ctx, draws[j], 7 * i + j, groups[j]) for j in order]
        own.shuffle(flying)
        for work, check in flying:
            work.wait()
            check()
    dist.barrier()
    stats = [torch_mcast.stats(group) for group in groups]
    for group in groups:
        dist.destroy_process_group(group)
    return stats


def until_the_ring(ctx, size) -> dict:
    """Runs all-reduces until the driver sends stop; notifies "ring" when the reduce lane has changed."""
    programs.join(ctx)
    told, seen, done = torch.zeros(1), False, 0
    while not told.item():
        all_reduce(size // 4, done)
        done += 1
        if done == 2:
            ctx.notify("running")
        if not seen and torch_mcast.stats()["reduce_counters"]["path_switches"]:
            seen = True
            ctx.notify("ring")
        told.fill_(float(ctx.rank == 0 and ctx.told("stop")))
        dist.all_reduce(told)
    return torch_mcast.stats()


def differing(ctx, how, timeout_s) -> None:
    """Rank 2 calls a different operation, or none."""
    programs.join(ctx, timeout_s)
    ctx.notify("joined")  # a rank that still creates a group that has failed gets another text
    ctx.wait("all joined")
    ops, count = dist.ReduceOp, 1 << 20
    output, mine = torch.zeros(count // 4), torch.zeros(count)
    odd = ctx.rank == 2
    try:
        if not odd or how in ("operator", "dtype"):
            if odd and how == "dtype":
                output, mine = output.int(), mine.int()
            op = ops.MAX if odd and how == "operator" else ops.SUM
            dist.reduce_scatter_tensor(output, mine, op)
        elif how == "kind":
            dist.all_reduce(output)
        else:
            ctx.wait("go")  # alive, but makes no call
            dist.barrier()
    except dist.DistBackendError as error:
        ctx.notify("raised", str(error))
