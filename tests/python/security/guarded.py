"""Functions that ranks of a guarded job run in a lab, with a lab Context as first argument. Every
rank knows the data of every other one, so results are compared in full; digests are compared
between modes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import threading
import time
import warnings
from datetime import timedelta

import launch
import torch
import torch.distributed as dist
from attackers import _sender, forged, pattern, since, targets
from contents import compare
from passing_store import PassingStore

import torch_mcast

PRELOAD = (*launch.MODULES, "attackers", "guarded")
MODES = ("off", "auth", "sealed")


def join(ctx, options: dict, world: int = 0) -> None:
    """`world`: ranks of the job, if the lab has one host more."""
    ctx.world_size = world or ctx.world_size
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group("mcast", 60.0, pg_options=torch_mcast.Options(**options))


def _sizes(rng: random.Random) -> int:
    """Returns numbers of elements: a few, some for small operations, some for many datagrams."""
    return rng.choice([1, 7, 300, 1000, 4097, 60_000, 400_000])


def _one(rng: random.Random, salt: int) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    n, kind = _sizes(rng), rng.choice(["all_gather", "broadcast", "scatter", "reduce", "pair"])
    inputs = [(torch.arange(n, dtype=torch.float32) * (r + 1.1) + salt).sin() for r in range(world)]
    if kind == "all_gather":
        output = torch.zeros(world * n)
        dist.all_gather_into_tensor(output, inputs[rank])
        assert torch.equal(output, torch.cat(inputs))
        return output
    if kind == "broadcast":
        root = rng.randrange(world)
        output = inputs[root].clone() if rank == root else torch.zeros(n)
        dist.broadcast(output, root)
        assert torch.equal(output, inputs[root])
        return output
    if kind == "scatter":
        output = torch.zeros(n)
        dist.reduce_scatter_tensor(output, torch.cat([inputs[rank]] * world))
        return output
    if kind == "reduce":
        output = inputs[rank].clone()
        dist.all_reduce(output, rng.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX]))
        return output
    # Both lanes at once.
    gathered, summed = torch.zeros(world * n), inputs[rank].clone()
    works = [
        dist.all_gather_into_tensor(gathered, inputs[rank], async_op=True),
        dist.all_reduce(summed, async_op=True),
    ]
    for work in works:
        work.wait()
    assert torch.equal(gathered, torch.cat(inputs))
    return summed


ELEMENTS = 1 << 22  # fewer elements are not worth one aggregator


def _served_as_far_as_told(before: dict, stats: dict) -> bool:
    """Returns on all ranks alike whether every aggregator has replied to rank 0, and the admitted
    ones have folded."""
    states = [row["state"] for row in stats["aggregators"]]
    folded = stats["counters"]["agg_results"] - before["agg_results"]
    seen = torch.tensor(
        [int(bool(states) and "asking" not in states), "admitted" in states, folded]
    )
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    answered, admitted, anything = seen.tolist()
    return answered and (anything or not admitted)


def aggregated(ctx, options: dict, held: bool = False) -> dict:
    """Runs all-reduces of exact sums until all aggregators have replied, and two more that the
    admitted ones have folded. `held`: the job exists from "aggregated" until "looked"."""
    join(ctx, options)
    world = dist.get_world_size()
    salt, folded, until = 0, 0, time.monotonic() + 60
    while folded < 3:
        before = torch_mcast.stats()["counters"]
        tensor = torch.arange(ELEMENTS, dtype=torch.float32) % 1000 + dist.get_rank() + salt
        dist.all_reduce(tensor)
        want = (torch.arange(ELEMENTS, dtype=torch.float32) % 1000 + salt) * world
        assert torch.equal(tensor, want + world * (world - 1) / 2)
        stats, salt = torch_mcast.stats(), salt + 1
        folded += _served_as_far_as_told(before, stats)
        assert time.monotonic() < until, stats["aggregators"]
    stats = {**torch_mcast.stats(), "rounds": salt}
    dist.barrier()  # the stations of rank 0's group end with it, and would count as lost
    if held:
        ctx.notify("aggregated")
        ctx.wait("looked")
    return stats


def collectives(ctx, options: dict, seed: int, count: int, world: int = 0) -> dict | None:
    """Runs the same series in each mode, on the whole group and on a part of it."""
    if world and ctx.rank >= world:
        return None
    join(ctx, options, world)
    rng, digest = random.Random(seed), hashlib.sha256()
    part = dist.new_group(
        list(range(dist.get_world_size() - 1)), pg_options=torch_mcast.Options(**options)
    )
    for salt in range(count):
        digest.update(_one(rng, salt).numpy().tobytes())
    if dist.get_rank() < dist.get_world_size() - 1:
        total = torch.full((5000,), float(dist.get_rank()))
        dist.all_reduce(total, group=part)
        assert torch.equal(total, torch.full((5000,), sum(range(dist.get_world_size() - 1)) * 1.0))
    dist.barrier()
    stats = torch_mcast.stats()
    dist.destroy_process_group()
    return {"digest": digest.hexdigest(), "stats": stats}


def fallen_back(ctx, options: dict, world: int) -> dict | None:
    """Makes a call that the engine does not serve. Returns its error, or its result."""
    if ctx.rank >= world:
        return None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        join(ctx, options, world)
        rank, error = dist.get_rank(), ""
        tensor = torch.full((1000,), rank + 1.0)
        try:
            for _ in range(2):
                total = tensor.to_sparse()
                dist.all_reduce(total)
                tensor = total.to_dense()
        except NotImplementedError as why:
            error = str(why)
    stats = torch_mcast.stats()
    dist.destroy_process_group()
    texts = [str(row.message) for row in told]
    return {"error": error, "warnings": texts, "sum": float(tensor.sum()), "stats": stats}


def sent(ctx, options: dict, world: int) -> dict | None:
    """Sends a tensor from rank 0 to rank 1."""
    if ctx.rank >= world:
        return None
    join(ctx, options, world)
    rank = dist.get_rank()
    tensor = torch.full((100_000,), rank + 1.0)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)
    dist.barrier()
    stats = torch_mcast.stats()
    dist.destroy_process_group()
    return {"sum": float(tensor.sum()), "stats": stats}


def trained(ctx, options: dict) -> dict | None:
    import test_training

    join(ctx, options)
    parameters = test_training.fsdp2("fp32", None)
    stats = torch_mcast.stats()
    dist.destroy_process_group()
    return {"parameters": parameters, "stats": stats}


class Tampered(PassingStore):
    """A store that an attacker can write to: rank 1's record is changed on the way."""

    def __init__(self, real: dist.Store, how: str) -> None:
        super().__init__(real)
        self.how = how

    def set(self, key: str, value: bytes) -> None:
        text = bytes(value)
        if key.endswith("rank/1"):
            changed = {
                "address": text.replace(b"\nexternal=10.", b"\nexternal=99."),
                "another key": text.replace(b"\nx25519=", b"\nx25519=0", 1)[: len(text)],
                "stripped": text.split(b"security=")[0],
                "mode": text.replace(b"\nsecurity=sealed", b"\nsecurity=auth"),
            }[self.how]
            assert changed != text
            text = changed
        super().set(key, text)


