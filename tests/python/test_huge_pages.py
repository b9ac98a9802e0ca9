"""Tensors of ranks of one host that are moved into huge pages: those that persist, not those that
reappear at the same address."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import torch
import torch.distributed as dist

PR_SET_THP_DISABLE = 41
MADV_COLLAPSE = 25
BYTES = 64 << 20  # more than malloc keeps: freed memory is unmapped


def huge_kib(tensor: torch.Tensor) -> int:
    """Returns AnonHugePages of the mapping that holds the middle of `tensor`."""
    at, inside, total = tensor.data_ptr() + tensor.nbytes // 2, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= at < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1])
    return total


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def in_small_pages() -> torch.Tensor:
    """Returns a tensor in small pages, as if the kernel's mode were "madvise", whatever it is."""
    prctl = libc().prctl
    others: list[torch.Tensor] = []  # their mapping joins one that an earlier test has left
    while True:
        assert prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
        tensor = torch.ones(BYTES, dtype=torch.uint8)
        assert prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0) == 0
        if huge_kib(tensor) == 0:
            return tensor
        others.append(tensor)
        assert len(others) < 5


def without_memory() -> int:
    """Returns how often this machine's kernel had no huge page for memory that was to be moved."""
    text = Path("/proc/vmstat").read_text()
    return int(re.search(r"^thp_collapse_alloc_failed (\d+)$", text, re.MULTILINE)[1])


def kernel_moves(tensor: torch.Tensor) -> bool:
    """Returns whether the kernel moves the huge pages of `tensor` when this process asks."""
    page = 2 << 20
    begin = -(-tensor.data_ptr() // page) * page
    end = (tensor.data_ptr() + tensor.nbytes) // page * page
    at, length = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
    return libc().madvise(at, length, MADV_COLLAPSE) == 0


def broadcasts(keep: bool) -> tuple[list[bool], int, bool]:
    """Returns whether most of the root's tensor was moved into huge pages by each of four
    broadcasts, of one tensor or of a new one each, the number of their addresses, and whether the
    kernel had no memory for the third, as on a machine whose free memory is in pieces. (The
    kernel's own daemon moves 16 MiB now and then.)"""
    tensor, seen, places, refused = in_small_pages(), [], set(), False
    for turn in range(4):
        if not keep and turn:
            del tensor
            tensor = in_small_pages()
        places.add(tensor.data_ptr())
        before, failures = huge_kib(tensor), without_memory()
        dist.broadcast(tensor, 0)
        assert int(tensor.sum()) == BYTES  # without a second tensor, whose mapping might join it
        seen.append(huge_kib(tensor) - before > BYTES >> 11)
        if keep and turn == 2 and not seen[-1]:
            refused = without_memory() > failures or not kernel_moves(tensor)
    return seen, len(places), refused


def switched_off() -> bool:
    return "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()


def test_memory_that_stays_is_moved_at_the_third_use(ranks):
    seen, _, refused = ranks(2, broadcasts, True, env={"MCAST_SHARED_MEMORY": "auto"})[0]
    assert seen == [False, False, not (switched_off() or refused), False]


def test_new_memory_at_the_same_place_is_not_moved(ranks):
    seen, places, _ = ranks(2, broadcasts, False, env={"MCAST_SHARED_MEMORY": "auto"})[0]
    assert seen == [False] * 4
    assert places < 4, "no address came again"


def test_nothing_is_moved_where_that_is_switched_off(ranks):
    env = {"MCAST_SHARED_MEMORY": "auto", "MCAST_HUGE_PAGES": "0"}
    assert ranks(2, broadcasts, True, env=env)[0][:2] == ([False] * 4, 1)
