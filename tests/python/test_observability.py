"""Operations in torch's own tools: record_param_comms, the flight recorder, durations, completion hooks."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from limits import limit
from named_errors import raises_error
from ranks import Pool
from torch.distributed import distributed_c10d
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.loader import read_dir
from waiting import until

import torch_mcast
from torch_mcast import _trace


def profiled(path: str) -> dict[str, list[dict[str, Any]]]:
    world = dist.get_world_size()
    part, whole = torch.ones(5), torch.ones(5 * world, dtype=torch.float32)
    odd = dist.new_group([0, 2], group_desc="odd")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(part)
        dist.all_reduce(torch.ones(7, dtype=torch.int32))
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.barrier()
        dist.all_to_all_single(torch.zeros(world), torch.zeros(world))
        if dist.get_rank() != 1:
            dist.broadcast(part, 0, group=odd)
    if dist.get_rank() != 2:
        return {}
    profile.export_chrome_trace(path)
    events = json.loads(Path(path).read_text())["traceEvents"]
    events = [e for e in events if e.get("name") == "record_param_comms"]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_name.setdefault(event["args"]["Collective name"], []).append(event["args"])
    return by_name


def test_profiler_events_have_sizes_and_groups(ranks, tmp_path):
    seen = ranks(3, profiled, str(tmp_path / "trace.json"))[2]
    first, second = seen["allreduce"]
    assert (first["In msg nelems"], first["dtype"]) == (5, "Float")
    assert (second["In msg nelems"], second["dtype"]) == (7, "Int")
    (gather,) = seen["_allgather_base"]
    assert (gather["In msg nelems"], gather["Out msg nelems"], gather["Group size"]) == (5, 15, 3)
    (scatter,) = seen["_reduce_scatter_base"]
    assert (scatter["In msg nelems"], scatter["Out msg nelems"]) == (15, 5)
    assert gather["Process Group Description"] == "default_pg"
    assert (gather["Global rank start"], gather["Global rank stride"]) == (0, 1)
    (sub,) = seen["broadcast"]
    assert sub["Process Group Description"] == "odd" and sub["Group size"] == 2
    assert (sub["Global rank start"], sub["Global rank stride"]) == (0, 2)
    assert len(seen["barrier"]) == 1 and seen["all_to_all"][0]["In msg nelems"] == 3


def durations() -> None:
    store = distributed_c10d._get_default_store()
    tensor = torch.ones(3)
    if dist.get_rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(RuntimeError, match="the duration is known when the operation is over"):
            work._get_duration()
        store.set("posted", "1")
    else:
        store.wait(["posted"])
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert 0 < work._get_duration() < 60_000
    for call in (
        lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2), async_op=True),
        lambda: dist.all_reduce(torch.ones(2).to_sparse(), async_op=True),  # the fallback's
    ):
        work = call()
        work.wait()
        assert 0 <= work._get_duration() < 60_000


def test_durations(ranks):
    ranks(2, durations)


def hooked() -> None:
    told: list[Any] = []
    changed = threading.Condition()

    def hook(info: Any) -> None:
        with changed:
            told.append((info.op_type, info.seq, info.active_duration))
            changed.notify_all()

    group = dist.new_group()
    assert not group._has_hooks()
    group._register_on_completion_hook(hook)
    assert group._has_hooks()
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(3)]
    works.append(dist.all_reduce(torch.ones(2).to_sparse(), group=group, async_op=True))
    works.append(dist.broadcast(torch.ones(2), 0, group=group, async_op=True))
    works.append(dist.all_to_all_single(torch.zeros(2), torch.ones(2), group=group, async_op=True))
    group._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    assert sorted(sequence for _, sequence, _ in told) == [1, 2, 3, 4, 5, 6]
    assert [str(kind) for kind, sequence, _ in told if sequence == 1] == ["OpType.ALLREDUCE"]
    assert all(duration >= timedelta(0) for _, _, duration in told)
    with pytest.raises(RuntimeError, match="has a completion hook already"):
        group._register_on_completion_hook(hook)
    dist.destroy_process_group(group)


def test_completion_hooks(ranks):
    ranks(2, hooked)


def recorded() -> dict[str, Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    before = max((e["record_id"] for e in torch_mcast.flight_recorder()["entries"]), default=-1)
    dist.all_reduce(torch.ones(5))
    dist.all_gather_into_tensor(torch.zeros(4 * world), torch.ones(4))
    if rank == 0:
        dist.send(torch.ones(3), 1)
    elif rank == 1:
        dist.recv(torch.zeros(3), 0)
    dist.barrier()
    last = dist.all_reduce(torch.ones(2), async_op=True) if rank == 0 else None
    dump = torch_mcast.flight_recorder()
    store = distributed_c10d._get_default_store()
    if rank == 0:
        store.set("seen", "1")
    else:
        store.wait(["seen"])
    if rank != 0:
        dist.all_reduce(torch.ones(2))
    else:
        last.wait()
    group = dist.group.WORLD.group_name
    entries = [e for e in dump["entries"] if e["record_id"] > before]
    assert all(e["process_group"] == (group, "default_pg") for e in entries)
    return {"config": dump["pg_config"][group], "entries": entries}


def test_flight_recorder(pool):
    dumps = pool.run(2, recorded)
    for rank, dump in enumerate(dumps):
        assert dump["config"]["desc"] == "default_pg" and dump["config"]["ranks"] == "[0, 1]"
        names = [e["profiling_name"] for e in dump["entries"]]
        p2p = ["gloo:send 0->1", "gloo:recv 1<-0"][rank]
        assert names[:4] == ["gloo:all_reduce", "gloo:_all_gather_base", p2p, "gloo:barrier"]
        reduce = dump["entries"][names.index("gloo:all_reduce")]
        assert reduce["input_sizes"] == [[5]] and reduce["input_dtypes"] == ["Float"]
        assert reduce["state"] == "completed" and reduce["retired"] and reduce["duration_ms"] >= 0
        assert dump["entries"][2]["is_p2p"]
    last = dumps[0]["entries"][-1]  # on rank 0, before the other has called it
    assert last["profiling_name"] == "gloo:all_reduce"
    assert (last["state"], last["retired"]) == ("started", False) and "duration_ms" not in last


def recorded_last() -> list[int]:
    for size in range(5):
        dist.all_reduce(torch.ones(size))
    return [entry["input_sizes"][0][0] for entry in torch_mcast.flight_recorder()["entries"]]


def test_the_flight_recorder_keeps_as_many_as_it_was_told():
    workers = Pool({"TORCH_FR_BUFFER_SIZE": "3"})
    try:
        assert workers.run(1, recorded_last) == [[2, 3, 4]]
    finally:
        workers.close()


def analysed(folder: Path):
    """Returns the result of torch's analyser for the files of all ranks."""
    details, version = read_dir(argparse.Namespace(prefix="trace_rank_", trace_dir=str(folder)))
    asked = argparse.Namespace(
        trace_dir=str(folder), just_print_entries=False, verbose=False, mismatch_cap=10,
        print_stack_trace=False, allow_incomplete_ranks=False, transform_ft=False,
    )  # fmt: skip
    return build_db(details, asked, version)


