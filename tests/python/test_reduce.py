"""Reductions on the engine: the bits equal those of folding in order, in whatever way they are called."""

from __future__ import annotations

import itertools
import json
import random
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_mcast

Op = dist.ReduceOp
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, *FLOAT8]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
# torch moves these types, but has no arithmetic for them.
UNSIGNED = {torch.uint64: torch.int64, torch.uint32: torch.int32, torch.uint16: torch.int16}
ORDERED = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
BITS = [Op.BAND, Op.BOR, Op.BXOR]
SIZES = [0, 1, 3, 1021, 70_001]


def factor_of(rank: int) -> float:
    return 0.25 + rank


def contribution(rank: int, size: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    if dtype.is_complex:
        return torch.randn(size, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        values = torch.randn(size, dtype=torch.float64, generator=generator) * 3
        for at, value in ((7, torch.inf), (8, -torch.inf), (9, torch.nan)):
            if size > 10 and rank == at % max(1, dist.get_world_size()):
                values[at] = value
        return values.to(dtype)
    if dtype == torch.bool:
        return torch.rand(size, generator=generator) < 0.5
    if dtype in UNSIGNED:
        return contribution(rank, size, UNSIGNED[dtype], salt).view(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, (size,), dtype=dtype, generator=generator)


def fold(parts: list[torch.Tensor], op: dist.ReduceOp.RedOpType, first: int = 0) -> torch.Tensor:
    """Folds from rank `first` around; floats of 8 and 16 bits in float32, rounded once."""
    dtype = parts[0].dtype
    if dtype in UNSIGNED:
        return fold_unsigned(parts, op)
    wide = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
    values = [part.to(wide) for part in parts]
    if op == Op.PREMUL_SUM:
        values = [value * factor_of(rank) for rank, value in enumerate(values)]
    values = values[first:] + values[:first]
    step = {
        Op.SUM: torch.add, Op.AVG: torch.add, Op.PREMUL_SUM: torch.add, Op.PRODUCT: torch.mul,
        Op.MIN: torch.minimum, Op.MAX: torch.maximum, Op.BAND: torch.bitwise_and,
        Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor,
    }[op]  # fmt: skip
    if dtype == torch.bool:
        step = {Op.SUM: torch.logical_or, Op.PRODUCT: torch.logical_and}.get(op, step)
    total = values[0]
    for value in values[1:]:
        total = step(total, value)
    if op == Op.AVG:
        total = total / len(parts)
    return total.to(dtype)


def fold_unsigned(parts: list[torch.Tensor], op: dist.ReduceOp.RedOpType) -> torch.Tensor:
    step = {
        Op.SUM: np.add, Op.AVG: np.add, Op.PRODUCT: np.multiply, Op.MIN: np.minimum, Op.MAX: np.maximum,
        Op.BAND: np.bitwise_and, Op.BOR: np.bitwise_or, Op.BXOR: np.bitwise_xor,
    }[op]  # fmt: skip
    total = parts[0].numpy()
    for part in parts[1:]:
        total = step(total, part.numpy())
    return torch.from_numpy(total // total.dtype.type(len(parts)) if op == Op.AVG else total)


def fold_in_turn(parts: list[torch.Tensor], op: dist.ReduceOp.RedOpType) -> torch.Tensor:
    """Folds each rank's part of the tensor from the next rank around to itself."""
    world, size = len(parts), len(parts[0])
    share = -(-size // world)
    return torch.cat([
        fold([part[owner * share : (owner + 1) * share] for part in parts], op, (owner + 1) % world)
        for owner in range(world)
    ])  # fmt: skip


def same_bits(got: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert got.dtype == expected.dtype and got.shape == expected.shape, what
    if got.dtype in UNSIGNED:
        got, expected = got.view(UNSIGNED[got.dtype]), expected.view(UNSIGNED[got.dtype])
    if got.dtype in FLOAT8:
        got, expected = got.float(), expected.float()
    if got.is_complex():
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    equal = got == expected
    if got.is_floating_point():
        # Signs of zeros must be equal, those of NaNs need not.
        nan = got.isnan() & expected.isnan()
        equal = (equal & (got.signbit() == expected.signbit())) | nan
    assert bool(equal.all()), (what, (~equal).nonzero()[:5].tolist())


def reduce_op(op):
    if op == Op.PREMUL_SUM:
        return dist._make_nccl_premul_sum(factor_of(dist.get_rank()))
    return op


def all_kinds(cases, sizes) -> None:
    """reduce_scatter_tensor, reduce_scatter, all_reduce, reduce."""
    rank, world = dist.get_rank(), dist.get_world_size()
    salt = 0
    for (dtype, op), size in itertools.product(cases, sizes):
        salt += 1
        what = (dtype, op, size)
        whole = [contribution(r, size * world, dtype, salt) for r in range(world)]
        in_turn = torch_mcast.stats()["fold"] == "turn"
        expected = (fold_in_turn if in_turn else fold)(whole, op)
        own = expected[rank * size : (rank + 1) * size]

        output = torch.zeros(size, dtype=dtype)
        mine = whole[rank].clone()
        dist.reduce_scatter_tensor(output, mine, op=reduce_op(op))
        same_bits(output, own, ("reduce_scatter_tensor", *what))
        same_bits(mine, whole[rank], ("input", *what))

        work = dist.reduce_scatter(
            mine[rank * size : (rank + 1) * size], list(mine.chunk(world)) if size else
            [mine] * world, op=reduce_op(op), async_op=True,
        )  # fmt: skip
        assert work.wait() is True
        same_bits(mine[rank * size : (rank + 1) * size], own, ("in place", *what))

        total = whole[rank].clone()
        work = dist.all_reduce(total, op=reduce_op(op), async_op=True)
        assert work.wait() is True and work.is_completed()
        same_bits(total, expected, ("all_reduce", *what))

        root = salt % world
        rooted = whole[rank].clone()
        dist.reduce(rooted, dst=root, op=reduce_op(op))
        same_bits(rooted, expected if rank == root else whole[rank], ("reduce", *what))
    calls = torch_mcast.stats()["calls"]
    for name in ("reduce_scatter_tensor", "reduce_scatter", "all_reduce", "reduce"):
        assert calls[name] == {"engine": salt, "fallback": 0}, name


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_float32_sum(ranks, world):
    ranks(world, all_kinds, [(torch.float32, Op.SUM)], [*SIZES, 300_007])


@pytest.mark.parametrize("world", [2, 4])
def test_floats(ranks, world):
    ops = [*ORDERED, Op.AVG, Op.PREMUL_SUM]
    ranks(world, all_kinds, list(itertools.product(FLOATS, ops)), [1, 1021, 20_011])


def test_integers(ranks):
    cases = list(itertools.product([*INTEGERS, *UNSIGNED], [*ORDERED, *BITS]))
    cases += itertools.product(UNSIGNED, [Op.AVG])
    ranks(3, all_kinds, cases, [1, 1021, 20_011])


def test_bool(ranks):
    ranks(3, all_kinds, list(itertools.product([torch.bool], [*ORDERED[:2], *BITS])), [1, 1021])


def test_complex(ranks):
    cases = list(itertools.product([torch.complex64, torch.complex128], [Op.SUM]))
    ranks(3, all_kinds, cases, [1, 1021])


def test_folding_in_turn_gives_the_bits_of_the_model(ranks):
    ops = [*ORDERED, Op.AVG, Op.PREMUL_SUM]
    cases = [*itertools.product(FLOATS, ops), (torch.int32, Op.SUM), (torch.bool, Op.SUM)]
    ranks(4, all_kinds, cases, [0, 1, 1021, 20_011], options={"fold": "turn"})


@pytest.mark.network
@pytest.mark.parametrize("algorithm", ["ring", "multicast"])
def test_folding_in_turn_gives_the_bits_of_the_model_on_every_path(ranks, algorithm):
    cases = [(torch.float32, Op.SUM), (torch.bfloat16, Op.AVG)]
    ranks(3, all_kinds, cases, SIZES, options={"fold": "turn", "algorithm": algorithm})


def uneven_in_turn() -> None:
    """Sizes that are not multiples of the number of ranks, in one step and in two; the bits are
    equal each time."""
    world = dist.get_world_size()
    assert torch_mcast.stats()["fold"] == "turn"
    for size in (2, 1022, 4099, 300_007):
        whole = [contribution(r, size, torch.float32, size) for r in range(world)]
        expected = fold_in_turn(whole, Op.SUM)
        assert size == 2 or not torch.equal(expected.nan_to_num(), fold(whole, Op.SUM).nan_to_num())
        for _ in range(3):
            total = whole[dist.get_rank()].clone()
            dist.all_reduce(total)
            same_bits(total, expected, size)


def test_folding_uneven_sizes_in_turn_gives_the_bits_of_the_model(ranks):
    ranks(5, uneven_in_turn, options={"fold": "turn"})


def repeats() -> None:
    """The bits do not depend on timing: ranks are late at random, multicast is disturbed."""
    size, world = 50_021, dist.get_world_size()
    whole = [contribution(r, size * world, torch.bfloat16, 1) for r in range(world)]
    expected = fold(whole, Op.SUM)
    rank = dist.get_rank()
    late = random.Random(rank)
    for _ in range(20):
        output = torch.zeros(size, dtype=torch.bfloat16)
        time.sleep(late.random() * 0.01)
        dist.reduce_scatter_tensor(output, whole[rank])
        same_bits(output, expected[rank * size : (rank + 1) * size], "repeat")
        total = whole[rank].clone()
        dist.all_reduce(total)
        same_bits(total, expected, "repeat")


def test_twenty_repeats_under_delay_give_the_same_bits(ranks):
    ranks(4, repeats, options={"faults": "drop:rate=0.05;reorder:rate=0.2,hold=3"})


def coalesced() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    sizes = [1, 1021, 40_000]
    inputs = [[contribution(r, n * world, torch.float32, n) for r in range(world)] for n in sizes]
    outputs = [torch.zeros(n) for n in sizes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, parts in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, parts[rank])
    manager.wait()
    for n, output, parts in zip(sizes, outputs, inputs, strict=True):
        same_bits(output, fold(parts, Op.SUM)[rank * n : (rank + 1) * n], n)
    tensors = [parts[rank].clone() for parts in inputs]
    dist.all_reduce_coalesced(tensors)
    for tensor, parts in zip(tensors, inputs, strict=True):
        same_bits(tensor, fold(parts, Op.SUM), "all_reduce_coalesced")
    stats = torch_mcast.stats()
    calls = stats["calls"]
    assert calls["reduce_scatter_tensor_coalesced"]["engine"] == 1
    for name in ("reduce_scatter_tensor_coalesced", "all_reduce_coalesced"):
        count = 1 if name == "reduce_scatter_tensor_coalesced" else world
        assert stats["bytes"][name] == 4 * count * sum(sizes), name
    assert calls["all_reduce_coalesced"] == {"engine": 1, "fallback": 0}


def test_coalesced(ranks):
    ranks(3, coalesced)


def sharing() -> None:
    """Each tensor of the list is reduced from its contents before the call, as with Gloo."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for n in (8, 100_000):
        x = torch.arange(n, dtype=torch.float32) + rank
        total = world * torch.arange(n) + float(sum(range(world)))
        dist.all_reduce_coalesced([x, x])
        assert torch.equal(x, total)
        x = torch.arange(n, dtype=torch.float32) + rank
        dist.all_reduce_coalesced([x[: n // 2 + 2], x[n // 2 - 1 :]])
        assert torch.equal(x, total)
    x = torch.ones(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="need tensors that do not share memory"):
        dist.all_reduce_coalesced([x, x], Op.AVG)
    with pytest.raises(ValueError, match="elements that share memory"):
        dist.all_reduce(torch.ones(1).expand(5))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full((4,), world))


def test_tensors_that_share_memory(ranks):
    ranks(3, sharing)


def strided_and_scaled() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [contribution(r, 600, torch.float32, 5).view(20, 30) for r in range(world)]
    # Tensors that are not contiguous are copied on the way in and out.
    base = torch.zeros(30, 20)
    tensor = base.t()
    tensor.copy_(parts[rank])
    dist.all_reduce(tensor)
    same_bits(tensor.contiguous(), fold(parts, Op.SUM), "transposed")
    # The factor is a tensor.
    tensor = parts[rank].clone()
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(torch.tensor([0.5])))
    same_bits(tensor, fold([part * 0.5 for part in parts], Op.SUM), "a factor")
    # An output that overlaps another rank's block.
    flat = torch.cat([part.reshape(-1) for part in parts])[: 60 * world]
    wanted = [flat.clone() + r for r in range(world)]
    mine = wanted[rank].clone()
    other = (rank + 1) % world
    dist.reduce_scatter_tensor(mine[other * 60 : (other + 1) * 60], mine)
    same_bits(
        mine[other * 60 : (other + 1) * 60],
        fold(wanted, Op.SUM)[rank * 60 : (rank + 1) * 60], "overlap",
    )  # fmt: skip
    # An output that is another rank's input.
    wanted = [contribution(r, 50_000 * world, torch.float32, 6) for r in range(world)]
    rows = list(wanted[rank].clone().chunk(world))
    dist.reduce_scatter(rows[other], rows)
    same_bits(rows[other], fold(wanted, Op.SUM).chunk(world)[rank], "an input of another rank")


def test_strided_and_scaled(ranks):
    ranks(3, strided_and_scaled)


def refused() -> None:
    world = dist.get_world_size()
    for dtype, op in [
        (torch.float32, Op.BAND), (torch.bool, Op.AVG), (torch.float8_e5m2, Op.BXOR),
        (torch.complex64, Op.MAX), (torch.complex64, Op.PRODUCT), (torch.float8_e4m3fnuz, Op.SUM),
    ]:  # fmt: skip
        name = str(op).rsplit(".", 1)[-1]
        with pytest.raises((TypeError, ValueError), match=f"{name} (of|on) "):
            dist.all_reduce(torch.zeros(4).to(dtype), op=op)
    with pytest.raises(ValueError, match="expected an input of"):
        dist.reduce_scatter_tensor(torch.zeros(3), torch.zeros(3 * world + 1))
    with pytest.raises(TypeError, match="must have dtype"):
        dist.distributed_c10d._get_default_group()._get_backend(
            torch.device("cpu")
        )._reduce_scatter_base(torch.zeros(3), torch.zeros(3 * world, dtype=torch.float64))
    options = dist.AllreduceOptions()  # dist.all_reduce() refuses it before it calls the backend
    options.reduceOp = Op.PRODUCT
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(TypeError, match="PRODUCT of ComplexFloat"):
        backend.allreduce([torch.ones(2, dtype=torch.complex64)], options)
    # None of them used a sequence number: the next call is right.
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [world] * 3


def test_unsupported_calls_are_refused_without_a_sequence_number(ranks):
    ranks(2, refused)


def overlapping(path: str) -> None:
    """One lane of a group waits for rank 1 while the other moves data; the trace shows it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    size = 2 << 20
    shard, gathered = torch.full((size,), float(rank)), torch.zeros(size * world)
    grads, own = torch.ones(size * world), torch.zeros(size)
    if rank == 0:
        gather = dist.all_gather_into_tensor(gathered, shard, async_op=True)
    dist.reduce_scatter_tensor(own, grads)
    if rank == 0:
        assert not gather.is_completed()
        store.set("the gather waits", "")
        gather.wait()
    else:
        store.wait(["the gather waits"])
        dist.all_gather_into_tensor(gathered, shard)
    assert bool((own == world).all())
    ops = {op["name"]: op for op in torch_mcast.trace()}
    g, s = ops["all_gather_into_tensor"], ops["reduce_scatter_tensor"]
    assert (g["lane"], s["lane"]) == ("multicast", "reduce")
    assert g["sequence"] == s["sequence"] == 0 and g["ok"] and s["ok"]
    assert s["done"] < g["done"]
    if rank == 0:
        assert g["posted"] < s["posted"]
    for op in (g, s):
        assert op["posted"] <= op["first_byte"] <= op["last_byte"] <= op["done"]
    torch_mcast.export_chrome_trace(f"{path}/{rank}.json")
    with open(f"{path}/{rank}.json", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert "mcast:reduce_scatter_tensor" in names and "mcast:all_gather_into_tensor" in names
    counters = torch_mcast.stats()
    assert counters["reduce_counters"]["reduce_bytes_sent"] == size * 4 * (world - 1)
    assert counters["reduce_counters"]["datagrams_sent"] == 0


@pytest.mark.network  # asserts its counters; on one host the lanes share two cores
def test_the_lanes_overlap_and_the_trace_shows_it(ranks, tmp_path):
    ranks(2, overlapping, str(tmp_path))
