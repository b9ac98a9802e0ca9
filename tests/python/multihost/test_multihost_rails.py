"""Hosts with equally many ranks: large broadcasts and all-gathers are received once per host,
whatever happens meanwhile. (test_multihost_hosts.py counts the bytes on the wire.)"""

import subprocess
import sys
import time
from pathlib import Path

import fake_device
import programs
import pytest
import torch
import torch.distributed as dist
from contents import compare
from named_errors import by_rank, check_error
from test_multihost_failures import (
    LIMIT,
    SIZE,
    named_when_killed,
    others,
    raised_by,
    running,
    survives,
)

import torch_mcast
from torch_mcast.lab import Loss

all_tier = pytest.mark.all_tier


def counted(ctx, op, size):
    programs.join(ctx)
    dist.barrier()
    before = torch_mcast.stats()["counters"]
    if op == "all_gather":
        programs.all_gather(size // ctx.world_size, 1)
    else:
        programs.broadcast(size, 1, 1)
    dist.barrier()
    stats = torch_mcast.stats()
    return stats, {name: n - before[name] for name, n in stats["counters"].items()}


@pytest.mark.parametrize("op", ["all_gather", "broadcast"])
def test_a_stream_is_received_once_per_host(hosts, op):
    size = 8 << 20
    results = hosts(2, 2).run(counted, op, size)
    for stats, _ in results:
        assert stats["streams"] == "one rank per host (2)"
        assert stats["path"] == "multicast" and not stats["failure"]
    chunk = results[0][0]["chunk"]
    got = [counts["chunks_placed"] * chunk for _, counts in results]
    copied = [counts["shm_slot_bytes"] for _, counts in results]
    if op == "all_gather":
        # Each rank receives a quarter over the network, and passes it and its own quarter to its
        # neighbour.
        assert all(0.25 * size <= bytes <= 0.26 * size for bytes in got), got
        assert all(bytes == size // 2 for bytes in copied), copied
    else:
        # Each rank of the other host receives a half and passes it on; on the root's host all of it
        # comes from the root.
        assert got[0] == got[1] == 0
        assert all(0.5 * size <= bytes <= 0.51 * size for bytes in got[2:]), got
        assert copied[0] == 0 and copied[1] == size and sum(copied[2:]) == size, copied
    assert all(counts["ops_posted"] == 2 for _, counts in results)  # including the barrier


def test_small_ones_go_straight(hosts):
    for stats, counts in hosts(2, 2).run(counted, "all_gather", 1 << 20):
        assert stats["streams"] == "one rank per host (2)"
        assert counts["shm_slot_bytes"] == 0


ROOTS = [None, 0, pytest.param(3, marks=all_tier)]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=all_tier)])
def test_a_killed_neighbour_is_named(hosts, victim, root):
    named_when_killed(hosts(2, 2), victim, root)


def test_a_stopped_neighbour_is_named(hosts):
    cluster = hosts(2, 2)
    call = running(cluster, SIZE, LIMIT)
    cluster.pool.stop(3)
    raised_by(call, others(cluster, 3), 3)
    cluster.pool.resume(3)
    assert all(outcome.state == "error" for outcome in call.outcomes(60))


def test_a_neighbour_that_stops_for_a_while_survives(hosts):
    cluster = hosts(2, 2)
    call = running(cluster, SIZE)
    cluster.pool.stop(3)
    time.sleep(3.0)  # the length of the fault
    cluster.pool.resume(3)
    survives(call)


@pytest.mark.parametrize("mode, loss", [("flood", "1%"), ("blocked", "0%")])
def test_losses_and_blocked_multicast(hosts, mode, loss):
    cluster = hosts(2, 2)
    cluster.lab.set_multicast(mode)
    if loss != "0%":
        cluster.lab.set_faults(Loss(loss))
    try:
        stats = cluster.run(programs.rounds, SIZE, 3)
    finally:
        cluster.lab.set_multicast("flood")
        cluster.lab.set_faults()
    for row in stats:
        assert row["path"] == ("multicast" if mode == "flood" else "ring") and not row["failure"]
    if loss != "0%":
        assert sum(row["counters"]["repair_chunks_received"] for row in stats) > 0
        assert any(
            row["repairs"][peer]["received_bytes"] for row in stats for peer in row["repairs"]
        )