class Noted(PassingStore):
    """A store that records everything that is written to it."""

    def __init__(self, real: dist.Store) -> None:
        super().__init__(real)
        self.written: list[tuple[str, bytes]] = []

    def set(self, key: str, value: bytes) -> None:
        self.written.append((key, bytes(value)))
        super().set(key, value)


def noted(ctx, options: dict) -> dict:
    """Returns everything that this rank writes to the store while a job of several hosts and a part
    of it are created, and what it reports about itself. Rank 0 keeps the store until all have
    ended, as a launcher would."""
    host, port = ctx.init_method.removeprefix("tcp://").split(":")
    limit = timedelta(seconds=60)
    os.environ["MCAST_JOB"] = "noted"  # a store passed as an object does not tell its address
    store = Noted(dist.TCPStore(host, int(port), ctx.world_size, ctx.rank == 0, limit))
    dist.distributed_c10d._world.group_count = 0
    dist.init_process_group(
        "mcast", store=store, rank=ctx.rank, world_size=ctx.world_size,
        timeout=limit, pg_options=torch_mcast.Options(**options),
    )  # fmt: skip
    part = dist.new_group(
        list(range(ctx.world_size - 1)), pg_options=torch_mcast.Options(**options)
    )
    try:
        dist.new_group(list(range(ctx.world_size)))
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    os.environ["MCAST_SECURITY_MIXED"] = "1"
    mixed = torch.ones(10)
    dist.all_reduce(mixed, group=dist.new_group(list(range(ctx.world_size))))
    total = torch.ones(5000)
    dist.all_reduce(total)
    if ctx.rank < ctx.world_size - 1:
        dist.all_reduce(total, group=part)
    stats = torch_mcast.stats()
    says = [stats, torch_mcast.config(), torch_mcast.trace(), torch_mcast.metrics()]
    ctx.notify("ended")
    ctx.wait("all have ended")
    dist.destroy_process_group()
    return {
        "written": store.written,
        "says": json.dumps(says, default=str),
        "refused": refused,
        "mixed": float(mixed.sum()),
        "stats": stats,
        "sum": float(total.sum()),
    }


