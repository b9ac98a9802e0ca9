"""Behaviour that only many hosts show: turns of a large all-gather with fewer chains than roots,
and a control tree of more than one level."""

import programs
import pytest
import reductions
import torch.distributed as dist

import torch_mcast

HOSTS = 32


def all_of_them(ctx, arity):
    programs.join(ctx, 300.0, algorithm="multicast", arity=arity)
    for i, size in enumerate((1, 1437, 256 << 10)):
        programs.all_gather(size, 4 * i)
        programs.broadcast(size, i, 4 * i + 1)
        reductions.reduce_scatter(size, 4 * i + 2)
        reductions.all_reduce(size, 4 * i + 3)
    dist.barrier()
    return torch_mcast.stats()


@pytest.mark.all_tier
@pytest.mark.parametrize("arity", [32, 2])
def test_32_hosts(hosts, arity):
    rows = hosts(HOSTS).run(all_of_them, arity, timeout_s=600)
    assert len(rows) == HOSTS
    for row in rows:
        assert row["path"] == "multicast" and not row["failure"], row
        assert row["counters"]["ops_failed"] == 0
