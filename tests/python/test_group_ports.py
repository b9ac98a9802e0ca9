"""Groups of a job over the same hosts have one multicast address; each set of members has its own
port, which rank 0 claims in the store that all of them share."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from contents import compare

import torch_mcast

WORLD = 4
MANY = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2], [0, 1, 2], [1, 2, 3]]


def job_store() -> dist.Store:
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def receiving() -> set[tuple[str, int]]:
    """Returns the multicast addresses and ports of this process's sockets.

    Each socket is asked: a read of /proc/net/udp leaves sockets out where others of this host close.
    """
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            if os.readlink(entry).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    if (one.family, one.type) == (socket.AF_INET, socket.SOCK_DGRAM):
                        found.add(one.getsockname())
    return {(address, port) for address, port in found if address.startswith("239.")}


def gather(group: dist.ProcessGroup) -> None:
    ranks = dist.get_process_group_ranks(group)
    output = torch.zeros(1000 * len(ranks), dtype=torch.int32)
    dist.all_gather_into_tensor(
        output, torch.full((1000,), dist.get_rank(), dtype=torch.int32), group=group
    )
    compare(output, torch.tensor(ranks, dtype=torch.int32).repeat_interleave(1000), f"{ranks}")


def groups_of(lists: list[list[int]]) -> list[dist.ProcessGroup]:
    """Returns the groups that this rank is in, after a test of each."""
    made = [dist.new_group(ranks, backend="mcast") for ranks in lists]
    mine = [made[i] for i, ranks in enumerate(lists) if dist.get_rank() in ranks]
    for group in mine:
        gather(group)
        assert torch_mcast.stats(group)["path"] == "multicast"
    return mine


def own_ports() -> tuple[int, int, int]:
    """Returns the number of sockets with the default group, with groups of other members, and with
    more groups of the same members."""
    gather(dist.group.WORLD)
    first = len(receiving())
    kept = groups_of(MANY)
    second = len(receiving())
    kept += groups_of(MANY)
    return first, second, len(receiving())


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_a_set_of_members_has_a_port(pool, store):
    """On both lanes; groups with the same members share it."""
    for rank, (first, second, third) in enumerate(pool.run(WORLD, own_ports, store=store)):
        groups = sum(rank in ranks for ranks in MANY)
        assert (first, second, third) == (2, 2 * (1 + groups), second)


def where_ports_are_taken() -> tuple[set[int], int]:
    """Returns the ports of groups created after others have taken half of the ports of this job's
    address, and the number of groups."""
    gather(dist.group.WORLD)
    before = receiving()
    store = job_store()
    if dist.get_rank() == 0:
        address, port = min(before, key=lambda at: at[1])  # of lane 0
        group = int.from_bytes(socket.inet_aton(address), "big") & 0xFFFFFF
        assert store.check([f"mcast/port/{group}/{port}"]), "the default group has claimed its own"
        for taken in range(20000, 30000, 4):
            store.compare_set(f"mcast/port/{group}/{taken}", "", "another")
    dist.barrier()
    kept = groups_of(MANY)
    return {port for _, port in receiving() - before}, len(kept)


def test_a_port_of_another_set_is_not_taken(pool):
    for after, groups in pool.run(WORLD, where_ports_are_taken, store="tcp"):
        assert len(after) == 2 * groups
        assert {port % 4 for port in after} == {2, 3}, (
            "20000, 20004, ... and what follows are others'"
        )


def many_groups() -> list[str]:
    """A rank of a large job is in many groups, each with other members; all use multicast."""
    lists = [[r for r in range(8) if bits >> r & 1] for bits in range(256)]
    lists = [ranks for ranks in lists if 0 in ranks and len(ranks) in (2, 3)]
    kept = groups_of(lists)
    return [torch_mcast.stats(group)["path"] for group in kept]


def test_a_rank_is_in_more_than_sixteen_sets(pool):
    paths = pool.run(8, many_groups, timeout_s=240, limit_s=250)
    assert len(paths[0]) == 28 and len(paths[1]) == 7
    assert all(path == "multicast" for mine in paths for path in mine)
