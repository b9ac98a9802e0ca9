"""Work handles: futures, results, timeouts, interruption, the profiler, functional collectives."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from named_errors import by_rank, check_error, raises_error
from torch._C._distributed_c10d import ErrorType
from waiting import until

import torch_mcast


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def futures() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(3 * world)
    work = dist.all_gather_into_tensor(output, torch.full((3,), float(rank)), async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0].sum().item())
    assert chained.wait() == 3.0 * sum(range(world))
    assert work.wait() and future.done()
    assert work.get_future().value()[0].data_ptr() == output.data_ptr()
    assert work.result()[0].data_ptr() == output.data_ptr()

    outputs = [torch.zeros(3) for _ in range(world)]
    work = dist.all_gather(outputs, torch.full((3,), float(rank)), async_op=True)
    work.wait()
    value = work.get_future().value()  # made after completion; flat, as Gloo and NCCL give it
    assert [t.data_ptr() for t in value] == [t.data_ptr() for t in outputs]
    assert dist.barrier(async_op=True).get_future().wait() == []
    # A callback may itself use the group: it does not run on the thread that drives the network.
    nested = dist.all_gather_into_tensor(output, torch.ones(3), async_op=True).get_future()
    tensor = torch.full((2,), float(rank))
    nested.then(lambda _: dist.broadcast(tensor, 0, async_op=True)).wait().wait()
    assert tensor.tolist() == [0.0, 0.0]


def test_futures(ranks):
    ranks(2, futures)


def no_limit() -> None:
    """Two clients of torch request that: any number of years, and more than 64 bits of nanoseconds."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for years in (200, 291, 300, 1000):
        limit = timedelta(days=365 * years)
        group = dist.new_group(list(range(world)), timeout=limit)
        output = torch.zeros(world)
        dist.all_gather_into_tensor(output, torch.tensor([float(rank)]), group=group)
        assert output.tolist() == list(range(world))
        tensor = torch.ones(1)
        assert (
            dist.all_reduce(tensor, group=group, async_op=True).wait(limit)
            and tensor.item() == world
        )
        if rank == 0:
            dist.send(tensor, 1, group=group)
        elif rank == 1:
            dist.recv(tensor, 0, group=group)
        group._get_backend(torch.device("cpu")).monitored_barrier(limit)
        dist.destroy_process_group(group)


def test_limits_beyond_292_years_are_none(ranks):
    ranks(2, no_limit)


def waiting_callbacks(count: int) -> None:
    """Each callback waits for the last one."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["callbacks are there"])
        for _ in range(count):
            dist.barrier()
        return
    last = threading.Event()

    def callback(number: int) -> int:
        if number == count - 1:
            last.set()
        assert last.wait(30)
        return number

    futures = [
        dist.barrier(async_op=True).get_future().then(lambda _, number=number: callback(number))
        for number in range(count)
    ]
    store.set("callbacks are there", "1")
    assert [future.wait() for future in futures] == list(range(count))


def test_waiting_callbacks(ranks):
    ranks(2, waiting_callbacks, 20)


def last_reference() -> int:
    """On rank 0 only a callback holds its group, and ends after the group was destroyed."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    go = threading.Event()
    held = weakref.ref(group)
    if dist.get_rank() == 1:
        store.wait(["rank 0 has chained"])

    def callback(_: object, group: dist.ProcessGroup = group) -> None:
        # On the main thread: the operation was complete before the callback was chained.
        if threading.current_thread() is not threading.main_thread():
            assert go.wait(30)

    work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    if dist.get_rank() == 0:
        work.get_future().then(callback)
        store.set("rank 0 has chained", "1")
        store.wait(["rank 1 has the result"])  # wait() would wait for the callback, too
    else:
        work.wait()
        store.set("rank 1 has the result", "1")
    dist.destroy_process_group(group)
    del group, callback, work
    go.set()
    until(lambda: held() is None, "nothing keeps the group")
    total = torch.ones(2)
    dist.all_reduce(total)
    return int(total[0])


def test_a_callback_holds_the_last_reference(ranks):
    """Gloo ends the process here: its thread joins itself."""
    assert ranks(2, last_reference) == [2, 2]


def late_rank() -> None:
    """wait() with its own limit gives up; the operation continues."""
    rank = dist.get_rank()
    tensor = torch.full((4,), float(rank))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["rank 1 has given up"])
        dist.broadcast(tensor, 0)
        return
    work = dist.broadcast(tensor, 0, async_op=True)
    assert not work.is_completed()
    with pytest.raises(RuntimeError, match="needs a completed work"):
        work.result()
    with pytest.raises(
        dist.DistBackendError, match="wait\\(\\) gave up after its timeout of 50 ms"
    ):
        work.wait(timedelta(milliseconds=50))
    store.set("rank 1 has given up", "1")
    assert work.wait()
    assert tensor.tolist() == [0.0] * 4


def test_late_rank(ranks):
    ranks(2, late_rank)


