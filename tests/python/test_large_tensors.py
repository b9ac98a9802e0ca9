"""Tensors over 2 GiB and 4 GiB: no offset, length or count is cut to 31 or 32 bits.

The tests compare the bytes around every border that a truncated number would miss, and a sample in
between. Two ranks take up to 13 GiB, so the tests run alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_mcast

pytestmark = [pytest.mark.all_tier, pytest.mark.alone]
MiB, GiB = 1 << 20, 1 << 30
EDGE = 64 << 10  # bytes compared on both sides of a border
TAIL = 40  # so that sizes are not multiples of a chunk, a slot or a page
STEP = 61 * MiB + 8 * 123  # of the sample
WORD = 8


def places(size: int) -> list[slice]:
    """Returns places, in words, of a tensor of `size` bytes."""
    borders = {0, size, size // 2, 1 << 31, 1 << 32, 3 << 30, *range(0, size, STEP)}
    found = []
    for border in sorted(b for b in borders if b <= size):
        first, last = max(0, border - EDGE), min(size, border + EDGE)
        found.append(slice(first // WORD, last // WORD))
    return found


def value(rank: int, place: slice) -> torch.Tensor:
    """A word depends on its rank and its place, so that misplaced bytes are found."""
    return torch.arange(place.start, place.stop, dtype=torch.int64) * 3 + (rank << 44)


def filled(rank: int, size: int) -> torch.Tensor:
    """Fills only the places that are compared later: the rest stays zero, and costs no time."""
    tensor = torch.zeros(size // WORD, dtype=torch.int64)
    for place in places(size):
        tensor[place] = value(rank, place)
    return tensor


def check(tensor: torch.Tensor, expected: Callable[[slice], torch.Tensor], size: int) -> None:
    for place in places(size):
        got, wanted = tensor[place], expected(place)
        wrong = (got != wanted).nonzero().flatten()
        assert not len(wrong), f"{len(wrong)} words differ, first at {place.start + int(wrong[0])}"


def broadcast(size: int) -> None:
    root = 1
    tensor = (
        filled(root, size)
        if dist.get_rank() == root
        else torch.zeros(size // WORD, dtype=torch.int64)
    )
    dist.broadcast(tensor, root)
    check(tensor, lambda place: value(root, place), size)


def all_gather_into_tensor(size: int) -> None:
    """`size` is that of the output."""
    rank, world = dist.get_rank(), dist.get_world_size()
    block = size // world // WORD * WORD
    output = torch.zeros(world * block // WORD, dtype=torch.int64)
    dist.all_gather_into_tensor(output, filled(rank, block))
    for source, part in enumerate(output.chunk(world)):
        check(part, lambda place, source=source: value(source, place), block)


def reduce_scatter_tensor(size: int) -> None:
    """`size` is that of the input."""
    rank, world = dist.get_rank(), dist.get_world_size()
    block = size // world // WORD
    output = torch.zeros(block, dtype=torch.int64)
    whole = torch.zeros(world * block, dtype=torch.int64)
    for number, part in enumerate(whole.chunk(world)):
        for place in places(block * WORD):
            part[place] = value(rank, place) + number
    dist.reduce_scatter_tensor(output, whole)
    check(
        output,
        lambda place: sum(value(r, place) for r in range(world)) + world * rank,
        block * WORD,
    )


def all_reduce(size: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = filled(rank, size)
    dist.all_reduce(tensor)
    check(tensor, lambda place: sum(value(r, place) for r in range(world)), size)


def send_and_recv(size: int) -> None:
    if dist.get_rank() == 0:
        dist.send(filled(0, size), 1)
    else:
        tensor = torch.zeros(size // WORD, dtype=torch.int64)
        dist.recv(tensor, 0)
        check(tensor, lambda place: value(0, place), size)


def all_to_all_single(size: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    block = size // world // WORD
    whole = torch.zeros(world * block, dtype=torch.int64)
    for number, part in enumerate(whole.chunk(world)):
        for place in places(block * WORD):
            part[place] = value(rank, place) + number
    output = torch.zeros_like(whole)
    dist.all_to_all_single(output, whole)
    for source, part in enumerate(output.chunk(world)):
        check(part, lambda place, source=source: value(source, place) + rank, block * WORD)


OPERATIONS = {
    function.__name__: function
    for function in (
        broadcast, all_gather_into_tensor, reduce_scatter_tensor, all_reduce, all_to_all_single,
    )
}  # fmt: skip


def run(name: str, size: int) -> dict[str, Any]:
    {**OPERATIONS, "send_and_recv": send_and_recv}[name](size)
    stats = torch_mcast.stats()
    assert not sum(row["fallback"] for row in stats["calls"].values())
    return stats


SIZES = {"over_2_GiB": 2 * GiB + TAIL, "over_4_GiB": 4 * GiB + 2 * TAIL}


@pytest.mark.parametrize("ranks", ["network", "host"], indirect=True)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*OPERATIONS, "send_and_recv"])
def test_every_border_is_right_and_all_bytes_are_counted(ranks, name, size):
    even = SIZES[size] // 2 // WORD * WORD * 2  # two equal blocks of whole words
    wanted = {
        "all_gather_into_tensor": {"all_gather_into_tensor": even},
        "all_to_all_single": {"all_to_all_single": even},
        "reduce_scatter_tensor": {"reduce_scatter_tensor": even // 2},
    }.get(name, {name: SIZES[size]})
    for rank, stats in enumerate(ranks(2, run, name, SIZES[size], timeout_s=500, limit_s=560)):
        if name == "send_and_recv":
            wanted = [{"send": 0}, {"recv": SIZES[size]}][rank]
            counter = ["message_bytes_sent", "message_bytes_received"][rank]
            assert stats["counters"][counter] == SIZES[size]
        counted = {called: count for called, count in stats["bytes"].items() if called in wanted}
        assert counted == wanted
