"""Ranks that end in every way a process can end, fork, and are interrupted."""

from __future__ import annotations

import faulthandler
import linecache
import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from scenarios import caught, expected_path, group_backend, join, post, tcp_store
from scenarios_failure import all_good
from torch.distributed.distributed_c10d import _set_pg_timeout

import torch_mcast

FUTEX = {"x86_64": 202, "aarch64": 98}[os.uname().machine]


def ends(link: Any, how: str) -> None:
    """Rank 1 ends while the others wait for it."""
    join(link, liveness_limit=20_000)
    all_good()
    if link.rank != 1:
        works = [dist.barrier(async_op=True) for _ in range(3)]
        link.say("posted")
        if how == "in flight":
            works.pop(0).wait()
        for work in works:
            caught(link, work.wait)
        return
    link.say("posted")
    link.hear("go")
    if how == "exception":
        raise RuntimeError("deliberate")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    if how == "in flight":
        dist.barrier(async_op=True)  # posted, never waited for; the others have posted three


def workers_end(link: Any, folder: str) -> None:
    """Forked workers of `multiprocessing` end without Python's exit handlers, rank 0's while its
    data is still to be received. In a small group `bad`, one ends with an exception."""

    def worker(rank: int, group: str) -> None:
        dist.init_process_group("cpu:mcast", f"file://{folder}/{group}", rank=rank, world_size=3)
        values = torch.full((4,), float(rank + 1))
        if group == "good":
            time.sleep(rank / 2)
            dist.broadcast(values, 0)
            assert torch.equal(values, torch.ones(4)), values
            return
        dist.barrier()
        if rank == 1:
            raise RuntimeError("deliberate")
        caught(link, dist.barrier)

    fork = multiprocessing.get_context("fork")
    for group, codes in (("good", [0, 0, 0]), ("bad", [0, 1, 0])):
        workers = [fork.Process(target=worker, args=(rank, group)) for rank in range(3)]
        for process in workers:
            process.start()
        for process in workers:
            process.join(60)
        assert [process.exitcode for process in workers] == codes, group


def all_end(link: Any, how: str) -> None:
    """All ranks end at once without destroying anything, with works that are never waited for."""
    join(link)
    for i in range(20):
        post("all_gather_into_tensor", 1000 * (i + 1))
        post("broadcast", 100_000)
    dist.all_reduce(torch.ones(3))
    works = [post("all_gather_into_tensor", 2 << 20), dist.barrier(async_op=True)]
    if link.rank == 0:
        works[0].get_future().then(lambda _: None)
    link.say("posted")
    if how == "sys.exit":
        sys.exit(3)
    if how == "thread":
        # A thread that is inside a collective when the interpreter ends.
        threading.Thread(target=works[1].wait, daemon=True).start()


def threads_go_on(link: Any) -> None:
    """Threads enter and leave calls when the interpreter ends, each with its own group."""
    join(link)
    groups = [
        dist.new_group([rank], backend="mcast") for rank in range(link.world) for _ in range(2)
    ]

    def call(group: Any) -> None:
        tensor = torch.ones(1000)
        while True:
            dist.all_reduce(tensor, group=group)

    for group in groups[2 * link.rank : 2 * link.rank + 2]:
        threading.Thread(target=call, args=(group,), daemon=True).start()
    link.say("posted")
    time.sleep(0.02)


def waits_at_exit(link: Any, groups: int) -> None:
    """Many groups with an operation each that the other rank never calls. The time limits one after
    the other would exceed the test's guard."""
    assert groups * 3 > 60
    join(link)
    every = [dist.new_group(backend="mcast") for _ in range(groups)]
    dist.barrier()
    if link.rank == 0:
        for group in every:
            _set_pg_timeout(timedelta(seconds=3), group)
            dist.barrier(group=group, async_op=True)
        link.say("ends")
    else:
        link.hear("go")
        os._exit(0)


def callback_waits(link: Any, what: str) -> None:
    """Rank 0 ends while a callback waits: for an operation of its own that rank 1 never calls, or
    forever."""
    join(link)
    if link.rank == 1:
        link.hear("post")  # later: then() runs the callback itself if the work is already complete
        dist.barrier()
        link.hear("go")
        os._exit(0)
    future = dist.barrier(async_op=True).get_future()
    waits = threading.Event()

    def callback(_: Any) -> None:
        _set_pg_timeout(timedelta(seconds=1))
        work = dist.broadcast(torch.zeros(3), 1, async_op=True)
        waits.set()
        if what == "operation":
            work.get_future().wait()
        while not waits.wait() or what == "polls":
            time.sleep(0.01)
        threading.Event().wait()

    future.then(callback)
    link.say("posted")
    waits.wait()
    link.say("ends")


