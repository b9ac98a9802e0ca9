"""Memory of groups and operations, compared with the formula of docs/memory.md."""

from __future__ import annotations

import ctypes
import re
import statistics
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

MiB = 1 << 20


def status(field: str) -> int:
    """Returns a field of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)[1]) << 10


class Allocated(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def in_use() -> int:
    """Returns the bytes that malloc has given out. Resident memory does not show them: a process
    that had groups before has free memory for the next ones."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    counted = mallinfo()
    return counted.uordblks + counted.hblkhd


def of_groups(count: int) -> float:
    """Returns the bytes in use per group that has done one operation on each lane: the median of
    three counts, since neither a one-time allocation (a table that grows, another thread's) nor
    memory that an earlier test has left, and that is freed now, belongs to a group."""

    def used() -> dist.ProcessGroup:
        group = dist.new_group()
        dist.barrier(group)
        dist.all_reduce(torch.ones(1), group=group)
        return group

    groups = [used() for _ in range(4)]
    sizes = []
    for _ in range(3):
        before = in_use()
        groups += [used() for _ in range(count)]
        sizes.append((in_use() - before) / count)
    return statistics.median(sizes)


def of_operations(total: int) -> dict[str, int]:
    """Returns, by operation, resident bytes at its peak minus those before the first of its kind.
    Tensors have `total` bytes. It is the least of three runs: a late rank keeps chunks that came
    early, and code pages used for the first time count; the operation's own memory counts in each
    run."""
    world = dist.get_world_size()
    whole, part = torch.ones(total // 4), torch.ones(total // 4 // world)
    calls = {
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_reduce": lambda: dist.all_reduce(whole),
    }
    peaks = {}
    for name, call in calls.items():
        dist.barrier()
        before, found = status("VmRSS"), []
        for _ in range(3):
            dist.barrier()
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            call()
            found.append(status("VmHWM") - before)
        peaks[name] = min(found)
    return peaks


@pytest.mark.parametrize(
    ("ranks", "least", "most"), [("network", 36, 48), ("host", 14, 30)], indirect=["ranks"]
)
def test_a_group_takes_as_much_memory_as_the_page_says(ranks, least, most, record_property):
    """The figures are those of docs/memory.md, in KiB."""
    sizes = ranks(2, of_groups, 30)
    record_property("bytes per group", sizes)
    assert all(least << 10 < size < most << 10 for size in sizes), sizes


def test_memory_of_operations_is_bounded(ranks, record_property):
    """Bitmaps, the frames and datagrams of one turn, and the incast of a reduction: only one bit
    per chunk grows with the operation."""
    peaks = ranks(3, of_operations, 48 * MiB)
    record_property("bytes per operation", peaks)
    incast = 2 * MiB
    for rank in peaks:
        assert rank["broadcast"] < MiB and rank["all_gather"] < MiB, rank
        for name in ("reduce_scatter", "all_reduce"):  # contributions that wait, and accumulators
            assert rank[name] < incast + incast // 2 + MiB, rank
