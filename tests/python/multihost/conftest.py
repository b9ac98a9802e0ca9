"""Several hosts in one lab.

Tests prefer the four-host lab `four`, whose workers stay alive from test to test."""

from __future__ import annotations

import contextlib

import lab_fixtures
import programs
import pytest

from torch_mcast.lab.pool import Pool

# Loaded by name: pytest takes plugins from the top-level conftest only, and this folder also runs
# alone.
_clusters, lab, lab_rights = (
    lab_fixtures._clusters,
    lab_fixtures.lab,
    lab_fixtures.lab_rights,
)

RATE = "1gbit"


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
        with contextlib.suppress(OSError):  # the test has closed its pool: no worker is left
            call.outcomes(0)


@pytest.fixture
def four(hosts):
    return hosts(4)


@pytest.fixture
def served(hosts):
    """served(n, aggregators, per_host=1, **fields of LabSpec): a lab with aggregators that run."""

    def get(number, aggregators, per_host=1, **fields):
        return hosts(number, per_host, aggregators=aggregators, multicast="snooping", **fields)

    return get