def interrupted(link: Any, where: str) -> None:
    """SIGINT while rank 0 waits: for an operation, for a rank's address, or for the group to be created."""
    if where == "creation":
        # Both have published their addresses, but neither receives a probe.
        def watch() -> None:
            store = dist.FileStore(str(link.folder / "store"), link.world)
            store.wait([f"0//cpu//mcast/1/rank/{r}" for r in range(link.world)])
            link.say("waiting")

        if link.rank == 0:
            threading.Thread(target=watch, daemon=True).start()
        try:
            join(link, probe_timeout=600_000, faults="drop:type=probe")
        except KeyboardInterrupt:
            link.say("interrupted")
            raise
        except dist.DistBackendError as error:
            link.say("error", text=str(error))
            link.hear("go")
        return
    if where.endswith("store"):
        if link.rank == 0:
            store = tcp_store(link) if where == "tcp store" else None
            try:
                link.say("waiting")
                join(link, store=store)
            except KeyboardInterrupt:
                link.say("interrupted")
                raise
        link.hear("go")
        return
    join(link, linger=3_600_000)
    dist.barrier()
    if link.rank == 0:
        work = dist.barrier(async_op=True)
        try:
            link.say("waiting")
            work.wait()
        except KeyboardInterrupt:
            link.say("interrupted")
            raise
    else:
        caught(link, lambda: (link.hear("go"), dist.barrier(), dist.barrier()))


def say_when_in_wait(link: Any, call: str = ".wait()") -> None:
    """Reports "waiting" when the main thread sleeps in a futex below a line that makes this call:
    in the core, not in Python code."""
    number = f"/proc/self/task/{os.getpid()}/syscall"
    main = threading.main_thread().ident
    assert main is not None
    seen = 0
    while seen < 3:
        frame = sys._current_frames()[main]
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        with open(number) as file:
            asleep = file.read().startswith(f"{FUTEX} ")
        seen = seen + 1 if asleep and call in source else 0
        time.sleep(0.01)
    link.say("waiting")


def leaves_in_a_hurry(link: Any, how: str) -> None:
    """Rank 0 ends with an error while work is in flight that cannot complete, since rank 1 does not
    call it."""
    join(link, linger=3_600_000)
    dist.barrier()
    if link.rank == 1:
        link.hear("go")
        caught(link, lambda: (dist.barrier(), dist.barrier(), dist.barrier()))
        return
    works = [dist.barrier(async_op=True), post("all_gather_into_tensor")]
    if how == "exception":
        link.say("waiting")
        raise RuntimeError("deliberate")
    if how == "caught":
        # Only an interrupt inside wait() makes the engine give up the work in flight.
        threading.Thread(target=say_when_in_wait, args=(link,), daemon=True).start()
    else:
        link.say("waiting")
    try:
        if how == "sleep":
            time.sleep(3600)
        works[0].wait()
    except KeyboardInterrupt:
        if how != "caught":
            raise
    finally:
        if how == "finally":
            dist.destroy_process_group()
    dist.destroy_process_group()


def confirms_then_raises(link: Any) -> None:
    """Rank 0's broadcast is complete on rank 0; rank 1 calls it when rank 0 is ending, and gets
    every byte by repair requests."""
    join(link, linger=3_600_000, faults="drop:type=data")
    dist.barrier()
    tensor = torch.arange(1000) if link.rank == 0 else torch.zeros(1000, dtype=torch.int64)
    if link.rank == 1:
        link.hear("go")
    dist.broadcast(tensor, 0)
    if link.rank == 0:
        link.say("raises")
        raise RuntimeError("deliberate")
    assert torch.equal(tensor, torch.arange(1000))
    dist.destroy_process_group()
    link.say("good")


def leaves_a_child(link: Any) -> None:
    """Rank 1 forks a child that holds everything it inherited, and is killed."""
    join(link, liveness_limit=60_000)
    all_good()
    work = None
    if link.rank == 1:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            link.say("child", pid=os.getpid())
            while True:
                signal.pause()
    else:
        work = post("all_gather_into_tensor")
        link.say("posted")
        caught(link, work.wait)
        return
    link.hear("never")


