"""Seeds of randomized Python tests: one that is the same in every run, and a fresh one."""

from __future__ import annotations

import os
import random

import pytest

FRESH = pytest.param(None, id="fresh")


def seed_of(given: int | None) -> int:
    """Returns the seed of a test: the given one, or a FRESH one; MCAST_TEST_SEED=n repeats one. A
    failing test shows it."""
    said = os.environ.get("MCAST_TEST_SEED")
    fresh = random.SystemRandom().randrange(1 << 32) if given is None else given
    seed = int(said) if said else fresh
    print(f"MCAST_TEST_SEED={seed}")
    return seed
