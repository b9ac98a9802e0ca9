"""Large blocks in parts, each with its own lane."""

import programs
import pytest
from test_multihost_failures import LIMIT, SIZE, others, raised_by, running

from torch_mcast.lab import Loss

THREE = {"subgroups": 3}


def test_every_op_is_exact(hosts):
    for row in hosts(3).run(programs.every_op, [1, 1 << 20], [24 << 20], THREE):
        assert row["path"] == "multicast" and not row["failure"]
        assert row["streams"] == "every rank, in 3 subgroups"
        assert row["counters"]["path_switches"] == 0


def lanes(ctx, size):
    import os

    programs.join(ctx, **THREE)
    programs.all_gather(size, 1)
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            names.append(comm.read().strip())
    return sum(name.startswith("mcast-lane") for name in names)


def test_each_has_a_thread_of_its_own(hosts):
    # The group's own lane, and three more. (Other tests' lanes stay with the process.)
    assert min(hosts(3).run(lanes, SIZE)) >= 4


def test_losses_are_repaired(hosts):
    cluster = hosts(3)
    cluster.lab.set_faults(Loss("1%"))
    try:
        stats = cluster.run(programs.rounds, 8 << 20, 2, THREE)
    finally:
        cluster.lab.set_faults()
    assert sum(row["counters"]["repair_chunks_received"] for row in stats) > 0
    assert all(row["counters"]["ops_failed"] == 0 for row in stats)


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_lost_rank_is_named(hosts, fault):
    cluster = hosts(3)
    call = running(cluster, SIZE, {**LIMIT, **THREE})
    getattr(cluster.pool, fault)(1)
    raised_by(call, others(cluster, 1), 1)
    if fault == "stop":
        cluster.pool.resume(1)
    call.outcomes(60)
