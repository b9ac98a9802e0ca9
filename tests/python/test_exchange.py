"""all_to_all, all_to_all_single, gather and scatter: compares the bytes with the known contents of
each rank, and with Gloo."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from contents import DTYPES, GLOO_DTYPES, assert_same, content
from limits import limit
from named_errors import by_rank, check_error

import torch_mcast

SIZES = [0, 1, 3, 1021, 70_001]


def block(source: int, target: int, size: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Returns the block that one rank has for another."""
    return content(source * 16 + target, size, dtype, salt)


def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size * dtype.itemsize, dtype=torch.uint8).view(dtype)


def joined(parts: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)


def finish(work: dist.Work | None, asynchronous: bool) -> None:
    if asynchronous:
        assert work is not None and work.wait() is True
        assert work.is_completed() and work.is_success()
    else:
        assert work is None


def expect_calls(name: str, calls: int) -> None:
    assert torch_mcast.stats()["calls"][name] == {"engine": calls, "fallback": 0}


def flat(dtypes: list[torch.dtype], sizes: list[int]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    salt = 0
    for dtype, size, asynchronous in itertools.product(dtypes, sizes, (False, True)):
        salt += 1
        mine = joined([block(rank, r, size, dtype, salt) for r in range(world)], dtype)
        kept, output = mine.clone(), zeros(size * world, dtype)
        finish(dist.all_to_all_single(output, mine, async_op=asynchronous), asynchronous)
        want = joined([block(r, rank, size, dtype, salt) for r in range(world)], dtype)
        assert_same(output, want, (dtype, size))
        assert_same(mine, kept, "the input is not changed")
        if dtype in GLOO_DTYPES and size > 0 and not asynchronous:
            reference = torch.zeros_like(output)
            dist.all_to_all_single(reference, mine, group=gloo)
            assert_same(output, reference, (dtype, size))
    expect_calls("all_to_all_single", salt)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_all_to_all_single(ranks, world):
    ranks(world, flat, DTYPES if world == 2 else DTYPES[:1], SIZES)


def test_all_to_all_single_large(ranks):
    ranks(2, flat, [torch.float32, torch.uint8], [(1 << 20) + 13])


def splits_of(rank: int, world: int, salt: int) -> list[list[int]]:
    """Returns the rows that each rank has for each other."""
    generator = torch.Generator().manual_seed(salt)
    counts = torch.randint(0, 40, (world, world), generator=generator)
    counts[torch.rand(world, world, generator=generator) < 0.3] = 0
    return counts.tolist()


def uneven_flat() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for salt, shape in itertools.product(range(1, 9), ((), (3,), (7, 1001))):
        counts = splits_of(rank, world, salt)
        ours, theirs = counts[rank], [counts[r][rank] for r in range(world)]
        mine = torch.rand(sum(ours), *shape) + rank
        output, reference = (torch.zeros(sum(theirs), *shape) for _ in range(2))
        dist.all_to_all_single(output, mine, theirs, ours)
        dist.all_to_all_single(reference, mine, theirs, ours, group=gloo)
        assert_same(output, reference, (salt, shape))
    # One rank passes the splits, the others leave them out.
    splits = [2] * world if rank == 0 else None
    output = torch.zeros(2 * world)
    dist.all_to_all_single(output, torch.full((2 * world,), float(rank)), splits, splits)
    assert output.tolist() == [float(r) for r in range(world) for _ in range(2)]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_all_to_all_single_of_different_sizes(ranks, world):
    ranks(world, uneven_flat)


def lists(dtypes: list[torch.dtype]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    calls = 0
    for salt, dtype in enumerate(dtypes * 2, 1):
        for layout in ("even", "uneven", "strided", "chunks", "same"):
            calls += 1
            counts = splits_of(rank, world, salt)
            if layout not in ("uneven",):
                counts = [[salt * 10] * world] * world
            ins = [block(rank, r, counts[rank][r], dtype, salt) for r in range(world)]
            sizes = [counts[r][rank] for r in range(world)]
            if layout == "strided":
                raw = zeros(2 * sum(sizes), dtype)
                outs = [raw[2 * r * sizes[0] : 2 * (r + 1) * sizes[0] : 2] for r in range(world)]
            elif layout == "chunks":
                outs = list(zeros(sum(sizes), dtype).chunk(world))
            elif layout == "same":  # if several outputs share memory, the last one stays
                outs = [zeros(sizes[0], dtype)] * world
            else:
                outs = [zeros(size, dtype) for size in sizes]
            dist.all_to_all(outs, ins)
            for r, out in enumerate(outs):
                source = world - 1 if layout == "same" else r
                want = block(source, rank, sizes[r], dtype, salt)
                assert_same(out, want, (dtype, layout, r))
    expect_calls("all_to_all", calls)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_to_all(ranks, world):
    ranks(world, lists, [torch.float32, torch.bool, torch.bfloat16, torch.int64])


def shared_memory_of_tensors() -> None:
    """Inputs that overlap outputs are sent with their original contents."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(world * 50_000, dtype=torch.float32) + 1000 * rank
    sent = whole.clone()
    dist.all_to_all_single(whole, whole)
    assert_same(
        whole, torch.cat([(sent - 1000 * rank + 1000 * r).chunk(world)[rank] for r in range(world)])
    )
    moved = torch.arange(world * 50_000 + 7, dtype=torch.float32) + 1000 * rank
    dist.all_to_all_single(moved[7:], moved[:-7].clone())
    whole = torch.arange(world * 50_000 + 7, dtype=torch.float32) + 1000 * rank
    dist.all_to_all_single(whole[7:], whole[:-7])
    assert_same(whole, moved, "the output overlaps the input")
    parts = list((torch.zeros(world * 30_000) + rank).chunk(world))
    dist.all_to_all(parts, parts)
    assert [part[0].item() for part in parts] == list(range(world))
    rows = list((torch.zeros(world * 30_000) + rank).chunk(world))
    dist.gather(rows[world - 1], rows if rank == 0 else None, dst=0)
    if rank == 0:
        assert [row[0].item() for row in rows] == list(range(world))
    rows = [torch.full((30_000,), float(r)) for r in range(world)]
    dist.scatter(rows[world - 1], rows if rank == 0 else None, src=0)
    assert rows[world - 1][0].item() == float(rank)
    transposed = torch.arange(world * world * 6.0).view(2 * world, 3 * world).t() + rank
    output = torch.zeros(world * 3, world * 2)
    dist.all_to_all_single(output, transposed)
    for r in range(world):
        want = (transposed - rank + r)[3 * rank : 3 * rank + 3]
        assert_same(output[3 * r : 3 * r + 3], want, "rows of what is not contiguous")


@pytest.mark.parametrize("world", [2, 3])
def test_tensors_that_share_memory(ranks, world):
    ranks(world, shared_memory_of_tensors)


def rooted(dtypes: list[torch.dtype], sizes: list[int]) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    calls = 0
    for dtype, size, root in itertools.product(dtypes, sizes, range(world)):
        calls += 1
        mine = block(rank, root, size, dtype, calls)
        rows = [zeros(size, dtype) for _ in range(world)] if rank == root else None
        finish(dist.gather(mine, rows, dst=root, async_op=calls % 2 == 1), calls % 2 == 1)
        for r, row in enumerate(rows or []):
            assert_same(row, block(r, root, size, dtype, calls), (dtype, size, root, r))
        pieces = [block(root, r, size, dtype, calls) for r in range(world)]
        output = zeros(size, dtype)
        given = pieces if rank == root else None
        finish(dist.scatter(output, given, src=root, async_op=calls % 2 == 1), calls % 2 == 1)
        assert_same(output, pieces[rank], (dtype, size, root, "scatter"))
        if dtype in GLOO_DTYPES and size > 0:
            reference = zeros(size, dtype)
            dist.scatter(reference, given, src=root, group=gloo)
            assert_same(output, reference, (dtype, size, root, "scatter"))
            others = [zeros(size, dtype) for _ in range(world)] if rank == root else None
            dist.gather(mine, others, dst=root, group=gloo)
            for row, other in zip(rows or [], others or [], strict=True):
                assert_same(row, other, (dtype, size, root))
    expect_calls("gather", calls)
    expect_calls("scatter", calls)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gather_and_scatter(ranks, world):
    ranks(world, rooted, DTYPES if world == 2 else DTYPES[:1], SIZES)


def many_at_once() -> None:
    """Posts exchanges of all kinds among reductions; each waits for itself."""
    rank, world = dist.get_rank(), dist.get_world_size()
    works, checks = [], []
    for i in range(40):
        size = [1, 700, 50_000][i % 3]
        output, whole = torch.zeros(size * world), torch.full((size * world,), float(rank + i))
        works.append(dist.all_to_all_single(output, whole, async_op=True))
        checks.append((output, [float(r + i) for r in range(world)]))
        total = torch.full((size,), float(rank))
        works.append(dist.all_reduce(total, async_op=True))
        checks.append((total, [float(sum(range(world)))]))
        rows = [torch.zeros(size) for _ in range(world)] if rank == i % world else None
        works.append(
            dist.gather(torch.full((size,), float(rank)), rows, dst=i % world, async_op=True)
        )
        checks += [(row, [float(r)]) for r, row in enumerate(rows or [])]
    dist.barrier()
    for work in reversed(works):
        work.wait()
    for tensor, values in checks:
        assert tensor.view(len(values), -1)[:, 0].tolist() == values
        assert tensor.view(len(values), -1)[:, -1].tolist() == values
    future = dist.all_to_all_single(
        torch.zeros(world), torch.full((world,), float(rank)), async_op=True
    ).get_future()
    (value,) = future.wait()
    assert value.tolist() == [float(r) for r in range(world)]


def test_many_at_once(ranks):
    ranks(3, many_at_once)


def objects() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    gathered = [None] * world if rank == 1 else None
    dist.gather_object({"rank": rank, "text": "x" * rank}, gathered, dst=1)
    if rank == 1:
        assert [entry["rank"] for entry in gathered] == list(range(world))
    mine: list = [None]
    dist.scatter_object_list(mine, [[r] * r for r in range(world)] if rank == 0 else None)
    assert mine == [[rank] * rank]


def test_objects(ranks):
    ranks(3, objects)


def wrong_arguments() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    good = torch.zeros(2 * world)
    calls = [
        (
            lambda: dist.all_to_all_single(good, torch.zeros(2 * world + 1)),
            "must be a multiple of 3",
        ),
        (
            lambda: dist.all_to_all_single(good, good, [1, 1, 1], None),
            "must add up to the first dim",
        ),
        (
            lambda: dist.all_to_all_single(good, good, None, [7, 0, 0]),
            "do not fit a first dimension",
        ),
        (lambda: dist.all_to_all_single(good, good, [3, 3], None), "expected 3 output split sizes"),
        (lambda: dist.all_to_all_single(torch.zeros(()), good), "at least one dimension"),
        (
            lambda: dist.all_to_all_single(torch.zeros(4 * world), good),
            "bytes for itself and expects",
        ),
        (lambda: dist.all_to_all([good] * 2, [good] * world), "expected 3 output tensors"),
        (lambda: dist.all_to_all([good] * world, [good] * 2), "expected 3 input tensors"),
        (
            lambda: dist.all_to_all([torch.zeros(1)] * world, [good] * world),
            r"output \d has 1 elements",
        ),
    ]
    if rank == 0:
        calls.append((lambda: dist.gather(good, [good] * 2), "expected 3 output tensors"))
        calls.append((lambda: dist.gather(good, [good, good, torch.zeros(1)]), "must have shape"))
        calls.append((lambda: dist.scatter(good, [good] * 2), "expected 3 input tensors"))
    for call, text in calls:
        with pytest.raises(ValueError, match=text):
            call()
    assert (
        not {"all_to_all", "all_to_all_single", "gather", "scatter"}
        & torch_mcast.stats()["calls"].keys()
    )


@pytest.mark.network
def test_wrong_arguments(ranks):
    ranks(3, wrong_arguments)


def ranks_differ(kind: str) -> str:
    group = dist.new_group(timeout=timedelta(seconds=20))
    rank, world = dist.get_rank(), dist.get_world_size()
    with pytest.raises(dist.DistBackendError) as error:
        if kind == "lengths":
            ours = [5, 5, 6 if rank == 1 else 5]
            mine, output = torch.zeros(sum(ours)), torch.zeros(15)
            output = torch.zeros(16 if rank == 1 else 15)
            theirs = [5, 5, 6] if rank == 1 else [5, 5, 5]
            dist.all_to_all_single(output, mine, theirs, ours, group=group)
            dist.barrier(group)
        elif rank == 0:
            dist.gather(torch.zeros(4), [torch.zeros(4)] * world, dst=0, group=group)
            dist.barrier(group)
        else:
            dist.gather(torch.zeros(4 if rank == 1 else 5), dst=0, group=group)
            dist.barrier(group)
    return str(error.value)


def test_ranks_that_differ_in_lengths(ranks):
    for text in ranks(3, ranks_differ, "lengths"):
        fields = check_error(text, "lengths_differ", sequence=0, operation="all_to_all_single")
        found = tuple(fields[name] for name in ("rank", "sent", "other", "expected"))
        assert found in ((1, 24, 2, 20), (2, 20, 1, 24)), text


def test_ranks_that_differ_in_calls(ranks):
    for text in ranks(3, ranks_differ, "calls"):
        calls = by_rank(check_error(text, "operation_differs", sequence=0), "call")
        assert calls.pop(2).startswith("gather(20 bytes"), text
        (call,) = calls.values()
        assert call.startswith("gather(16 bytes"), text


def late_rank() -> str:
    group = limit(2, dist.new_group())
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["seen"])
        return ""
    whole = torch.zeros(100_000 * world)
    with pytest.raises(dist.DistBackendError) as error:
        dist.all_to_all_single(torch.zeros_like(whole), whole, group=group)
    if rank == 0:
        store.set("seen", "1")
    return str(error.value)


def test_a_late_rank_is_named(ranks):
    texts = ranks(3, late_rank)
    for text in (texts[0], texts[2]):
        assert "mcast all_to_all_single #1 on rank" in text, text
        check_error(text, "ranks_late", ranks=1)


def counted() -> None:
    """Checks the counters and the trace of one all-to-all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    before = torch_mcast.stats()["counters"]
    dist.all_to_all_single(torch.zeros(1000 * world), torch.ones(1000 * world))
    dist.barrier()
    after = torch_mcast.stats()["counters"]
    for name in ("exchange_bytes_sent", "exchange_bytes_received"):
        assert after[name] - before[name] == 4000 * (world - 1), name
    (row,) = [e for e in torch_mcast.trace() if e["name"] == "all_to_all_single"][-1:]
    assert row["rank"] == rank and row["bytes"] == 4000 * (world - 1)


@pytest.mark.network
def test_counters_and_trace(ranks):
    ranks(3, counted)
