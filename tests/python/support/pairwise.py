"""Selects the combinations of parameters that `make test` runs. `make test-all` (MCAST_TEST_ALL=1)
runs all of them.

The combinations of one test function are paths times variants. A path is the transport of the
tensors (RULES names the parameter); a variant is the combination of all other parameters, such as
the number of ranks.

For every test function it is guaranteed that:

- every variant runs on at least one path: every pair (function, world), (function, dtype), ... is covered;
- FIRST: all variants run on the first path, the network. If there are variants, each other path runs one of
  them, of more than one rank if there is such a variant: every pair (function, path) is covered. A function without
  variants runs on one path of each kind. The paths of a kind only differ in the way they access memory
  (host, host-slots and host-map are one kind), and each operation has functions with variants.
- SPREAD: each variant runs on one path, in turn, and each path runs at least one variant.

The first variant or path depends on the function's name alone, so a function runs the same
combinations in every run, and different functions put different variants on a path.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    path: str
    variant: Hashable
    alone: bool = False  # one rank, which moves no bytes


def kind(path: str) -> str:
    for way in ("-slots", "-map", "-copy"):
        path = path.removesuffix(way)
    return path


def in_turn(cases: Sequence[Case], number: int) -> Case:
    usable = [case for case in cases if not case.alone] or cases
    return usable[number % len(usable)]


def first(cases: Sequence[Case], start: int) -> set[Case]:
    """All variants on the first path; one on each other path, or on each other kind of path."""
    paths = list(dict.fromkeys(case.path for case in cases))
    kept = {case for case in cases if case.path == paths[0]}
    groups: dict[str, list[Case]] = {}
    variants = len({case.variant for case in cases})
    for case in cases:
        if case.path != paths[0]:
            groups.setdefault(case.path if variants > 1 else kind(case.path), []).append(case)
    return kept | {in_turn(group, start + i) for i, group in enumerate(groups.values())}


def spread(cases: Sequence[Case], start: int) -> set[Case]:
    """Each variant on one path, in turn; then one variant on each path that has none yet."""
    kept: set[Case] = set()
    for i, variant in enumerate(dict.fromkeys(case.variant for case in cases)):
        there = [case for case in cases if case.variant == variant]
        kept.add(there[(start + i) % len(there)])
    for path in dict.fromkeys(case.path for case in cases):
        if all(case.path != path for case in kept):
            kept.add(in_turn([case for case in cases if case.path == path], start))
    return kept


Choose = Callable[[Sequence[Case], int], set[Case]]


def chosen(choose: Choose, function: str, cases: Iterable[Case]) -> set[Case]:
    return choose(list(cases), zlib.crc32(function.encode()))


# By module: the parameters that are a path, and the rule.
RULES: dict[str, tuple[tuple[str, ...], Choose]] = {
    "test_exchange": (("ranks",), first),
    "test_ops": (("ranks",), first),
    "test_point_to_point": (("ranks",), first),
    "test_reduce": (("ranks",), first),
    "test_training": (("ranks",), first),
    "test_work": (("ranks",), first),
    "test_fsdp1": (("original", "rank0_only"), spread),
    "test_exits": (("job",), spread),
    "test_failures": (("job",), spread),
    "test_late": (("way",), spread),
    "test_memory_limits": (("job",), spread),
    "test_signals": (("job",), spread),
    "test_device": (("either", "gated", "hosted"), spread),
    "test_device_limits": (("either", "gated", "hosted"), spread),
    "test_device_messages": (("either", "gated", "hosted"), spread),
    "test_device_reduce": (("either", "gated", "hosted"), spread),
    "test_multihost_aggregated_training": (("order",), spread),
    "test_simulate_aggregators": (("fold",), spread),
}


def left_out(items: Iterable[Any]) -> set[Any]:
    """Returns the collected tests that `make test` does not run."""
    functions: dict[tuple[str, str], dict[Any, Case]] = {}
    for item in items:
        names, _ = RULES.get(item.module.__name__, ((), first))
        params = item.callspec.params if hasattr(item, "callspec") else {}
        name = next((name for name in names if name in params), None)
        if name is None or "cuda" in str(params[name]):  # a real device runs all of them
            continue
        # Compared by identity: the combinations of one function share their values, which need not
        # be hashable.
        variant = tuple(sorted((n, id(value)) for n, value in params.items() if n != name))
        case = Case(str(params[name]), variant, params.get("world") == 1)
        functions.setdefault((item.module.__name__, item.originalname), {})[item] = case
    gone: set[Any] = set()
    for (module, function), cases in functions.items():
        kept = chosen(RULES[module][1], function, cases.values())
        gone |= {item for item, case in cases.items() if case not in kept}
    return gone