def limit_of_a_call() -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["rank 0 has given up"])
        return
    options = dist.BroadcastOptions()
    options.rootRank = 1
    options.timeout = timedelta(seconds=1)
    with pytest.raises(dist.DistBackendError, match=r"\(limit 1\.0 s\)"):
        group._get_backend(torch.device("cpu")).broadcast([torch.zeros(1)], options).wait()
    store.set("rank 0 has given up", "1")


def test_timeout_of_a_call_replaces_that_of_the_group(ranks):
    ranks(2, limit_of_a_call)


class Interrupted(Exception):
    pass


def interrupt() -> None:
    """A signal handler runs, and may raise, while the main thread waits."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["interrupted"])
        dist.barrier()
        return

    def handler(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        work = dist.barrier(async_op=True)
        started = threading.Event()

        def send():
            started.wait()
            os.kill(os.getpid(), signal.SIGUSR2)

        thread = threading.Thread(target=send)
        thread.start()
        started.set()
        with pytest.raises(Interrupted):
            work.wait()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR2, before)
    store.set("interrupted", "1")
    work.wait()


def test_interrupt(ranks):
    ranks(2, interrupt)


def gil() -> None:
    """Other Python threads run while one waits."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["counted"])
        dist.barrier()
        return
    thread = threading.Thread(target=lambda: store.set("counted", "1"))
    work = dist.barrier(async_op=True)
    thread.start()
    work.wait()
    thread.join()


def test_waiting_releases_the_gil(ranks):
    ranks(2, gil)


