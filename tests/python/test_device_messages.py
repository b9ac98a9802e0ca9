"""send, recv, isend, irecv and batches of device tensors by the engine, on the devices of
device_ranks.py: with a gate (wait() makes the stream wait) and without (wait() blocks). Messages
arrive in any order or never, and streams of the caller only wait for their own messages."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import DTYPES, assert_same, content
from device_ranks import (
    AFTER,
    GPU,
    backend,
    check,
    device,
    flipped,
    ops,
    store,
    upload,
    upload_held,
)
from seeds import FRESH, seed_of
from waiting import until

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
either, gated, hosted = device_ranks.either, device_ranks.gated, device_ranks.hosted
SOME = torch.float32
# Between hosts, and among ranks of one host: the same code stages for both.
ALL_PATHS = pytest.mark.parametrize("shared_memory", ["off", "auto"])
BIG = 100_000  # several pieces


def zeros(size: int, dtype: torch.dtype = SOME) -> torch.Tensor:
    return torch.zeros(size * dtype.itemsize, dtype=torch.uint8).view(dtype).to(device())


def peer() -> int:
    return 1 - dist.get_rank()


def all_types() -> None:
    rank = dist.get_rank()
    cases = [(dtype, size) for dtype in DTYPES for size in (0, 1, 1021, 70_001)]
    for salt, (dtype, size) in enumerate(cases):
        mine, got = upload(content(rank, size, dtype, salt)), zeros(size, dtype)
        sent = dist.isend(mine, peer(), tag=salt % 3)
        work = dist.irecv(got, peer(), tag=salt % 3)
        del mine
        assert sent is not None and sent.wait() and work is not None and work.wait()
        check(got, content(1 - rank, size, dtype, salt), (dtype, size))
        for each in (sent, work):
            until(each.is_completed, "is not over")
            assert each.is_success()
    calls = torch_mcast.stats()["calls"]
    for op in ("send", "recv"):
        assert calls[op] == {"engine": len(cases), "fallback": 0}


@ALL_PATHS
def test_every_dtype_and_size_arrives_by_the_engine(either, shared_memory):
    either(2, all_types, env={"MCAST_SHARED_MEMORY": shared_memory})


def in_any_order(seed: int) -> None:
    """Sends in one order, receives in another, on several streams, some with CPU tensors: with one
    tag the first sent arrives first."""
    rank, world = dist.get_rank(), dist.get_world_size()
    draw = random.Random(seed)
    plan = [
        (draw.randrange(3), draw.choice([0, 3, 500, 30_000]), draw.randrange(4)) for _ in range(30)
    ]
    others = sorted(set(range(world)) - {rank})
    works, expected = [], []
    for n, (tag, size, place) in enumerate(plan):
        ops().use_stream(draw.randrange(3))
        for other in others:
            mine = content(rank, size, SOME, n)
            works.append(dist.isend(upload(mine) if place else mine, other, tag=tag))
    order = sorted(range(len(plan)), key=lambda n: (plan[n][0], n))
    if rank % 2 == 1:  # tags in reverse order, each tag's messages in order
        order = sorted(range(len(plan)), key=lambda n: (-plan[n][0], n))
    for n in order:
        tag, size, place = plan[n]
        for other in others:
            ops().use_stream(draw.randrange(3))
            got = torch.zeros(size) if place == 1 else zeros(size)
            expected.append((got, other, n, dist.irecv(got, other, tag=tag)))
    draw.shuffle(expected)
    for got, other, n, work in expected:
        ops().use_stream(draw.randrange(4))
        work.wait()
        want = content(other, plan[n][1], SOME, n)
        if got.is_cpu:
            assert_same(got, want, (other, n))
        else:
            check(got, want, (other, n))
    for work in works:
        work.wait()
    ops().use_stream(0)


@ALL_PATHS
@pytest.mark.parametrize("seed", [1, FRESH])
def test_messages_of_one_tag_arrive_in_the_order_sent_on_any_stream(either, seed, shared_memory):
    either(3, in_any_order, seed_of(seed), env={"MCAST_SHARED_MEMORY": shared_memory})


def any_source() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank:
        for size in (1000, 70_000):
            dist.send(upload(torch.full((size,), float(rank))), 0, tag=size)
        return
    for size in (1000, 70_000):
        seen = set()
        for _ in range(world - 1):
            got = zeros(size)
            source = dist.recv(got, tag=size)  # blocks until the source is known
            check(got, torch.full((size,), float(source)), source)
            seen.add(source)
        assert seen == set(range(1, world))


@ALL_PATHS
def test_a_receive_from_any_source_names_its_sender(either, shared_memory):
    either(3, any_source, env={"MCAST_SHARED_MEMORY": shared_memory})


def not_contiguous() -> None:
    wanted = torch.arange(6000.0).view(300, 20)
    lazy = torch.complex(torch.arange(9.0), torch.ones(9))
    if dist.get_rank() == 0:
        dist.send(upload(wanted).t(), 1)
        dist.send(upload(wanted), 1)
        backend().send([lazy.to(device()).conj()], 1, 0).wait()
        return
    whole = zeros(6000).view(20, 300)
    dist.recv(whole, 0)
    check(whole, wanted.t().contiguous(), "a source")
    room = zeros(12_000).view(300, 40)
    dist.recv(room[:, ::2], 0)
    check(room[:, ::2], wanted, "a target")
    assert not room.cpu()[:, 1::2].any()
    got = zeros(9, torch.complex64)
    dist.recv(got, 0)
    check(got, lazy.conj().resolve_conj(), "conjugated")


def test_tensors_that_are_not_contiguous(either):
    either(2, not_contiguous)


def order_of_streams() -> None:
    """A send transmits what earlier kernels have written, not what kernels after a wait write. A
    received message is written after earlier kernels, on any stream."""
    rank = dist.get_rank()
    mine, first, second = (content(0, BIG, SOME, salt) for salt in range(3))
    if rank == 0:
        ops().hold()
        source = upload_held(mine)
        work = dist.isend(source, 1)
        ops().use_stream(5)
        early = dist.isend(upload(first), 1, tag=1)  # not delayed by the work of stream 0
        ops().use_stream(0)
        store().wait(["tag 1 is there"])
        assert not work.is_completed()
        ops().release()
        work.wait()
        ops().flip(source, AFTER)  # its memory belongs to the caller again
        early.wait()
        dist.send(upload(second), 1, tag=2)
        return
    got = zeros(BIG)
    dist.recv(got, 0, tag=1)
    check(got, first, "on another stream")
    store().set("tag 1 is there", "1")
    dist.recv(got, 0)
    check(got, mine, "before it was overwritten")
    ops().hold()
    ops().flip(got, AFTER)  # runs once the message has arrived
    work = dist.irecv(got, 0, tag=2)
    time.sleep(0.05)
    ops().release()
    ops().use_stream(6)
    work.wait()
    check(got, second, "behind a kernel")
    ops().use_stream(0)


def test_messages_keep_the_order_of_their_streams(either):
    either(2, order_of_streams)


def wait_first() -> None:
    """wait() of a receive returns, and later kernels are enqueued, before the message has been sent."""
    rank = dist.get_rank()
    expected = content(0, BIG, SOME)
    if rank == 0:
        store().wait(["rank 1 waits no more"])
        dist.send(upload(expected), 1)
        dist.send(upload(expected), 1)
        return
    tensor, other = zeros(BIG), zeros(BIG)
    work = dist.irecv(tensor, 0)
    future = work.get_future()
    assert work.wait() and work.wait()
    ops().flip(tensor, AFTER)
    ops().use_stream(4)
    assert work.wait()  # on a second stream
    other.copy_(tensor, non_blocking=True)
    assert not work.is_completed() and not future.done()
    assert work.result()[0].data_ptr() == tensor.data_ptr()
    store().set("rank 1 waits no more", "1")
    ops().use_stream(0)
    assert_same(tensor.cpu(), flipped(expected, AFTER))
    assert work.wait(timedelta(seconds=30)) and work.is_completed() and work.is_success()
    future.wait()
    later = dist.irecv(tensor, 0)
    check(later.get_future().wait()[0], expected, "by a future")


def wait_last() -> None:
    """Without a gate wait() returns when the message has arrived."""
    rank = dist.get_rank()
    expected = content(0, BIG, SOME)
    if rank == 0:
        store().wait(["posted"])
        dist.send(upload(expected), 1)
        return
    tensor = zeros(BIG)
    work = dist.irecv(tensor, 0)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    assert not work.is_completed()
    store().set("posted", "1")
    waiting.join(40)
    assert not waiting.is_alive() and work.wait()
    check(tensor, expected, "blocked")


def test_wait_does_not_block(gated):
    gated(2, wait_first)


def test_wait_without_gate(hosted):
    hosted(2, wait_last)


def test_host_wait_is_a_choice(gated):
    gated(2, wait_last, options={"device_wait": "host"})


def never_matched(gate: bool) -> None:
    """Receives whose message comes last, with and without a stream that waits for them, do not
    delay other messages or collectives."""
    rank, size = dist.get_rank(), 20_000
    late = [zeros(size) for _ in range(4)]
    works = [dist.irecv(got, peer(), tag=100 + n) for n, got in enumerate(late)]
    if gate:
        ops().use_stream(3)
        works[0].wait()  # stream 3 waits from now on
        dist.isend(upload_held(content(rank, size, SOME, 50)), peer(), tag=50)
        ops().use_stream(0)
    for n in range(20):
        got = zeros(size)
        sent = dist.isend(upload(content(rank, size, SOME, n)), peer(), tag=n % 2)
        dist.irecv(got, peer(), tag=n % 2).wait()
        check(got, content(1 - rank, size, SOME, n), n)
        sent.wait()
        total = torch.full((size,), float(rank + 1)).to(device())
        dist.all_reduce(total)
        assert total.cpu()[-1] == 3.0
    assert not any(work.is_completed() for work in works)
    dist.barrier()
    for n in reversed(range(4)):
        dist.send(upload(content(rank, size, SOME, 100 + n)), peer(), tag=100 + n)
    for n, work in enumerate(works):
        work.wait()
        check(late[n], content(1 - rank, size, SOME, 100 + n), n)
    if gate:
        got = zeros(size)
        dist.recv(got, peer(), tag=50)
        check(got, content(1 - rank, size, SOME, 50), "of a stream that waited")


def test_a_late_message_holds_up_no_other(either):
    either(2, never_matched, either.gate)


def ring() -> None:
    """All ranks send first, messages far too long to send without a request."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for n in range(3):
        dist.send(upload(content(rank, 120_000, SOME, n)), (rank + 1) % world)
        got = zeros(120_000)
        dist.recv(got, (rank - 1) % world)
        check(got, content((rank - 1) % world, 120_000, SOME, n), n)


