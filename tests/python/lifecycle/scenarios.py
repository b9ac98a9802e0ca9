"""Functions that ranks run in the tests of this folder (started by rank_process.py, controlled by job.py)."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import Any

import moved_clock
import torch
import torch.distributed as dist
from waiting import until

import torch_mcast
from torch_mcast._stats import backend_of

BLOCK = 4 << 20  # bytes per rank: many windows, never finished within a few milliseconds
# One chunk of every stream is lost by multicast and by repair: an operation proceeds to its last
# chunk and stays there, on all ranks.
HOLE = "drop:type=data,chunk=3;drop:type=fetch_data"


def tcp_store(link: Any) -> Any:
    """Returns a store that rank 0 serves; it writes the port to a file."""
    port = link.folder / "port"
    if link.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, link.world, is_master=True, wait_for_workers=False)
        (link.folder / "port.new").write_text(str(store.port))
        (link.folder / "port.new").rename(port)
        return store
    until(port.exists, "the store's port")
    return dist.TCPStore("127.0.0.1", int(port.read_text()), link.world, is_master=False)


def join(
    link: Any, timeout_s: float = 60, incarnation: str = "", store: Any = None, backend: str = "mcast",
    **options: Any,
) -> None:  # fmt: skip
    moved_clock.use()
    path = str(link.folder / f"store{incarnation}")
    dist.init_process_group(
        backend,
        store=dist.FileStore(path, link.world) if store is None else store,
        rank=link.rank,
        world_size=link.world,
        timeout=timedelta(seconds=timeout_s),
        pg_options=torch_mcast.Options(**options) if backend == "mcast" else None,
    )


def group_backend() -> Any:
    return backend_of()


def post(op: str, size: int = BLOCK, **more: Any) -> Any:
    """Posts an operation of about `size` bytes per rank. Returns the Work."""
    world = dist.get_world_size()
    if op == "broadcast":
        return dist.broadcast(torch.zeros(size, dtype=torch.uint8), 0, async_op=True, **more)
    if op == "barrier":
        return dist.barrier(async_op=True, **more)
    mine = torch.zeros(size, dtype=torch.uint8)
    if op == "all_gather":
        return dist.all_gather(
            [torch.zeros_like(mine) for _ in range(world)], mine, async_op=True, **more
        )
    if op == "all_gather_into_tensor":
        return dist.all_gather_into_tensor(
            torch.zeros(size * world, dtype=torch.uint8), mine, async_op=True, **more
        )
    assert op == "all_gather_into_tensor_coalesced"
    inputs = [mine[: size // 4], mine[size // 4 :]]
    outputs = [torch.zeros(len(i) * world, dtype=torch.uint8) for i in inputs]
    return dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs)


OPS = ["broadcast", "all_gather", "all_gather_into_tensor_coalesced", "barrier"]


def caught(link: Any, call: Any, event: str = "error") -> None:
    """Reports the error that `call` raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test checks it
        link.say(event, kind=type(error).__name__, text=str(error))
    else:
        link.say("no error where there should be one")


def leave_poisoned(link: Any, op: str) -> None:
    """Checks that later calls raise at once; then destroys the group, and the process ends normally."""
    caught(link, lambda: post(op), "again")
    dist.destroy_process_group()
    link.say("destroyed")


def struck(link: Any, victim: int, op: str, phase: str, options: dict[str, Any]) -> None:
    """One rank gets a signal in `phase`; all report their error.

    before   no rank has posted; the survivors post on an order
    middle   all have posted a large operation, of which most data has been sent
    waiting  the others have posted and wait, the victim has not
    """
    hole = {"faults": HOLE} if phase == "middle" and op != "barrier" else {}
    join(link, **hole, **options)
    dist.barrier()
    work = None
    if phase == "waiting" and link.rank != victim:
        work = post(op)
    if phase == "middle":
        work = post(op) if op != "barrier" or link.rank != victim else None
        if op != "barrier":
            # The hole has been found and repairs are being refused: everything else has been sent.
            root = op == "broadcast" and link.rank == 0
            counter = "fetches_received" if root else "fetches_sent"
            until(lambda: torch_mcast.stats()["counters"][counter] > 0, counter)
    link.say("ready")
    link.hear("go")
    caught(link, lambda: (work or post(op)).wait())
    leave_poisoned(link, op)


def struck_in_creation(link: Any, victim: int, phase: str) -> None:
    """One rank gets a signal while the group is created: before it has published its address, or
    after all have, when probes are lost."""
    store = dist.FileStore(str(link.folder / "store"), link.world)
    options = {"liveness_limit": 3000, "faults": "drop:type=probe", "probe_timeout": 600_000}

    def watch() -> None:
        store.wait([f"0//cpu//mcast/1/rank/{r}" for r in range(link.world)])
        link.say("ready")

    if link.rank == victim and phase == "rendezvous":
        link.say("ready")
        link.hear("go")
    elif link.rank == victim:
        threading.Thread(target=watch, daemon=True).start()
    timeout_s = 2 if phase == "rendezvous" else 6
    caught(link, lambda: join(link, timeout_s, store=store, **options))
    if link.rank == victim and phase == "probe":
        link.hear("go")  # continues here after SIGSTOP
    link.hear("end")


def expected_path() -> str:
    return "multicast" if os.environ["MCAST_SHARED_MEMORY"] == "off" else "shared memory"


def interrupted(link: Any, rounds: int) -> None:
    """Runs operations on both lanes under a timer's signal, 1000 times a second, as with a profiler."""
    handled = 0

    def handler(*_: Any) -> None:
        nonlocal handled
        handled += 1

    join(link)
    signal.signal(signal.SIGALRM, handler)  # Python's handlers interrupt system calls
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    for i in range(rounds):
        count = 200_000 if i % 50 == 0 else 100
        mine = torch.full((count,), link.rank + i)
        total, everybody = mine.clone(), torch.empty(count * link.world, dtype=mine.dtype)
        dist.all_reduce(total)
        dist.all_gather_into_tensor(everybody, mine)
        ranks = torch.arange(link.world)
        assert bool((total == link.world * i + ranks.sum()).all())
        assert bool((everybody.view(link.world, count) == (ranks + i).unsqueeze(1)).all())
    dist.barrier()
    signal.setitimer(signal.ITIMER_REAL, 0)
    dist.destroy_process_group()
    link.say("good", handled=handled)


def paused(link: Any, op: str) -> None:
    """Rank 1 is stopped inside the operation until the others have sent pings."""
    join(link, liveness_limit=20_000)
    dist.barrier()
    work = None if link.rank == 1 else post(op)
    if link.rank == 1 and op != "barrier":
        work = post(op)  # stopped before its end, or just after it
    link.say("posted")
    link.hear("go")
    if link.rank != 1:
        before = torch_mcast.stats()["counters"]["pings_sent"]
        last = dist.barrier(async_op=True)
        if 1 in ((link.rank + 1) % link.world, (link.rank - 1) % link.world):
            until(lambda: torch_mcast.stats()["counters"]["pings_sent"] > before, "pings")
        link.say("pings sent")
    else:
        work = work or post(op)
        last = dist.barrier(async_op=True)
    work.wait()
    last.wait()
    assert torch_mcast.stats()["failure"] == ""
    dist.destroy_process_group()
    link.say("good")