def disagrees(ctx, what):
    """Rank 3 makes another call than the others, or none. Reports the errors of all."""
    programs.join(ctx, 8.0 if what == "late" else 30.0)
    block = torch.zeros(SIZE, dtype=torch.uint8)
    text = ""
    try:
        dist.barrier()  # the abort may arrive in it
        if what == "late" and ctx.rank == 3:
            ctx.wait("go", timeout_s=60)
        if what == "abort" and ctx.rank == 3:
            torch_mcast.abort()
        if what == "size" and ctx.rank == 3:
            block = block[: SIZE // 2]
        if what == "op" and ctx.rank == 3:
            dist.broadcast(torch.zeros(4 * SIZE, dtype=torch.uint8), 0)
        else:
            dist.all_gather_into_tensor(torch.zeros(4 * len(block), dtype=torch.uint8), block)
    except dist.DistBackendError as error:
        text = str(error)
    ctx.notify("over", text)


CALLS = {
    "size": ("operation_differs", {"sequence": 1}),
    "op": ("operation_differs", {"sequence": 1}),
    "late": ("ranks_late", {"ranks": 3}),
    "abort": ("aborted", {"rank": 3, "reason": "abort() on rank 3"}),
}
CALLS_OF_3 = {"size": f"all_gather_into_tensor({SIZE // 2} bytes", "op": "broadcast("}


@pytest.mark.parametrize("what", CALLS)
def test_calls_that_differ_fail_on_all(hosts, what):
    cluster = hosts(2, 2)
    call = cluster.start(disagrees, what)
    told = call.wait("over", [0, 1, 2], 60)
    call.signal("go")
    call.results(60)
    name, fields = CALLS[what]
    for text in told:
        found = check_error(text, name, **fields)
        if what in CALLS_OF_3:
            assert by_rank(found, "call")[3].startswith(CALLS_OF_3[what]), text
        assert ("passed its time limit of 8.0 s: " in text) == (what == "late"), text


def leaves_in_flight(ctx):
    """Destroys a group while its operations are running, repeatedly."""
    programs.join(ctx)
    for salt in range(3):
        group = dist.new_group()
        outputs = torch.zeros(4 * SIZE, dtype=torch.uint8)
        work = dist.all_gather_into_tensor(
            outputs, programs.pattern(SIZE, ctx.rank, salt), group=group, async_op=True
        )
        if salt == 1:
            work.wait()
        dist.destroy_process_group(group)
        if salt == 1:
            compare(outputs[:SIZE], programs.pattern(SIZE, 0, salt), salt)
        dist.barrier()
    programs.all_gather(SIZE, 9)
    return torch_mcast.stats()["failure"]


def test_groups_come_and_go(hosts):
    assert hosts(2, 2).run(leaves_in_flight) == [""] * 4


def on_devices(ctx, folder, library, gate):
    sys.path.insert(0, folder)
    import fake_device

    fake_device.load(library, gate)
    dist.distributed_c10d._world.group_count = 0
    ctx.init_process_group(
        "cpu:mcast,fake:mcast", 60.0, pg_options=torch_mcast.Options(segment=65536)
    )
    rank, world = ctx.rank, ctx.world_size
    for salt in range(2):
        output = torch.zeros(SIZE * world, dtype=torch.uint8).to("fake")
        dist.all_gather_into_tensor(output, programs.pattern(SIZE, rank, salt).to("fake"))
        for r in range(world):
            compare(output.cpu()[r * SIZE : (r + 1) * SIZE], programs.pattern(SIZE, r, salt), r)
        for root in range(world):
            whole = programs.pattern(SIZE + 13, root, salt)
            tensor = (whole if rank == root else torch.zeros_like(whole)).to("fake")
            dist.broadcast(tensor, root)
            compare(tensor.cpu(), whole, f"broadcast from {root}")
    return torch_mcast.stats()["streams"]


@pytest.mark.parametrize("gate", [True, False], ids=["gate", "host"])
def test_device_tensors(hosts, gate):
    folder = str(Path(fake_device.__file__).parents[1])
    # A separate lab: its processes have an accelerator from now on.
    cluster = hosts(2, 2, rate="900mbit")
    streams = cluster.run(on_devices, folder, fake_device.library(), gate)
    assert set(streams) == {"one rank per host (2)"}


NEVER_DESTROYED = """
import torch, torch.distributed as dist, torch_mcast
dist.init_process_group("mcast")
for _ in range(2):
    group = dist.new_group()
    dist.all_gather_into_tensor(torch.empty(8 << 20), torch.zeros(2 << 20), group=group)
print("over", torch_mcast.stats()["streams"], flush=True)
"""


def test_scripts_that_end_without_destroying(lab_rights, tmp_path, monkeypatch):
    """No thread drives the groups while they are closed: a rank that waited for its operations to
    be confirmed would wait for an hour."""
    monkeypatch.setenv("MCAST_LINGER", "3600000")
    script = tmp_path / "script.py"
    script.write_text(NEVER_DESTROYED)
    command = [sys.executable, "-m", "torch_mcast", "lab", "run", "--hosts", "2"]
    command += ["--ranks-per-host", "2", "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("over one rank per host") == 4, done.stdout
