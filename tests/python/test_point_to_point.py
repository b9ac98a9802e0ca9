"""send, recv, isend, irecv and batches by the engine, over the network and in shared memory, also
of an engine of the host: the bytes are equal."""

from __future__ import annotations

import random
import threading
import time

import pytest
import torch
import torch.distributed as dist
from contents import DTYPES, assert_same, content
from limits import limit
from seeds import FRESH, seed_of

import torch_mcast

NETWORK = ["network", "engine", "engine-copy"]
IN_MEMORY = ["host", "host-slots", "host-map", "engine-host", "engine-host-map", "engine-host-copy"]
EVERYWHERE = pytest.mark.parametrize("ranks", [*NETWORK, *IN_MEMORY], indirect=True)


def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size * dtype.itemsize, dtype=torch.uint8).view(dtype)


def all_types() -> str:
    rank = dist.get_rank()
    for salt, (dtype, size) in enumerate((d, s) for d in DTYPES for s in (0, 1, 1021, 70_001)):
        mine, got = content(rank, size, dtype, salt), zeros(size, dtype)
        works = [dist.isend(mine, 1 - rank, tag=salt % 3), dist.irecv(got, 1 - rank, tag=salt % 3)]
        for work in works:
            assert work is not None and work.wait()
            assert work.is_completed() and work.is_success()
        assert_same(got, content(1 - rank, size, dtype, salt), (dtype, size))
    calls = torch_mcast.stats()["calls"]["send"]
    assert calls["engine"] == 4 * len(DTYPES)
    assert calls["fallback"] == 0
    return torch_mcast.stats()["path"]


@EVERYWHERE
def test_every_dtype_and_size_arrives_by_the_engine(ranks, request):
    network = request.node.callspec.params["ranks"] in NETWORK
    path = "multicast" if network else "shared memory"
    assert ranks(2, all_types) == [path] * 2


LENT = {
    98_304,
    98_305,
    5_000_001,
}  # lengths of messages that are read in place, on paths that can do that


def lengths_and_ways() -> tuple[int, int]:
    """Returns the bytes that the kernel read in place, and those read as mapped; others came
    through a ring or the network."""
    rank = dist.get_rank()
    for size in (1, 30_000, 40_000, *sorted(LENT)):
        mine = content(rank, size, torch.uint8, size)
        got = torch.zeros(size, dtype=torch.uint8)
        works = [dist.isend(mine, 1 - rank), dist.irecv(got, 1 - rank)]
        for work in works:
            work.wait()
        assert_same(got, content(1 - rank, size, torch.uint8, size), size)
    counters = torch_mcast.stats()["counters"]
    assert counters["message_bytes_received"] == sum(LENT) + 70_001
    assert counters["messages_received"] == counters["messages_sent"] == 6
    return counters["shm_direct_bytes"], counters["shm_mapped_bytes"]


@EVERYWHERE
def test_long_messages_are_read_in_place_where_that_is_possible(ranks, request):
    path = request.node.callspec.params["ranks"]
    everything, longest = sum(LENT), max(LENT)
    expected = {"host": {(everything, 0)}, "host-map": {(everything - longest, longest)}}
    # At an engine these are the bytes copied there by the time the call is read: all of mapped
    # tensors; of others, the messages that the engine had completely taken over when they were
    # sent, which depends on timing.
    short = sorted(LENT - {longest})
    copied = {0, *short, sum(short)}
    taken_over = {(0, n + more) for n in copied for more in (0, longest)}
    expected["engine-host"] = expected["engine-host-copy"] = taken_over
    expected["engine-host-map"] = {(0, longest + n) for n in copied}
    for ways in ranks(2, lengths_and_ways):
        assert ways in expected.get(path, {(0, 0)})


def in_any_order(seed: int) -> None:
    """Sends in one order, receives in another: with one tag the first sent arrives first."""
    rank, world = dist.get_rank(), dist.get_world_size()
    draw = random.Random(seed)
    plan = [(draw.randrange(3), draw.choice([3, 500, 90_000])) for _ in range(40)]
    works, expected = [], []
    for n, (tag, size) in enumerate(plan):
        for peer in set(range(world)) - {rank}:
            works.append(dist.isend(content(rank, size, torch.float32, n), peer, tag=tag))
    order = sorted(range(len(plan)), key=lambda n: (plan[n][0], n), reverse=rank % 2 == 1)
    if rank % 2 == 1:  # tags in reverse order, each tag's messages in order
        order = sorted(range(len(plan)), key=lambda n: (-plan[n][0], n))
    for n in order:
        for peer in set(range(world)) - {rank}:
            got = torch.zeros(plan[n][1])
            works.append(dist.irecv(got, peer, tag=plan[n][0]))
            expected.append((got, peer, n))
    for work in works:
        work.wait()
    for got, peer, n in expected:
        assert_same(got, content(peer, plan[n][1], torch.float32, n), (peer, n))