def uses_group_in_child(link: Any) -> None:
    """Uses the group in a forked child: clear errors, no hang; children can create their own groups."""
    join(link)
    all_good()
    group = dist.new_group(backend="mcast")
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:
        caught(link, dist.barrier)
        caught(link, lambda: post("broadcast", group=group))
        caught(link, lambda: post("all_gather_into_tensor", 100))
        caught(link, lambda: dist.all_reduce(torch.ones(2)))
        caught(link, lambda: dist.group.WORLD.monitored_barrier(timedelta(seconds=5), True))
        assert torch_mcast.stats()["path"] == expected_path()
        torch_mcast.abort()
        dist.destroy_process_group()
        join(link, incarnation="of the children")
        all_good()
        dist.destroy_process_group()
        link.say("child good")
        os.write(child, b"x")
        os._exit(7)
    os.read(parent, 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    all_good()
    dist.barrier(group=group)
    dist.destroy_process_group()
    link.say("good")


def forks_while_posting(link: Any, children: int) -> None:
    """Children forked while another thread is anywhere inside a call get an error in those calls,
    and do not hang on locks that the thread held."""
    join(link)
    many = [torch.empty(4 << 20, dtype=torch.uint8) for _ in range(200)]
    # torch looks for the operator in the first call and holds a lock meanwhile, which a child would inherit.
    dist.all_gather_into_tensor(many[0], many[0])
    stop = threading.Event()

    def post() -> None:
        while not stop.is_set():
            for tensor in many:
                dist.all_gather_into_tensor(tensor, tensor)

    thread = threading.Thread(target=post)
    thread.start()
    codes = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(15)
            signal.alarm(20)
            try:
                dist.all_gather_into_tensor(many[0], many[0])
            except dist.DistBackendError:
                os._exit(0)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if codes[-1]:
            break
    stop.set()
    thread.join()
    assert not any(codes), codes
    link.say("good")


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def loads(link: Any) -> None:
    """DataLoader workers forked before and after init; the training loop goes on."""

    def loader() -> Any:
        return torch.utils.data.DataLoader(
            Numbers(), batch_size=8, num_workers=2, persistent_workers=True,
            multiprocessing_context="fork",
        )  # fmt: skip

    early = loader()
    first = iter(early)
    next(first)
    join(link, liveness_limit=2000)
    late = loader()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seen = 0
    for _ in range(2):
        for batches in zip(early, late, strict=True):
            for batch in batches:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                everything = torch.zeros(link.world * batch.numel())
                dist.all_gather_into_tensor(everything, batch.flatten())
                assert torch.equal(everything, batch.flatten().repeat(link.world))
                seen += len(batch)
    assert seen == 2 * 2 * 64
    all_good()
    link.say("trained")
    if link.rank == 0:
        dist.destroy_process_group()
    # The other ranks end with their workers alive and the group in place.


def many_groups(link: Any, count: int) -> None:
    join(link)
    dist.barrier()
    before = len(os.listdir("/proc/self/task"))
    start = time.monotonic()
    groups = [dist.new_group(backend="mcast") for _ in range(count)]
    made = time.monotonic() - start
    stats = [torch_mcast.stats(group) for group in groups]
    assert {row["path"] for row in stats} == {expected_path()}
    engine = [n for n in _threads() if n.startswith("mcast-lane")]
    for group in groups:
        dist.barrier(group=group)
    link.say("made", seconds=made, lanes=len(engine), threads=before)
    dist.destroy_process_group()


def _threads() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names


def strings(link: Any) -> None:
    """Tests backend strings and the debug wrapper."""
    cpu = torch.device("cpu")
    for i, text in enumerate(["cpu:mcast", "cpu:mcast,cuda:mcast", "MCAST", "cpu:gloo,cuda:mcast"]):
        dist.init_process_group(
            text, store=dist.FileStore(str(link.folder / f"s{i}"), link.world), rank=link.rank,
            world_size=link.world, timeout=timedelta(seconds=30),
        )  # fmt: skip
        world = dist.group.WORLD
        if text == "cpu:gloo,cuda:mcast":
            assert world._get_backend(cpu).name() == "gloo"
            assert world._get_backend(torch.device("cuda")).name() == "mcast"
            assert group_backend()._stats()["path"] == expected_path()
            output = torch.zeros(link.world)
            dist.all_gather_into_tensor(output, torch.ones(1))
            dist.barrier()
        else:
            assert world._get_backend(cpu).name() == "mcast"
            all_good()
        dist.destroy_process_group()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    join(link)
    assert type(dist.group.WORLD._get_backend(cpu)).__name__ == "_ProcessGroupWrapper"
    all_good()
    # The wrapper finds the difference before the call reaches the engine.
    size = 4 + link.rank
    caught(link, lambda: dist.broadcast(torch.zeros(size), 0))
    dist.destroy_process_group()
    link.say("good")
