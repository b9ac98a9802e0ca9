"""torch.profiler shows the operations of both lanes with their actual spans."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

OPS = {
    "mcast:broadcast": lambda big, part: dist.broadcast(big, 0, async_op=True),
    "mcast:all_gather": lambda big, part: dist.all_gather_into_tensor(big, part, async_op=True),
    "mcast:reduce_scatter": lambda big, part: dist.reduce_scatter_tensor(part, big, async_op=True),
    "mcast:all_reduce": lambda big, part: dist.all_reduce(big, async_op=True),
    "mcast:reduce": lambda big, part: dist.reduce(big, 0, async_op=True),
    "mcast:barrier": lambda big, part: dist.barrier(async_op=True),
}


def profiled(path: str) -> dict[str, tuple[float, float]]:
    """Rank 1 calls each operation only after rank 0 has left a mark in its profile."""
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    big, part = torch.ones(world * 50_000), torch.ones(50_000)
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for name, call in OPS.items():
            if rank == 1:
                store.wait([f"{name} marked"])
                call(big, part).wait()
                continue
            work = call(big, part)
            with torch.profiler.record_function(f"mark {name}"):
                pass
            store.set(f"{name} marked", "1")
            work.wait()
            with torch.profiler.record_function(f"after {name}"):
                pass
    if rank == 1:
        return {}
    profile.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    spans: dict[str, tuple[float, float]] = {}
    for event in events:
        if event.get("ph") == "X" and "mcast:" in event["name"]:
            assert event["name"] not in spans, event["name"]
            spans[event["name"]] = (event["ts"], event["ts"] + event["dur"])
    return spans


def test_a_span_lasts_from_the_call_to_its_completion(ranks, tmp_path):
    spans = ranks(2, profiled, str(tmp_path / "trace.json"))[0]
    for name in OPS:
        start, end = spans[name]
        marked, unmarked = spans[f"mark {name}"]
        after, _ = spans[f"after {name}"]
        assert start <= marked <= unmarked <= end <= after, (name, spans)