@EVERYWHERE
@pytest.mark.parametrize("seed", [1, FRESH])
def test_messages_of_one_tag_arrive_in_the_order_sent(ranks, seed):
    ranks(3, in_any_order, seed_of(seed))


def any_source() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        seen = set()
        for _ in range(world - 1):
            got = torch.zeros(1000)
            source = dist.recv(got, tag=7)
            assert got.tolist() == [float(source)] * 1000
            seen.add(source)
        assert seen == set(range(1, world))
    else:
        time.sleep(0.05 * (world - rank))
        dist.send(torch.full((1000,), float(rank)), 0, tag=7)
    works = []
    if rank == 0:
        results = [torch.zeros(3) for _ in range(world - 1)]
        works = [dist.irecv(got) for got in results]
        for work, got in zip(works, results, strict=True):
            work.wait()
            assert got[0] == float(work._source_rank())
    else:
        dist.send(torch.full((3,), float(rank)), 0)


@EVERYWHERE
def test_a_receive_from_any_source_names_its_sender(ranks):
    ranks(4, any_source)


def strided() -> None:
    rank = dist.get_rank()
    whole = torch.zeros(20, 30)
    if rank == 0:
        dist.send(torch.arange(600.0).view(30, 20).t(), 1)
    else:
        dist.recv(whole, 0)
        assert_same(whole, torch.arange(600.0).view(30, 20).t().contiguous())


@EVERYWHERE
def test_tensors_that_are_not_contiguous(ranks):
    ranks(2, strided)


def two_of_three() -> None:
    """The other rank is in a collective that these two have not called yet."""
    rank = dist.get_rank()
    work = dist.all_reduce(torch.ones(10), async_op=True) if rank == 2 else None
    mine, got = torch.full((200_000,), float(rank)), torch.zeros(200_000)
    if rank < 2:
        for each in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        ):
            each.wait()
        assert got[0] == got[-1] == float(1 - rank)
        work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()


@EVERYWHERE
def test_between_two_while_the_third_waits(ranks):
    ranks(3, two_of_three)


def another_length() -> None:
    rank = dist.get_rank()
    with pytest.raises(dist.DistBackendError, match="rank 0 has sent 12 bytes to recv of 16 bytes"):
        if rank == 0:
            dist.send(torch.ones(3), 1)
            dist.recv(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(4), 0)


@EVERYWHERE
def test_another_length_is_an_error_on_both(ranks):
    ranks(2, another_length)


def too_late() -> None:
    group = limit(2, dist.new_group())
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="no such message has arrived"):
            dist.recv(torch.ones(4), 1, group=group, tag=5)
    dist.barrier()


@EVERYWHERE
def test_a_receive_ends_by_its_limit(ranks):
    ranks(2, too_late)


def never_waited_for() -> None:
    """The engine holds the memory of a work that has been dropped; a rank that makes another call
    still receives."""
    rank = dist.get_rank()
    if rank == 0:
        for n in range(2000):
            dist.isend(torch.full((100,), float(n)), 1)
        dist.isend(torch.full((1_000_000,), 7.0), 1)
        dist.barrier()
    else:
        dist.barrier()
        got = torch.zeros(100)
        for n in range(2000):
            dist.recv(got, 0)
            assert got[0] == got[-1] == float(n)
        long = torch.zeros(1_000_000)
        dist.recv(long, 0)
        assert long[0] == long[-1] == 7.0
    dist.barrier()  # a rank that closes waits for them, but with a limit


@EVERYWHERE
def test_works_that_nobody_waits_for(ranks):
    ranks(2, never_waited_for)


def from_callbacks() -> None:
    """Each completion posts the next operation, in alternating directions."""
    rank = dist.get_rank()
    done: list[int] = []
    over = threading.Event()

    def then(n: int) -> None:
        done.append(n)
        if n < 20:
            go(n + 1)
        else:
            over.set()

    def go(n: int) -> None:
        tensor = torch.full((1000,), float(n))
        mine = n % 2 == rank
        work = dist.isend(tensor, 1 - rank) if mine else dist.irecv(tensor.zero_(), 1 - rank)
        work.get_future().then(lambda _: then(n) if tensor[-1] == float(n) else None)

    go(0)
    assert over.wait(30), done
    assert done == list(range(21))


@EVERYWHERE
def test_posts_from_callbacks(ranks):
    ranks(2, from_callbacks)


def refused() -> None:
    with pytest.raises(ValueError, match="expected another rank"):
        dist.group.WORLD._get_backend(torch.device("cpu")).send([torch.ones(1)], dist.get_rank(), 0)


@EVERYWHERE
def test_a_send_to_itself_is_refused(ranks):
    ranks(2, refused)


def alone() -> None:
    with pytest.raises(ValueError, match="has no other rank"):
        dist.recv(torch.ones(1))
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(ValueError, match="has no other rank"):
        backend.send([torch.ones(1)], 0, 0)


def test_a_group_of_one_has_no_messages(ranks):
    ranks(1, alone)
