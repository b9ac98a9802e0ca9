"""Fixtures of the Python tests. MCAST_CI=1: a skip for something this machine can have is a failure;
MCAST_TEST_ALL=1: the slow tests too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ranks import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    workers = Pool()
    yield workers
    workers.close()


@pytest.fixture
def ranks(pool: Pool) -> Callable[..., list[Any]]:
    """ranks(world, function, *args, ...): see ranks.Pool.run."""
    return pool.run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.skipped and os.environ.get("MCAST_CI") == "1" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but MCAST_CI=1: {report.longrepr}"
    return report
