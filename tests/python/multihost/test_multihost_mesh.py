"""A mesh: each rank is in a group across the hosts and in one of its host, and all of these groups
move data at the same time. Groups across have the same hosts and so the same multicast address;
each has its own port, and the receive buffer that a machine has by default."""

from pathlib import Path

import programs
import pytest
import torch
import torch.distributed as dist
from contents import compare

import torch_mcast

SIZE = 128 << 10  # of a rank's block: less than a window, so that only turns hold roots back
ENVIRONMENT = {
    "MCAST_RCVBUF": "212992",  # Linux's default of net.core.rmem_max
    "MCAST_SHARED_MEMORY": "off",
    # The rates that "auto" compares depend on the CPUs here, which are fewer than the ranks.
    "MCAST_ALGORITHM": "multicast",
    # Several CPUs forward the packets of the lab, so that some overtake others.
    "MCAST_REORDER": "1024",
}
# Counters of a group for losses, and for datagrams that do not belong to it.
NEVER = (
    "gaps", "cutoffs", "congestion_cuts", "budget_overcommits", "foreign", "neighbour", "floods_left",
)  # fmt: skip


def dropped():
    """Returns the number of datagrams that this host dropped because a socket was full."""
    names, values = (
        line.split()
        for line in Path("/proc/net/snmp").read_text().splitlines()
        if line[:4] == "Udp:"
    )
    return int(values[names.index("RcvbufErrors")])


def gather(group, salt):
    """Starts one all-gather. Returns a function that waits for it and compares every byte."""
    ranks = dist.get_process_group_ranks(group)
    output = torch.zeros(SIZE * len(ranks), dtype=torch.uint8)
    work = dist.all_gather_into_tensor(
        output, programs.pattern(SIZE, dist.get_rank(), salt), group=group, async_op=True
    )

    def end():
        work.wait()
        for i, rank in enumerate(ranks):
            block = output[i * SIZE : (i + 1) * SIZE]
            compare(block, programs.pattern(SIZE, rank, salt), f"round {salt}, from {rank}")

    return end


def mesh(ctx, per_host, rounds):
    programs.join(ctx, 300.0)
    rank, world = dist.get_rank(), dist.get_world_size()
    first = rank - rank % per_host
    groups = [
        dist.new_group(list(ranks), backend="mcast", use_local_synchronization=True)
        for ranks in (range(rank % per_host, world, per_host), range(first, first + per_host))
    ]
    for salt in range(rounds):
        dist.barrier()
        for end in [gather(group, salt) for group in groups]:
            end()
    # (A barrier at the end: ranks that leave early are tested elsewhere.)
    dist.barrier()
    return [torch_mcast.stats(group) for group in groups], dropped()


@pytest.mark.parametrize(
    ("number", "per_host", "rounds"),
    [(3, 3, 20), pytest.param(8, 8, 20, marks=[pytest.mark.all_tier, pytest.mark.alone])],
)
def test_groups_of_a_mesh_lose_nothing_to_each_other(hosts, number, per_host, rounds):
    """Ranks wait long for a CPU when 64 share two, and the data that arrives meanwhile fits into
    their sockets."""
    rows = hosts(number, per_host).run(
        mesh,
        per_host,
        rounds,
        timeout_s=600,
        env=ENVIRONMENT,
    )
    assert len(rows) == number * per_host
    for rank, (groups, drops) in enumerate(rows):
        assert drops == 0, (rank, "a socket was full")
        for stats in groups:
            assert stats["path"] == "multicast" and not stats["failure"], stats["reason"]
            counted = {name: stats["counters"][name] for name in NEVER}
            assert not any(counted.values()), (rank, counted)