def every_kind(folder: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    one, all_ones = torch.ones(1), [torch.ones(1) for _ in range(world)]
    flat = torch.ones(world)
    dist.all_reduce(one)
    if rank == 0:  # the first message after the first collective
        dist.send(one, 1)
    elif rank == 1:
        dist.recv(one)
        last = torch_mcast.flight_recorder()["entries"][-1]
        assert last["profiling_name"] == "gloo:recv 1<-0", last
    dist.all_gather(all_ones, one)
    dist.all_gather_into_tensor(flat, one)
    dist.reduce_scatter(one, all_ones)
    dist.reduce_scatter_tensor(one, flat)
    dist.broadcast(one, 0)
    dist.reduce(one, 0)
    dist.gather(one, all_ones if rank == 0 else None, 0)
    dist.scatter(one, all_ones if rank == 0 else None, 0)
    dist.all_to_all([torch.ones(1) for _ in range(world)], all_ones)
    dist.all_to_all_single(torch.ones(world), flat)
    if rank < 2:
        batch = [dist.P2POp(dist.isend, one, 1 - rank), dist.P2POp(dist.irecv, flat[:1], 1 - rank)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    with dist._coalescing_manager():
        dist.all_reduce(one)
        dist.all_reduce(flat)
    dist.barrier()
    entries = torch_mcast.flight_recorder()["entries"]
    numbers = [entry["op_id"] for entry in entries]
    assert numbers == sorted(set(numbers)), numbers
    for entry in entries:  # the innermost frame first
        names = [frame["name"] for frame in entry["frames"]]
        assert "every_kind" in names and names.index("every_kind") > 0, entry
        [here] = [frame for frame in entry["frames"] if frame["name"] == "every_kind"]
        assert here["filename"] == __file__, here
    gather, scatter = (
        next(frame["line"] for frame in entry["frames"] if frame["name"] == "every_kind")
        for name in ("gloo:gather", "gloo:scatter")
        for entry in entries
        if entry["profiling_name"] == name
    )
    assert scatter == gather + 1
    messages = [entry for entry in entries if entry["is_p2p"]]
    assert len({entry["p2p_seq_id"] for entry in messages}) == len(messages) == [3, 3, 0][rank]
    assert not {e["p2p_seq_id"] for e in messages} & {e["collective_seq_id"] for e in entries}
    torch_mcast.dump_flight_recorder(f"{folder}/trace_rank_{rank}")


@pytest.mark.parametrize("world", [2, 3])
def test_torchs_analyser_reads_every_kind_of_operation(tmp_path, world):
    workers = Pool()  # whose recorders are empty
    try:
        workers.run(world, every_kind, str(tmp_path))
    finally:
        workers.close()
    names = {call.collective_type for call in analysed(tmp_path).ncclcalls}
    assert {"gloo:all_reduce", "gloo:all_to_all", "gloo:barrier"} <= names, names
    assert any(name.split(" ")[0] in ("gloo:send", "gloo:recv") for name in names), names


def left_behind(folder: str) -> None:
    """Rank 1 does not make the call: after the timeout all ranks write their record, rank 1 too."""
    rank = dist.get_rank()
    os.environ.update(TORCH_FR_DUMP_ON_TIMEOUT="1", TORCH_FR_DUMP_TEMP_FILE=f"{folder}/trace_rank_")
    group = limit(2, dist.new_group())
    dist.all_reduce(torch.ones(5), group=group)
    if rank != 1:
        with raises_error(dist.DistBackendError, "ranks_late", ranks=1):
            dist.all_reduce(torch.ones(9), group=group)
        last = torch_mcast.flight_recorder()["entries"][-1]
        assert (last["state"], last["retired"]) == ("started", True)
    until(Path(f"{folder}/trace_rank_{rank}").exists, "the recorder's file")
    dist.barrier()


def test_the_recorder_shows_the_call_of_each_rank_after_a_timeout(tmp_path):
    workers = Pool()  # whose recorders are empty
    try:
        workers.run(3, left_behind, str(tmp_path))
    finally:
        workers.close()
    database = analysed(tmp_path)
    reduces = [c for c in database.collectives if c.collective_name == "gloo:all_reduce"]
    assert [c.input_sizes for c in reduces] == [[[5]], [[9]]]
    assert not reduces[0].missing_ranks and reduces[1].missing_ranks == {1}
    # Torch's report of a hang contains the place of the call in the program.
    assert "left_behind" in {frame["name"] for frame in reduces[1].collective_frames}


def disagreeing(folder: str) -> None:
    rank = dist.get_rank()
    os.environ.update(TORCH_FR_DUMP_ON_TIMEOUT="1", TORCH_FR_DUMP_TEMP_FILE=f"{folder}/trace_rank_")
    group = dist.new_group()
    with pytest.raises(dist.DistBackendError):
        dist.all_reduce(torch.ones(5 + rank), group=group)
    until(Path(f"{folder}/trace_rank_{rank}").exists, "the recorder's file")
    dist.barrier()


def test_all_ranks_write_what_they_know_after_a_mismatch(tmp_path):
    workers = Pool()
    try:
        workers.run(3, disagreeing, str(tmp_path))
    finally:
        workers.close()
    reduces = [c for c in analysed(tmp_path).collectives if c.collective_name == "gloo:all_reduce"]
    assert reduces and reduces[-1].mismatch_collectives, reduces


def test_a_trace_of_an_operation_that_failed_in_the_midst(tmp_path, monkeypatch):
    op = {
        "name": "all_gather", "group": "0", "rank": 1, "sequence": 3, "bytes": 8, "ok": False,
        "lane": "multicast", "posted": 1000, "first_byte": 3000, "last_byte": None, "done": 9000,
    }  # fmt: skip
    monkeypatch.setattr(_trace, "trace", lambda: [op])
    torch_mcast.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = {event["name"]: event["dur"] for event in events if event["ph"] == "X"}
    assert spans == {"mcast:all_gather": 8.0, "data": 6.0}
    # Microseconds of the wall clock, to a second.
    begun = {event["name"]: event["ts"] for event in events if event["ph"] == "X"}
    boot = time.time_ns() - time.monotonic_ns()
    assert begun["mcast:all_gather"] == pytest.approx((boot + 1000) / 1e3, abs=1e6)
    assert begun["data"] - begun["mcast:all_gather"] == pytest.approx(2, abs=0.5)
