"""Fixtures of the Python tests. MCAST_CI=1: a skip for something this machine can have is a failure.
Two tiers: without MCAST_TEST_ALL=1 the tests marked `all_tier` are left out (deselected, not skipped)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ranks import Pool
from xdist.scheduler import LoadScopeScheduling

# Tests that run side by side (pytest-xdist), but for what they share: a folder or module listed here runs
# in one process, in order, since its tests share a lab, virtual machines, or something that is built first.
TOGETHER = (
    "verbs/",
    "test_device_reduce",
    "test_device_limits",
    "test_device",
    "lab/",
    "multihost/test_multihost_hosts",
    "multihost/test_multihost_rails",
    "multihost/test_multihost_reduce",
    "multihost/test_multihost_ops",
    "multihost/test_multihost_aggregated",
    "multihost/",
)


def together(nodeid: str) -> str | None:
    return next((name for name in TOGETHER if f"python/{name}" in nodeid), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("MCAST_TEST_ALL") != "1":
        left_out = [item for item in items if item.get_closest_marker("all_tier")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # What runs longest in one piece begins first.
    order = {name: number for number, name in enumerate(TOGETHER)}
    items.sort(key=lambda item: order.get(together(item.nodeid), len(order)))


class Groups(LoadScopeScheduling):
    """Sends what belongs together to one process. (The groups of `--dist loadgroup` are marks, which
    pytest-xdist 3.8 does not find with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    workers = Pool()
    yield workers
    workers.close()


# Modules whose tests run over both: the network path on loopback, and shared memory.
BOTH_PATHS = {"test_ops", "test_reduce", "test_training", "test_work"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ranks" in metafunc.fixturenames and metafunc.module.__name__ in BOTH_PATHS:
        paths = ["network"]
        if not metafunc.definition.get_closest_marker("network"):
            every_run = metafunc.module.__name__ in THROUGH_SLOTS
            slots = pytest.param("host-slots", marks=[] if every_run else pytest.mark.all_tier)
            paths = ["network", "host", slots]
        metafunc.parametrize("ranks", paths, indirect=True)


# Whose bytes go through slots in every run: they test what is carried. The others test what is around it,
# which is the same code where the ranks read each other's memory.
THROUGH_SLOTS = {"test_ops", "test_reduce"}


@pytest.fixture
def ranks(pool: Pool, request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """ranks(world, function, *args, ...): see ranks.Pool.run."""
    setting = {"network": "off", "host": "auto", "host-slots": "slots"}[
        getattr(request, "param", "network")
    ]

    def run(world: int, *args: Any, env: dict[str, str] | None = None, **more: Any) -> list[Any]:
        return pool.run(world, *args, env={"MCAST_SHARED_MEMORY": setting, **(env or {})}, **more)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.skipped and os.environ.get("MCAST_CI") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but MCAST_CI=1: {report.longrepr}"
    return report
