"""Link crossings of collectives on trees of switches, in closed form.

A network is described by the number of hosts below one switch of each level, lowest first: (16,
256) is a fat tree of radix 32, whose leaves have 16 hosts and whose pods have 256. Two hosts that
meet at level L are 2L links apart. One crossing is one block on one link; the sums are over all
blocks of an operation.

`signed` repeats the script that belongs to the SC24 paper (sim/estimate_allgather_cost.py): it
takes the difference between the two hosts' switches with its sign, so a hop to a lower one costs as
much as a neighbour, and its multicast tree has one edge too many if there are several pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """`spans`: hosts below one switch, by level, without the highest level (which covers all)."""

    hosts: int
    spans: tuple[int, ...]

    def distance(self, a: int, b: int, signed: bool = False) -> int:
        """Returns the links from a to b, including the links of both ends."""
        if a == b:
            return 0
        level = 1
        for span in self.spans:
            step = b // span - a // span
            if (step <= 0) if signed else (step == 0):
                break
            level += 1
        return 2 * level

    def tree_edges(self, signed: bool = False) -> int:
        """Returns the links that a multicast to all hosts crosses, each once: one for each host,
        and one for each switch of a level that has several."""
        blocks = [-(-self.hosts // span) for span in self.spans]
        extra = 1 if signed and blocks and blocks[-1] > 1 else 0
        return self.hosts + sum(n for n in blocks if n > 1) + extra


def fat_tree(hosts: int, radix: int = 32, pod: int | None = None) -> Shape:
    half = radix // 2
    return Shape(hosts, (half, pod or half * half))


def leaf_spine(hosts: int, leaves: int) -> Shape:
    return Shape(hosts, (-(-hosts // leaves),))


def _sends(shape: Shape, pairs: Iterable[tuple[int, int, int]], signed: bool) -> int:
    return sum(blocks * shape.distance(a, b, signed) for a, b, blocks in pairs)


def multicast_all_gather(shape: Shape, signed: bool = False) -> int:
    return shape.hosts * shape.tree_edges(signed)


def ring_all_gather(shape: Shape, signed: bool = False) -> int:
    """Each host forwards all blocks but one."""
    n = shape.hosts
    return _sends(shape, ((h, (h + 1) % n, n - 1) for h in range(n)), signed)


def recursive_doubling_all_gather(shape: Shape, signed: bool = False) -> int:
    """Hosts exchange all their blocks with the host at distance 1, 2, 4, ... Needs a power of two
    of hosts."""
    n = shape.hosts
    if n & (n - 1):
        raise ValueError(f"recursive doubling needs a power of two of hosts, not {n}")
    steps = [1 << k for k in range(n.bit_length() - 1)]
    return _sends(shape, ((h, h ^ s, s) for s in steps for h in range(n)), signed)


def bruck_all_gather(shape: Shape) -> int:
    """Recursive doubling for any number of hosts: each sends to the host 1, 2, 4, ... below, in the
    last step only the missing blocks."""
    n = shape.hosts
    pairs = []
    step = 1
    while step < n:
        pairs += [(h, (h - step) % n, min(step, n - step)) for h in range(n)]
        step *= 2
    return _sends(shape, pairs, False)


def multicast_broadcast(shape: Shape) -> int:
    return shape.tree_edges()


def binomial_broadcast(shape: Shape) -> int:
    """From host 0: each host that has the block sends it to the host 1, 2, 4, ... above."""
    n = shape.hosts
    pairs = []
    step = 1
    while step < n:
        pairs += [(h, h + step, 1) for h in range(min(step, n - step))]
        step *= 2
    return _sends(shape, pairs, False)


def chain_broadcast(shape: Shape) -> int:
    return _sends(shape, ((h, h + 1, 1) for h in range(shape.hosts - 1)), False)