def test_a_ring_in_which_all_send_first(either):
    either(3, ring)


def runs_ahead() -> None:
    """A sender does not block as long as at most 512 pieces wait in pinned memory; then waiting for
    a send means waiting for its end."""
    size = 1 << 20
    if dist.get_rank() == 0:
        works = [dist.isend(upload(content(0, size, torch.uint8, 0)), 1)]
        assert works[0].wait() and not works[0].is_completed()
        works += [dist.isend(upload(content(0, size, torch.uint8, n)), 1) for n in (1, 2)]
        store().set("all are sent", "1")
        works[2].wait()
        assert works[2].is_completed()
    else:
        store().wait(["all are sent"])
        for n in range(3):
            got = zeros(size, torch.uint8)
            dist.recv(got, 0)
            check(got, content(0, size, torch.uint8, n), n)
    dist.barrier()


def test_sends_that_wait_take_bounded_memory(either):
    either(2, runs_ahead)


def nobody_waits() -> None:
    """Works, sources and some targets are dropped at once."""
    rank, size = dist.get_rank(), 9000
    kept = []
    for n in range(40):
        ops().use_stream(n % 3)
        dist.isend(upload(content(rank, size, SOME, n)), peer())
        got = zeros(size)
        dist.irecv(got, peer())
        if n % 4:
            kept.append((n, got))
        del got
    ops().use_stream(0)
    for n, got in kept:
        wanted = content(1 - rank, size, SOME, n).view(torch.uint8)
        until(lambda got=got, wanted=wanted: torch.equal(ops().peek(got, 4 * size), wanted), n)
    dist.barrier()


