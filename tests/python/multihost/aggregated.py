"""Functions that ranks run in test_multihost_aggregated_*.py: reductions large enough for
aggregators, whose results every rank can fold by itself, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import programs
import torch
import torch.distributed as dist
from test_reduce import contribution, fold, fold_in_turn, reduce_op, same_bits
from waiting import GUARD_S

import torch_mcast

Op = dist.ReduceOp
# Segments are short, so that aggregators pay from 1 MiB on, for reduce_scatters too. No aggregator
# is given up because this machine delays it.
PAYS = {"incast": 64 << 10, "aggregate": "both", "aggregator_patience": 10_000}
BYTES = 5 << 18


def elements(dtype: torch.dtype) -> int:
    """Returns the elements of a vector of BYTES or a little more: an odd number, so that the last
    shard is shorter."""
    return BYTES // dtype.itemsize + 3


def block_of(dtype: torch.dtype) -> int:
    """Returns the elements of a rank's block of such a vector; all blocks are equally long."""
    return -(-elements(dtype) // dist.get_world_size())


def whole(dtype: torch.dtype, salt: int) -> list[torch.Tensor]:
    """Returns the contributions by rank, as long as all blocks together."""
    count = block_of(dtype) * dist.get_world_size()
    return [contribution(rank, count, dtype, salt) for rank in range(dist.get_world_size())]


def folded(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    in_turn = torch_mcast.stats()["fold"] == "turn"
    return (fold_in_turn if in_turn else fold)(parts, op)


def own_block(tensor: torch.Tensor) -> torch.Tensor:
    rank, block = dist.get_rank(), len(tensor) // dist.get_world_size()
    return tensor[rank * block : (rank + 1) * block]


def reduced(parts: list[torch.Tensor], op: Any, group: Any) -> dict[str, torch.Tensor]:
    """Returns the results of all ways to call a reduction."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype, mine = parts[rank].dtype, parts[rank]
    made = {"all_reduce": mine[: elements(dtype)].clone()}
    dist.all_reduce(made["all_reduce"], reduce_op(op), group)

    made["reduce_scatter_tensor"] = torch.zeros(len(mine) // world, dtype=dtype)
    given = mine.clone()
    dist.reduce_scatter_tensor(made["reduce_scatter_tensor"], given, reduce_op(op), group)
    same_bits(given, mine, ("input", dtype, op))

    made["in place"] = own_block(given)
    dist.reduce_scatter_tensor(made["in place"], given, reduce_op(op), group)

    made["list"] = torch.zeros(len(mine) // world, dtype=dtype)
    pieces = [piece.clone() for piece in mine.chunk(world)]
    dist.reduce_scatter(made["list"], pieces, reduce_op(op), group)
    return made


def coalesced(group: Any) -> dict[str, torch.Tensor]:
    """Reduces several tensors in one call, the last one too small for aggregators."""
    rank, world = dist.get_rank(), dist.get_world_size()
    block, made = block_of(torch.float32), {}
    inputs = [contribution(rank, n * world, torch.float32, n) for n in (block, block + 77, 5)]
    outputs = [torch.zeros(len(mine) // world) for mine in inputs]
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for output, mine in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, mine, group=group)
    manager.wait()
    totals = [mine.clone() for mine in inputs]
    dist.all_reduce_coalesced(totals, group=group)
    for i, (output, total) in enumerate(zip(outputs, totals, strict=True)):
        made[f"reduce_scatter {i} of a call"], made[f"all_reduce {i} of a call"] = output, total
    return made


def every_case(ctx, cases, order) -> tuple[dict, dict, int]:
    """Runs the cases on two groups of the same ranks, which must give the same bits. Returns the
    stats of the group with aggregators and of the one without, and the number of reductions on each
    that are large enough for aggregators."""
    programs.join(ctx, fold=order, **PAYS)
    alone = torch_mcast.Options(fold=order, **{**PAYS, "aggregate": "off"})
    plain = dist.new_group(backend="mcast", pg_options=alone)
    made, reference = coalesced(None), coalesced(plain)
    large = 4
    for salt, (dtype, name) in enumerate(cases):
        parts, op = whole(dtype, salt), getattr(Op, name)
        for key, tensor in reduced(parts, op, None).items():
            made[f"{key}, {dtype}, {name}"] = tensor
        for key, tensor in reduced(parts, op, plain).items():
            reference[f"{key}, {dtype}, {name}"] = tensor
        if torch_mcast.stats()["contributions"] == "one per rank":
            check_folds(parts, op, made)
        large += 4
        for key, tensor in made.items():
            same_bits(tensor, reference[key], key)
        made, reference = {}, {}
    dist.barrier()  # the first rank that leaves ends the job at the aggregators
    found = torch_mcast.stats(), torch_mcast.stats(plain), large
    dist.barrier()
    return found


def check_folds(parts: list[torch.Tensor], op: Any, made: dict[str, torch.Tensor]) -> None:
    count = elements(parts[0].dtype)
    total, own = folded([part[:count] for part in parts], op), own_block(folded(parts, op))
    for key, tensor in made.items():
        if "of a call" not in key:
            same_bits(tensor, total if key.startswith("all_reduce") else own, key)


def on_a_device(ctx, library: str, gate: bool, cases) -> tuple[dict, int]:
    """Uses tensors of the fake device, which are copied through host memory piece by piece."""
    import devices
    from device_ranks import both, finish, upload
    from test_device_reduce import compare

    devices.take("fake", library, gate)
    dist.distributed_c10d._world.group_count = 0
    options = torch_mcast.Options(segment=64 << 10, **PAYS)
    ctx.init_process_group(both(), pg_options=options)
    rank, large = dist.get_rank(), 0
    for salt, (dtype, name) in enumerate(cases):
        op, parts, late = getattr(Op, name), whole(dtype, salt), bool(salt % 2)
        expected = fold(parts, op)
        own = own_block(expected)
        mine, output = upload(parts[rank]), torch.zeros_like(own).to("fake")
        finish(dist.reduce_scatter_tensor(output, mine, reduce_op(op), async_op=late), late)
        compare(output, own, ("reduce_scatter_tensor", dtype, name))
        finish(
            dist.reduce_scatter_tensor(own_block(mine), mine, reduce_op(op), async_op=late), late
        )
        compare(own_block(mine), own, ("in place", dtype, name))
        total = upload(parts[rank])
        finish(dist.all_reduce(total, reduce_op(op), async_op=late), late)
        compare(total, expected, ("all_reduce", dtype, name))
        large += 3
    dist.barrier()
    stats = torch_mcast.stats()
    dist.barrier()
    return stats, large


class Known:
    """Contributions and results of a few reductions, computed once: repeated checks must not cost
    more than the transfer."""

    CASES = ((torch.float32, Op.SUM), (torch.bfloat16, Op.AVG), (torch.int32, Op.SUM))

    def __init__(self) -> None:
        rank = dist.get_rank()
        self.rows = []
        for salt, (dtype, op) in enumerate(self.CASES):
            parts = whole(dtype, salt)
            self.rows.append((op, parts[rank], folded(parts, op)))

    def post_all_reduce(self, which: int):
        """Returns (work, check of its result)."""
        op, mine, expected = self.rows[which % len(self.rows)]
        total = mine.clone()
        work = dist.all_reduce(total, op, async_op=True)
        return work, lambda: same_bits(total, expected, ("all_reduce", mine.dtype))

    def post_reduce_scatter(self, which: int, in_place: bool):
        op, mine, expected = self.rows[which % len(self.rows)]
        given = mine.clone()
        output = own_block(given) if in_place else torch.zeros_like(own_block(given))
        work = dist.reduce_scatter_tensor(output, given, op, async_op=True)
        own = own_block(expected)
        return work, lambda: same_bits(output, own, ("reduce_scatter", mine.dtype))

    def check_all_reduce(self, which: int) -> None:
        work, check = self.post_all_reduce(which)
        work.wait()
        check()


def join(ctx, number: int = 0, timeout_s: float = GUARD_S, **options) -> None:
    """Joins as programs.join does; `number` is the group's name, in which two jobs may differ."""
    dist.distributed_c10d._world.group_count = number
    options = torch_mcast.Options(**{**PAYS, **options})
    ctx.init_process_group("mcast", timeout_s, pg_options=options)


def rounds_once_served(
    ctx,
    check: Callable[[int], None],
    count: int,
    options: dict | None = None,
    limit_s: float = GUARD_S,
) -> dict:
    """Calls check(0), check(1), ...: one round each, on the driver's "go". Before them it runs a
    round of which aggregators have folded a part for every rank, since they serve a job only after
    they have replied. Then it notifies "served"."""
    programs.join(ctx, **(options or {}))
    until, folded = time.monotonic() + limit_s, torch.zeros(1)
    while not folded.item():
        before = torch_mcast.stats()["counters"]["agg_results"]
        check(0)
        folded.fill_(float(torch_mcast.stats()["counters"]["agg_results"] > before))
        dist.all_reduce(folded, Op.MIN)
        assert time.monotonic() < until, torch_mcast.stats()["aggregators"]
    ctx.notify("served")
    ctx.wait("go")
    for salt in range(count):
        check(salt)
    return last_stats()


def rounds_until_a_loss(ctx, check: Callable[[int], None], most: int) -> dict:
    """Calls check(0), check(1), ...: one round each, until two more have followed the one in which
    the last rank has lost an aggregator. Notifies "aggregated" once aggregators have folded."""
    programs.join(ctx)
    more, told = 3, False
    for salt in range(most):
        check(salt)
        counters = torch_mcast.stats()["counters"]
        if counters["agg_operations"] > 0 and not told:
            ctx.notify("aggregated")
            told = True
        lost = torch.tensor([counters["agg_lost"]])
        dist.all_reduce(lost, Op.MIN)
        more -= int(lost.item() > 0)
        if more == 0:
            break
    return last_stats()


def last_stats() -> dict:
    stats = torch_mcast.stats()
    dist.barrier()  # the first rank that leaves ends the job at the aggregators
    return stats


def until_told(ctx, number: int = 0, served: int = 0, options: dict | None = None) -> dict:
    """Runs all-reduces, every one exact, until the driver signals "stop" to rank 0; then those of
    prove_service(), if `served` aggregators are expected. Notifies "running" after two,
    "aggregators" with rank 0's rows of stats whenever their states change, and "raised" with the
    time and the text when an operation raises: the group then stays until "end"."""
    join(ctx, number, **(options or {}))
    known, told, done, states = Known(), torch.zeros(1), 0, []
    try:
        while not told.item():
            known.check_all_reduce(done)
            done += 1
            if done == 2:
                ctx.notify("running")
            if ctx.rank == 0:
                rows = torch_mcast.stats()["aggregators"]
                if (now := [(row["state"], row["reason"]) for row in rows]) != states:
                    states = now
                    ctx.notify("aggregators", rows)
                told.fill_(float(ctx.told("stop")))
            dist.broadcast(told, 0)
    except dist.DistBackendError as error:
        ctx.notify("raised", (time.monotonic(), str(error)))  # the whole machine has one clock
        ctx.wait("end")
        raise
    if served:
        prove_service(served)
    return {**last_stats(), "rounds": done}


def until_served(ctx, served: int) -> dict:
    join(ctx)
    return prove_service(served)


def prove_service(served: int, limit_s: float = GUARD_S) -> dict:
    """Runs reductions until `served` aggregators have been admitted for a while, and three
    reductions in a row had parts that aggregators folded for every rank."""
    known, until = Known(), time.monotonic() + limit_s
    admitted_for, folded_for = torch.zeros(1), 0
    while admitted_for.item() < 5 or folded_for < 3:
        before = torch_mcast.stats()["counters"]
        known.check_all_reduce(folded_for)
        stats = torch_mcast.stats()
        now = stats["counters"]
        folded = torch.tensor([float(now["agg_results"] > before["agg_results"])])
        dist.all_reduce(folded, Op.MIN)
        folded_for = folded_for + 1 if folded.item() and admitted_for.item() >= 5 else 0
        if dist.get_rank() == 0:
            states = [row["state"] for row in stats["aggregators"]]
            admitted_for += 1 if states.count("admitted") == served else -admitted_for
            assert time.monotonic() < until, (stats["aggregators"], now)
            time.sleep(0.05)
        dist.broadcast(admitted_for, 0)
    return last_stats()
