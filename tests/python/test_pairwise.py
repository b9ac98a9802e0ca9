"""The combinations of parameters that `make test` leaves out are covered in pairs."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pairwise
import pytest
from pairwise import Case

PATHS = ["network", "host", "host-slots", "engine", "engine-map", "engine-copy"]
NAMES = [f"test_{number}" for number in range(40)]


def product(paths: list[str], variants: list[int]) -> list[Case]:
    return [
        Case(path, variant, variant == 1) for path, variant in itertools.product(paths, variants)
    ]


def test_first_runs_all_variants_on_the_network_and_one_on_each_other_path():
    for name in NAMES:
        kept = pairwise.chosen(pairwise.first, name, product(PATHS, [1, 2, 3, 5]))
        assert {case.variant for case in kept if case.path == "network"} == {1, 2, 3, 5}
        others = [case for case in kept if case.path != "network"]
        assert sorted(case.path for case in others) == sorted(PATHS[1:])
        assert all(case.variant != 1 for case in others)


def test_first_runs_a_function_without_variants_on_each_kind_of_path():
    for name in NAMES:
        kept = pairwise.chosen(pairwise.first, name, product(PATHS, [2]))
        assert sorted(pairwise.kind(case.path) for case in kept) == ["engine", "host", "network"]


def test_functions_put_different_variants_and_paths_in_the_run():
    kept = [pairwise.chosen(pairwise.first, name, product(PATHS, [1, 2, 3, 5])) for name in NAMES]
    on_maps = {case.variant for each in kept for case in each if case.path == "engine-map"}
    assert on_maps == {2, 3, 5}
    kept = [pairwise.chosen(pairwise.first, name, product(PATHS, [2])) for name in NAMES]
    assert {case.path for each in kept for case in each} == set(PATHS)


@pytest.mark.parametrize("variants", [1, 2, 3, 8])
def test_spread_runs_each_variant_and_each_path(variants):
    cases = product(["gate", "host"], list(range(10, 10 + variants)))
    for name in NAMES:
        kept = pairwise.chosen(pairwise.spread, name, cases)
        assert {case.variant for case in kept} == {case.variant for case in cases}
        assert {case.path for case in kept} == {"gate", "host"}
        assert len(kept) == max(2, variants)


def test_one_rank_is_taken_where_there_is_nothing_else():
    cases = [Case("network", 1, True), Case("host", 1, True)]
    assert pairwise.chosen(pairwise.first, "test", cases) == set(cases)


class ItemLike(SimpleNamespace):
    __hash__ = object.__hash__


def item(module: str, name: str, **params: object) -> ItemLike:
    spec = SimpleNamespace(params=params)
    namespace = SimpleNamespace(__name__=module)
    return ItemLike(module=namespace, originalname=name, callspec=spec)


def test_items_are_left_out_by_the_rule_of_their_module():
    items = [item("test_ops", "test_a", ranks=path, world=w) for path in PATHS for w in (1, 2, 3)]
    other = [item("test_else", "test_a", ranks=path, world=w) for path in PATHS for w in (1, 2, 3)]
    gone = pairwise.left_out([*items, *other])
    assert len(gone) == len(items) - 3 - len(PATHS[1:]) and gone < set(items)
    kept = [each for each in items if each not in gone]
    assert [each.callspec.params["world"] for each in kept[:3]] == [1, 2, 3]


def test_items_without_a_path_and_of_real_devices_stay():
    plain = ItemLike(module=SimpleNamespace(__name__="test_ops"), originalname="test_plain")
    cuda = [
        item("test_device", "test_b", either=("cuda", g), world=w) for g in (0, 1) for w in (2, 3)
    ]
    fake = [
        item("test_device", "test_b", either=("fake", g), world=w) for g in (0, 1) for w in (2, 3)
    ]
    gone = pairwise.left_out([plain, *cuda, *fake])
    assert len(gone) == 2 and gone < set(fake)
