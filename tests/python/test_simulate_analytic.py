"""The closed forms of the paper's figures: as published, by the script's own count, and exact. The
simulator's topologies have the same numbers of edges (tests/cpp/sim/topology_test.cpp)."""

import pytest

from torch_mcast.simulate import analytic
from torch_mcast.simulate.figures import PUBLISHED

# Ring; recursive doubling in pods of 32 and of 256.
EXACT = {
    16: (1.875, 1.875, 1.875),
    32: (1.938, 2.765, 2.765),
    64: (1.969, 4.086, 3.265),
    128: (1.984, 4.786, 3.515),
    256: (1.992, 5.136, 3.640),
    512: (1.996, 5.311, 4.626),
    1024: (1.998, 5.398, 5.126),
}


@pytest.mark.parametrize("hosts", PUBLISHED)
def test_the_published_ratios_are_those_of_signed_hops(hosts):
    shape = analytic.fat_tree(hosts, pod=32)
    tree = analytic.multicast_all_gather(shape, signed=True)
    ring, doubling = PUBLISHED[hosts]
    assert analytic.ring_all_gather(shape, signed=True) / tree == pytest.approx(ring, abs=6e-4)
    assert analytic.recursive_doubling_all_gather(shape, signed=True) / tree == pytest.approx(
        doubling, abs=6e-4
    )


@pytest.mark.parametrize("hosts", EXACT)
@pytest.mark.parametrize("pod", [32, None])
def test_the_exact_ratios(hosts, pod):
    shape = analytic.fat_tree(hosts, pod=pod)
    tree = analytic.multicast_all_gather(shape)
    ring, small, large = EXACT[hosts]
    assert analytic.ring_all_gather(shape) / tree == pytest.approx(ring, abs=6e-4)
    doubling = analytic.recursive_doubling_all_gather(shape) / tree
    assert doubling == pytest.approx(small if pod else large, abs=6e-4)
    assert analytic.bruck_all_gather(shape) >= tree


def test_the_188_hosts_behind_twelve_leaves():
    shape = analytic.leaf_spine(188, 12)
    assert shape.tree_edges() == 200
    tree = analytic.multicast_all_gather(shape)
    assert analytic.ring_all_gather(shape) == 400 * 187
    assert analytic.ring_all_gather(shape) / tree == pytest.approx(1.989, abs=6e-4)
    assert analytic.bruck_all_gather(shape) / tree == pytest.approx(3.64, abs=0.006)
    broadcast = analytic.multicast_broadcast(shape)
    assert analytic.binomial_broadcast(shape) / broadcast == pytest.approx(3.59, abs=0.006)
    assert analytic.chain_broadcast(shape) / broadcast == pytest.approx(1.98, abs=0.006)


def test_a_number_that_is_no_power_of_two_has_no_recursive_doubling():
    with pytest.raises(ValueError, match="power of two"):
        analytic.recursive_doubling_all_gather(analytic.fat_tree(24))