def test_works_that_nobody_waits_for(either):
    either(2, nobody_waits)


def batch() -> None:
    rank = dist.get_rank()
    sizes = [3, 0, 70_000]
    mine = [upload(content(rank, size, SOME, size)) for size in sizes]
    got = [zeros(size) for size in sizes]
    calls = [dist.P2POp(dist.isend, tensor, peer(), tag=n) for n, tensor in enumerate(mine)]
    calls += [dist.P2POp(dist.irecv, tensor, peer(), tag=n) for n, tensor in enumerate(got)]
    random.Random(rank).shuffle(calls)
    works = dist.batch_isend_irecv(calls)
    del mine, calls
    assert len(works) == 1
    for work in works:
        work.wait()
    for size, tensor in zip(sizes, got, strict=True):
        check(tensor, content(1 - rank, size, SOME, size), size)


def test_a_batch_of_sends_and_receives_is_one_work(either):
    either(2, batch)


def blocked_calls() -> None:
    """A status query of the device blocks, as behind a cudaFree that waits for the gates: messages
    are still sent, and a waiting receiver gets one."""
    rank = dist.get_rank()
    got = zeros(BIG)
    if rank == 0:
        ops().hold()
        mine = upload_held(content(0, BIG, SOME))
        waits = dist.irecv(got, 1)
        sent = dist.isend(mine, 1)
        ops().block_asking(True)
        try:
            until(lambda: ops().blocked() > 0, "nobody asks the device")
            ops().release()
            store().wait(["rank 1 has it"])
        finally:
            ops().block_asking(False)
        sent.wait()
        waits.wait()
    else:
        dist.irecv(got, 0).wait(timedelta(seconds=40))
        store().set("rank 1 has it", "1")
        dist.send(upload(content(1, BIG, SOME)), 0)
    check(got, content(1 - rank, BIG, SOME), "with blocked calls")


