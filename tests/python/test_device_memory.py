"""Pinned memory of collectives on device tensors: bounded by device_pinned, on the devices of
device_ranks.py. Calls beyond the budget wait for earlier ones."""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from typing import Any

import device_ranks
import pytest
import torch
import torch.distributed as dist
from contents import content
from device_ranks import check, device, new_group, ops, store, upload
from limits import limit
from waiting import until

import torch_mcast

pytest_generate_tests = device_ranks.pytest_generate_tests
device_pools, library = device_ranks.device_pools, device_ranks.library
either = device_ranks.either
SIZE = 64 << 10  # bytes of a rank's block
WORDS = 64 << 10  # more than the words at the start of an operation's memory, and its rounding
BUDGET = 8 * 2 * SIZE  # of two ranks: fewer than eight operations
FITS = BUDGET // (2 * SIZE + WORDS)


def held() -> dict[str, int]:
    return torch_mcast.stats()["device"]


def post(group: Any, salt: int, output: torch.Tensor) -> Any:
    mine = upload(content(dist.get_rank(), SIZE, torch.uint8, salt))
    return dist.all_gather_into_tensor(output, mine, group=group, async_op=True)


def zeros() -> torch.Tensor:
    return torch.zeros(2 * SIZE, dtype=torch.uint8).to(device())


def backlog(count: int) -> int:
    """Rank 0 posts while rank 1 does not: its call waits once the budget is spent. Works are kept
    and not waited for."""
    group = new_group(device_pinned=BUDGET)
    outputs, works = [zeros() for _ in range(count)], []

    def post_all() -> None:
        works.extend(post(group, salt, output) for salt, output in enumerate(outputs))

    before = held()
    if dist.get_rank() == 0:
        posted = []
        thread = threading.Thread(target=lambda: (post_all(), posted.append(True)))
        thread.start()
        until(lambda: held()["pinned_waits"] > before["pinned_waits"], "no call waits")
        assert FITS <= held()["pinned_bytes"] // (2 * SIZE) < BUDGET // (2 * SIZE)
        assert not posted
        store().set("rank 0 waits", "1")
        thread.join(60)
        assert posted
    else:
        store().wait(["rank 0 waits"])
        post_all()
    for salt, (work, output) in enumerate(zip(works, outputs, strict=True)):
        work.wait()
        whole = [content(rank, SIZE, torch.uint8, salt) for rank in range(2)]
        check(output, torch.cat(whole), salt)
    assert f"\ntorch_mcast_device_pinned_peak {held()['pinned_peak']}\n" in torch_mcast.metrics()
    until(lambda: held()["pinned_bytes"] == 0, lambda: f"works that are over hold {held()}")
    return held()["pinned_peak"]


def test_a_backlog_waits_for_its_budget(either):
    waited, other = either(2, backlog, 100)
    assert FITS * 2 * SIZE <= waited <= BUDGET
    assert 0 < other <= BUDGET  # rank 1's operations may be over as soon as they are posted


def larger_than_the_budget() -> None:
    group = new_group(device_pinned=SIZE)
    for salt in range(3):
        output = zeros()
        post(group, salt, output).wait()
        whole = [content(rank, SIZE, torch.uint8, salt) for rank in range(2)]
        check(output, torch.cat(whole), salt)


def test_one_operation_may_be_larger_than_the_budget(either):
    either(2, larger_than_the_budget)


def late_others() -> str:
    """Rank 1 is late in one group; in the other, rank 0's call, which has to wait for that, has a
    limit. The call has not been posted, so both groups continue."""
    slow, quick = new_group(), limit(1, new_group(device_pinned=SIZE))
    output, other, text = zeros(), zeros(), ""
    if dist.get_rank() == 0:
        work = post(slow, 0, output)
        with pytest.raises(dist.DistBackendError) as caught:
            post(quick, 1, other)
        text = str(caught.value)
        store().set("rank 0 has given up", "1")
    else:
        store().wait(["rank 0 has given up"])
        work = post(slow, 0, output)
    work.wait(timedelta(seconds=40))
    limit(60, quick)
    until(lambda: held()["pinned_bytes"] == 0, "it is not given back")
    post(quick, 2, other).wait()
    check(other, torch.cat([content(rank, SIZE, torch.uint8, 2) for rank in range(2)]), "later")
    return text


def test_a_call_waits_no_longer_than_its_limit(either):
    text = either(2, late_others)[0]
    assert "mcast all_gather_into_tensor #1 on rank 0 of 2 in group" in text
    assert "(limit 1000 ms) for " in text and f"(setting device_pinned: {SIZE})" in text


class Rung(Exception):
    pass


def interrupted() -> None:
    """A signal handler that raises ends the wait; nothing has been posted."""
    group = new_group(device_pinned=SIZE)
    outputs = [zeros(), zeros()]
    if dist.get_rank() == 0:

        def ring(*_: object) -> None:
            raise Rung

        work = post(group, 0, outputs[0])
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(Rung):
                post(group, 1, outputs[1])
        finally:
            signal.signal(signal.SIGALRM, before)
        store().set("interrupted", "1")
    else:
        store().wait(["interrupted"])
        work = post(group, 0, outputs[0])
    work.wait()
    post(group, 1, outputs[1]).wait()
    for salt, output in enumerate(outputs):
        whole = [content(rank, SIZE, torch.uint8, salt) for rank in range(2)]
        check(output, torch.cat(whole), salt)


def test_a_signal_ends_the_wait(either):
    either(2, interrupted)


def group_fails() -> None:
    """A call that waits for memory of an operation that a stream holds gets an error when its group
    has failed."""
    group = new_group(device_pinned=SIZE, device_failure="log")
    if dist.get_rank() == 0:
        outputs, source = [zeros(), zeros()], upload(content(0, SIZE, torch.uint8))
        ops().synchronize()
        ops().hold()
        work = dist.all_gather_into_tensor(outputs[0], source, group=group, async_op=True)
        timer = threading.Timer(0.3, lambda: torch_mcast.abort(group))
        timer.start()
        with pytest.raises(dist.DistBackendError, match="failed earlier"):
            dist.all_gather_into_tensor(outputs[1], source, group=group, async_op=True)
        assert held()["pinned_bytes"] > 0
        ops().release()
        until(work.is_completed, "the device's part has not ended")
    until(lambda: torch_mcast.stats(group)["failure"], "the group goes on")


def test_a_failed_group_ends_the_wait(either):
    either(2, group_fails)
