"""pytest fixtures: `lab` (multi-host) and `loopback` (one host), with workers kept alive.

    def test_sum(lab):
        cluster = lab(hosts=4, rate="1gbit", preload=["torch"])
        assert cluster.run(function, argument) == [...]  # function(context, argument), each rank
        cluster.lab.cut("h2"); cluster.pool.kill(1); ...

A lab is built once per description and kept for later tests; its rates, cuts, faults and multicast
mode are restored after each test. At most `_KEEP` labs are kept at a time. If namespaces cannot be
created the test is skipped, but with MCAST_CI=1 it fails."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import GUARD_S

from torch_mcast.lab.call import Call
from torch_mcast.lab.network import Lab
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.system import LabError, require_rights

_KEEP = 2


def strict() -> bool:
    """Returns whether everything must run: MCAST_CI=1."""
    return os.environ.get("MCAST_CI", "") not in ("", "0")


def skip_or_fail(reason: str) -> None:
    """Skips the test for a reason outside the project; fails it with MCAST_CI=1."""
    if strict():
        pytest.fail(f"MCAST_CI is set and this cannot run: {reason}")
    pytest.skip(reason)


class Cluster:
    """A lab (None on loopback) and its workers."""

    def __init__(self, lab: Lab | None, pool: Pool) -> None:
        self.lab = lab
        self.pool = pool

    @property
    def world_size(self) -> int:
        return self.pool.world_size

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float = GUARD_S + 20,
        env: dict[str, str] | None = None,
    ) -> list[Any]:
        """Runs a function as Pool.run does."""
        return self.pool.run(function, *args, timeout_s=timeout_s, env=env)

    def start(
        self, function: Callable[..., Any], *args: Any, env: dict[str, str] | None = None
    ) -> Call:
        """Starts a function as Pool.start does."""
        return self.pool.start(function, *args, env=env)

    def close(self) -> None:
        self.pool.close()
        if self.lab:
            self.lab.down()


class _Clusters:
    """The clusters of a test session, least recently used first."""

    def __init__(self) -> None:
        self._clusters: OrderedDict[str, tuple[Cluster, LabSpec | None]] = OrderedDict()
        self.used: set[str] = set()

    def get(self, key: str, build: Callable[[], tuple[Cluster, LabSpec | None]]) -> Cluster:
        if key not in self._clusters:
            for old in [k for k in self._clusters if k not in self.used][:]:
                if len(self._clusters) < _KEEP:
                    break
                self._clusters.pop(old)[0].close()
            self._clusters[key] = build()
        self._clusters.move_to_end(key)
        self.used.add(key)
        return self._clusters[key][0]

    def restore(self) -> None:
        """After a test, restores links to their description; a lab that cannot be restored is removed."""
        used, self.used = self.used, set()
        for key in used:
            cluster, spec = self._clusters[key]
            if cluster.lab and spec:
                try:
                    cluster.lab.restore(spec)
                except LabError:
                    self._clusters.pop(key)[0].close()
                    raise

    def close(self) -> None:
        while self._clusters:
            self._clusters.popitem()[1][0].close()


@pytest.fixture(scope="session")
def _clusters() -> Iterator[_Clusters]:
    clusters = _Clusters()
    yield clusters
    clusters.close()


@pytest.fixture(scope="session")
def lab_rights() -> None:
    """Skips the test (or fails it with MCAST_CI=1) if namespaces cannot be created."""
    try:
        require_rights()
    except LabError as error:
        skip_or_fail(str(error))


@pytest.fixture
def lab(_clusters: _Clusters, lab_rights: None) -> Iterator[Callable[..., Cluster]]:
    """lab(preload=[...], **fields of LabSpec) -> Cluster."""

    def get(preload: tuple[str, ...] = (), **fields: Any) -> Cluster:
        spec = LabSpec(**fields)

        def build() -> tuple[Cluster, LabSpec]:
            made = Lab(spec).up()
            return Cluster(made, Pool.in_lab(made, preload)), spec

        return _clusters.get(f"{spec!r} {list(preload)}", build)

    yield get
    _clusters.restore()


@pytest.fixture
def loopback(_clusters: _Clusters) -> Iterator[Callable[..., Cluster]]:
    """loopback(ranks, preload=[...]) -> Cluster without a lab: ranks of this host over lo."""

    def get(ranks: int, preload: tuple[str, ...] = ()) -> Cluster:
        return _clusters.get(
            f"loopback {ranks} {list(preload)}",
            lambda: (Cluster(None, Pool.on_loopback(ranks, preload)), None),
        )

    yield get
    _clusters.restore()
