"""Several hosts in one lab. Two tiers: without MCAST_TEST_ALL=1 the tests marked `all_tier` are left
out (deselected, not skipped: in strict mode a skip is a failure).

Tests prefer the four-host lab `four`, whose workers then stay alive from test to test."""

from __future__ import annotations

import os

import programs
import pytest

from torch_mcast.lab import pytest_plugin
from torch_mcast.lab.pool import Pool

# By name: pytest takes plugins from the top-level conftest only, and this folder also runs alone.
_clusters, lab, lab_rights = (
    pytest_plugin._clusters,
    pytest_plugin.lab,
    pytest_plugin.lab_rights,
)

RATE = "1gbit"


def pytest_configure(config):
    config.addinivalue_line("markers", "all_tier: runs with MCAST_TEST_ALL=1 only")


def pytest_collection_modifyitems(config, items):
    if os.environ.get("MCAST_TEST_ALL") == "1":
        return
    left_out = [item for item in items if item.get_closest_marker("all_tier")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def hosts(lab, monkeypatch):
    """hosts(n, per_host=1, **fields of LabSpec): a lab at 1 Gbit/s with torch in its workers. A call
    that a failed test left running ends with the test: its late workers are killed."""
    calls = []
    start = Pool.start

    def noted(*args, **fields):
        calls.append(start(*args, **fields))
        return calls[-1]

    monkeypatch.setattr(Pool, "start", noted)

    def get(number, per_host=1, **fields):
        return lab(
            preload=programs.PRELOAD,
            **{"hosts": number, "ranks_per_host": per_host, "rate": RATE, **fields},
        )

    yield get
    for call in calls:
        call.outcomes(0)


@pytest.fixture
def four(hosts):
    return hosts(4)
