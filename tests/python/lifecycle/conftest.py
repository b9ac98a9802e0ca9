from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from job import Job, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    process = Zygote()
    yield process
    process.close()


@pytest.fixture
def job(zygote: Zygote) -> Callable[..., Job]:
    """job(world, "module.function", *args, env=..., ...): see job.Job."""
    return lambda world, scenario, *args, **more: Job(zygote, world, scenario, *args, **more)