def test_progress_does_not_wait_for_calls(gated):
    gated(2, blocked_calls)


def many_streams() -> int:
    """However many streams of the caller post messages, few are taken from the pool. (Not counted
    on CUDA.)"""
    rank, before = dist.get_rank(), ops().pooled()
    for n in range(16):
        ops().use_stream(n)
        got = zeros(100)
        work = dist.irecv(got, peer())
        dist.send(upload(content(rank, 100, SOME, n)), peer())
        work.wait()
        check(got, content(1 - rank, 100, SOME, n), n)
    ops().use_stream(0)
    return ops().pooled() - before


def test_messages_of_many_streams_take_few_of_the_pool(either):
    assert max(either(2, many_streams)) <= 16


def refused() -> None:
    mine = upload(torch.ones(3))
    with pytest.raises(ValueError, match="expected another rank"):
        backend().send([mine], dist.get_rank(), 0)
    with pytest.raises(NotImplementedError, match=f"gather of {device()}:0 tensors is not served"):
        dist.gather(mine, [zeros(3), zeros(3)] if dist.get_rank() == 0 else None)
    dist.barrier()


def test_sends_to_itself_and_gathers_are_refused(either):
    either(2, refused)


def on_two_gpus() -> None:
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    for n, size in enumerate((0, 1, 1021, 3_000_000)):
        got = torch.zeros(size, device="cuda")
        work = dist.irecv(got, peer(), tag=n)
        mine = content(rank, size, torch.int32, n).to("cuda", non_blocking=True) + 1
        sent = dist.isend(mine, peer(), tag=n)
        sent.wait()
        mine.zero_()
        got = got.view(torch.int32)
        work.wait()
        wanted = content(1 - rank, size, torch.int32, n)
        assert_same((got - 1).cpu(), wanted, size)
    ahead, tensor = dist.irecv(got.zero_(), peer()), torch.ones(3_000_000, device="cuda") * rank
    assert ahead.wait()  # the stream waits; later ones do not
    with torch.cuda.stream(torch.cuda.Stream()):
        dist.send(tensor.view(torch.int32), peer())
    assert got.view(torch.float32).sum().item() == 3_000_000 * (1 - rank)
    calls = torch_mcast.stats()["calls"]
    assert calls["send"]["engine"] == calls["recv"]["engine"] == 5


if GPU and torch.cuda.device_count() > 1:  # the others share one

    def test_two_gpus(device_pools):
        device_pools["cuda"].run(
            2, on_two_gpus, backend="cpu:mcast,cuda:mcast", options={"fallback": "gloo"}
        )