def keepalive() -> None:
    """The memory of an operation lives until it is complete, and is then freed without a wait."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.wait(["dropped"])
        dist.broadcast(torch.ones(100_000), 0)
        dist.barrier()
        return
    array = np.zeros(100_000, dtype=np.float32)
    gone = threading.Event()
    weakref.finalize(array, gone.set)
    dist.broadcast(torch.from_numpy(array), 0, async_op=True)
    del array
    assert not gone.is_set()
    store.set("dropped", "1")
    dist.barrier()
    assert gone.wait(20)


def test_tensors_live_until_their_operation_is_complete(ranks):
    ranks(2, keepalive)


def profiler() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_gather_into_tensor(torch.zeros(4 * world), torch.ones(4))
        dist.broadcast(torch.full((4,), float(rank)), 0)
        dist.barrier()
        dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(2 * world))
    names = {event.name for event in profile.events()}
    assert {"mcast:all_gather", "mcast:broadcast", "mcast:barrier", "mcast:reduce_scatter"} <= names


def test_profiler(ranks):
    ranks(2, profiler)


def functional_collectives() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    mine = torch.full((2, 3), float(rank))
    gathered = functional.wait_tensor(functional.all_gather_tensor(mine, 0, group))
    assert gathered.shape == (2 * world, 3) and gathered[::2, 0].tolist() == list(
        map(float, range(world))
    )
    sideways = functional.wait_tensor(functional.all_gather_tensor(mine, 1, group))
    assert sideways.shape == (2, 3 * world)
    many = functional.all_gather_into_tensor_coalesced([mine, mine + 10], group)
    assert [functional.wait_tensor(t)[-1, 0].item() for t in many] == [world - 1.0, world + 9.0]
    sent = functional.wait_tensor(functional.broadcast(mine, world - 1, group))
    assert sent[0, 0].item() == world - 1.0
    part = functional.wait_tensor(functional.reduce_scatter_tensor(gathered, "avg", 0, group))
    assert torch.equal(part, torch.full((2, 3), float(rank)))
    total = functional.wait_tensor(functional.all_reduce(mine, "sum", group))
    assert total[0, 0].item() == sum(range(world))
    # Works are registered by their outputs and removed by the wait, in both ways of waiting.
    assert torch._C._distributed_c10d._get_work_registry_size() == 0
    with functional.allow_inflight_collective_as_graph_input_ctx():
        output = torch.zeros(2 * world)
        work = dist.all_gather_into_tensor(output, torch.ones(2), async_op=True)
        assert torch._C._distributed_c10d._get_work_registry_size() == 1
        work.wait()
        assert torch._C._distributed_c10d._get_work_registry_size() == 0


def test_functional_collectives(ranks):
    ranks(2, functional_collectives)


def bad_all_gathers() -> list[tuple]:
    """Returns (kind of error, its text, the call)."""
    b, four, own = backend(), torch.zeros(4), dist.get_rank()
    freed = torch.zeros(4)
    freed.untyped_storage().resize_(8)
    return [
        (
            ValueError,
            r"all_gather_into_tensor: expected an output of 2 x 4 = 8 elements, got 7",
            lambda: b._allgather_base(torch.zeros(7), four),
        ),
        (
            TypeError,
            r"all_gather_into_tensor: output must have dtype Float, got Double",
            lambda: b._allgather_base(torch.zeros(8, dtype=torch.float64), four),
        ),
        (
            ValueError,
            r"all_gather: expected 2 output tensors, one per rank, got 1",
            lambda: b.allgather([[torch.zeros(4)]], [four]),
        ),
        (
            ValueError,
            rf"all_gather: output {own} must have shape \[4\], got \[{5 + own}\]",
            lambda: b.allgather([[torch.zeros(5), torch.zeros(6)]], [four]),
        ),
        (
            ValueError,
            r"all_gather: output 0 must have shape \[4\], got \[2, 2\]",
            lambda: b.allgather([[torch.zeros(2, 2), torch.zeros(2, 2)]], [four]),
        ),
        (
            ValueError,
            r"all_gather: expected 1 input tensor, got 2",
            lambda: b.allgather([[four, four]], [four, four]),
        ),
        (
            ValueError,
            r"input must be a dense tensor, got layout Sparse",
            lambda: b._allgather_base(torch.zeros(8), four.to_sparse()),
        ),
        (
            ValueError,
            r"input is a meta tensor",
            lambda: b._allgather_base(torch.zeros(8), torch.zeros(4, device="meta")),
        ),
        (
            ValueError,
            r"input needs a storage of 16 bytes, its storage has 8",
            lambda: b._allgather_base(torch.zeros(8), freed),
        ),
    ]


def other_bad_calls() -> list[tuple]:
    b, four = backend(), torch.zeros(4)
    options = dist.BroadcastOptions()
    options.rootRank = dist.get_world_size()
    return [
        (
            ValueError,
            r"broadcast: expected a root rank from 0 to 1, got 2",
            lambda: b.broadcast([four], options),
        ),
        (
            ValueError,
            r"broadcast: expected 1 input tensor, got 0",
            lambda: b.broadcast([]),
        ),
        (
            ValueError,
            r"expected as many outputs as inputs \(1\), got 0",
            lambda: dist.group.WORLD.allgather_into_tensor_coalesced([], [four]),
        ),
        (
            ValueError,
            r"reduce_scatter_tensor: expected an input of 2 x 4 = 8 elements, got 4",
            lambda: b._reduce_scatter_base(four, torch.zeros(4)),
        ),
    ]


def errors_of_arguments() -> None:
    for kind, text, call in bad_all_gathers() + other_bad_calls():
        with pytest.raises(kind, match=text):
            call()
    # None of these used a sequence number anywhere: the group still works.
    dist.barrier()
    assert torch_mcast.stats()["next_sequence"] == 1


def test_errors_of_arguments(ranks):
    ranks(2, errors_of_arguments)


def mismatch() -> str:
    rank, world = dist.get_rank(), dist.get_world_size()
    size = 4 if rank == 0 else 8
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_gather_into_tensor(torch.zeros(size * world), torch.zeros(size))
        dist.barrier()  # a rank whose small operation was complete before the others received it
    with pytest.raises(dist.DistBackendError, match=r"on rank \d of 2 in group"):
        dist.barrier()
    assert torch_mcast.stats()["failure"]
    assert backend().get_error() == ErrorType.REMOTE_ERROR
    return str(caught.value)


def test_mismatch(ranks):
    for text in ranks(2, mismatch):
        calls = by_rank(check_error(text, "operation_differs", sequence=0), "call")
        assert calls == {
            0: "all_gather_into_tensor(16 bytes, element type 6)",
            1: "all_gather_into_tensor(32 bytes, element type 6)",
        }


def abort_from_thread() -> None:
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        work = dist.all_gather_into_tensor(torch.zeros(8), torch.zeros(4), async_op=True)
        thread = threading.Thread(target=torch_mcast.abort)
        thread.start()
        with raises_error(dist.DistBackendError, "aborted", rank=1, reason="abort() on rank 1"):
            work.wait()
        thread.join()
        assert work.exception() is not None and not work.is_success()
        with pytest.raises(Exception, match="mcast"):
            work.get_future().wait()
        store.set("aborted", "1")
    else:
        store.wait(["aborted"])
        with raises_error(dist.DistBackendError, "aborted", rank=1, reason="abort() on rank 1"):
            dist.all_gather_into_tensor(torch.zeros(8), torch.zeros(4))
    torch_mcast.abort()  # the second call has no effect


def test_abort_from_thread(ranks):
    ranks(2, abort_from_thread)


def shut_down() -> None:
    b = backend()
    output = torch.zeros(8)
    dist.all_gather_into_tensor(output, torch.ones(4))
    before = torch_mcast.stats()["next_sequence"]
    b.shutdown()
    b.shutdown()
    assert b._stats()["next_sequence"] == before  # unchanged
    with pytest.raises(dist.DistBackendError, match="shut down"):
        b._allgather_base(output, torch.ones(4))


def test_shut_down(ranks):
    ranks(2, shut_down)


def again() -> None:
    """Destroys the default group and creates it again on the same store."""
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    for _ in range(3):
        dist.destroy_process_group()
        dist.init_process_group(
            "mcast", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=30)
        )
        output = torch.zeros(4 * world)
        dist.all_gather_into_tensor(output, torch.full((4,), float(rank)))
        assert output.view(world, 4)[:, 0].tolist() == [float(r) for r in range(world)]


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_init_again(ranks, store):
    ranks(2, again, store=store)
