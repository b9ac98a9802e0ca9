from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import lab_fixtures
from job import Job
from moved_clock import MovedClock

lab_rights = lab_fixtures.lab_rights


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    """Returns a clock for one job, which is started with `env=clock.env`."""
    return MovedClock(tmp_path)


def _jobs(shared_memory: str) -> Callable[..., Job]:
    def start(
        world: int, scenario: str, *args: Any, env: dict[str, str] | None = None, **more: Any
    ) -> Job:
        env = {"MCAST_SHARED_MEMORY": shared_memory, **(env or {})}
        return Job(world, scenario, *args, env=env, **more)

    return start


@pytest.fixture(params=["network", "host"])
def job(request: pytest.FixtureRequest) -> Callable[..., Job]:
    """job(world, "module.function", *args, env=..., ...): see job.Job. Over the network path (on
    loopback), and over shared memory."""
    return _jobs({"network": "off", "host": "auto"}[request.param])


@pytest.fixture
def network_job() -> Callable[..., Job]:
    """Returns the same for situations that only occur on the network path."""
    return _jobs("off")