def creation(ctx, options: list[dict], how: str, world: int) -> dict | None:
    """Returns the result of a creation if ranks differ, or over a store that is `how` tampered
    with: the error's text and the time it took. Rank 0 keeps the store until all have ended, as a
    launcher would."""
    if ctx.rank >= world:
        return None
    host, port = ctx.init_method.removeprefix("tcp://").split(":")
    limit = timedelta(seconds=60)
    store = dist.TCPStore(host, int(port), world, ctx.rank == 0, limit)
    start = time.monotonic()
    try:
        dist.distributed_c10d._world.group_count = 0
        # a store passed as an object does not tell its address
        os.environ["MCAST_JOB"] = "tampered"
        dist.init_process_group(
            "mcast", store=Tampered(store, how) if how else store, rank=ctx.rank, world_size=world,
            timeout=limit, pg_options=torch_mcast.Options(**options[ctx.rank]),
        )  # fmt: skip
        error = ""
    except Exception as why:  # noqa: BLE001 - its text is the result
        error = str(why)
    after = time.monotonic() - start
    ctx.notify("ended")
    ctx.wait("all have ended")
    return {"error": error, "after": after}


class Recorder:
    """Records all packets of this host's interface, both ways, while it is open."""

    def __init__(self, interface: str) -> None:
        self.packets: list[bytes] = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
        self._socket.bind((interface, 0))
        self._socket.settimeout(0.05)
        self._open = True
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                self.packets.append(self._socket.recv(1 << 17))
            except TimeoutError:
                if not self._open:
                    return

    def close(self) -> list[bytes]:
        self._open = False
        self._thread.join()
        self._socket.close()
        return self.packets


def overheard(ctx, options: dict, interface: str, world: int) -> dict | None:
    """Searches the packets of this host's interface for sixteen bytes of the ranks' tensors, at any
    offset. Returns how many packets contain some, the number of packets, and of bytes."""
    if ctx.rank >= world:
        return None
    join(ctx, options, world)
    size = 48 << 10
    dist.barrier()
    recorder = Recorder(interface)
    tensors = [pattern(size, r, 9) for r in range(world)]
    output = torch.zeros(size * world, dtype=torch.uint8)
    dist.all_gather_into_tensor(output, tensors[ctx.rank])
    for r in range(world):
        compare(output[r * size : (r + 1) * size], tensors[r], f"from {r}")
    small = pattern(64, 0, 77)
    dist.broadcast(small, 0)
    scattered = torch.zeros(size // world // 8, dtype=torch.int64)
    words = tensors[ctx.rank].view(torch.int64)
    dist.reduce_scatter_tensor(scattered, words[: scattered.numel() * world].contiguous())
    dist.barrier()
    packets = recorder.close()
    stats = torch_mcast.stats()
    dist.destroy_process_group()
    known = set()
    for tensor in [*tensors, pattern(64, 0, 77), output]:
        data = tensor.numpy().tobytes()
        known.update(data[i : i + 16] for i in range(len(data) - 15))
    told = [p for p in packets if any(p[i : i + 16] in known for i in range(14, len(p) - 15))]
    return {
        "told": len(told),
        "packets": len(packets),
        "bytes": sum(len(p) for p in packets),
        "stats": stats,
    }


def chosen(ctx, choices: list[dict], *args) -> dict | None:
    """Runs collectives() with options of each rank's own."""
    return collectives(ctx, choices[ctx.rank], *args)


def jostled(ctx, options: dict) -> dict:
    """Returns a rank's counts while rank 0's host sends unencrypted datagrams, which anybody can
    make, to the job's addresses: until all ranks of the other host have counted some, for a limited
    time."""
    join(ctx, options)
    before, out = torch_mcast.stats()["security"], _sender()
    for _ in range(400):  # ends when all ranks of the other host have counted
        told = torch.zeros(dist.get_world_size())
        seen = since(torch_mcast.stats()["security"], before)
        told[ctx.rank] = seen["causes"]["downgraded"]
        dist.all_reduce(told)
        if told[dist.get_world_size() // 2 :].all():  # ranks of the other host
            break
        if ctx.rank == 0:
            for group in targets()["groups"]:
                out.sendto(forged(7, 1, 64), group)
        time.sleep(0.05)
    dist.barrier()
    metrics = torch_mcast.metrics()
    dist.destroy_process_group()
    return {"seen": seen, "metrics": metrics}
