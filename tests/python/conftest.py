"""Fixtures of the Python tests. MCAST_CI=1: a skip for something that this machine can have is a
failure; tests of things that only some machines have are marked `not_everywhere`. Two tiers:
without MCAST_TEST_ALL=1 the tests marked `all_tier` are left out (deselected, not skipped), and so
are combinations of parameters that other combinations cover in pairs (pairwise.py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host_engine
import own_network
import pairwise
import pytest
from lab_fixtures import strict
from ranks import Pool, free_port
from xdist.scheduler import LoadScopeScheduling

import torch_mcast

# Tests run side by side (pytest-xdist) unless they share something: a folder or module listed here
# runs in one process, in order, since its tests share a lab, virtual machines, or something that is
# built first.
TOGETHER = (
    "frameworks/",
    "test_training_example",
    "test_wheel_versions",
    "test_install",
    "test_lint_docs",
    "test_mapped_tensors",
    "test_site",
    "verbs/",
    "test_device_reduce",
    "test_device_limits",
    "test_device",
    "lab/",
    "security/",
    "multihost/test_multihost_hosts",
    "multihost/test_multihost_rails",
    "multihost/test_multihost_reduce",
    "multihost/test_multihost_ops",
    "multihost/test_multihost_aggregated",
    "multihost/",
)


# Single long tests: if they started last, they would run on after the other processes have ended.
LONG = (
    "test_examples",
    "lifecycle/test_torchrun",
    "lifecycle/test_exits",
    "doctor/",
)


def listed(names: tuple[str, ...], nodeid: str) -> str | None:
    return next((name for name in names if f"python/{name}" in nodeid), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("MCAST_TEST_ALL") != "1":
        usual = [item for item in items if not item.get_closest_marker("all_tier")]
        combinations = pairwise.left_out(usual)
        kept = {item for item in usual if item not in combinations}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    # The groups that take longest start first.
    first = (*TOGETHER, *LONG)
    place = {name: number for number, name in enumerate(first)}
    items.sort(key=lambda item: place.get(listed(first, item.nodeid), len(first)))


class Groups(LoadScopeScheduling):
    """Sends tests that belong together to one process. (The groups of `--dist loadgroup` are marks,
    which pytest-xdist 3.8 does not find with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return listed(TOGETHER, nodeid) or nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


class Timeline:
    """Records which process of a parallel run was at which test, and when: build/timeline.tsv, with lines of
    process, phase, begin and end (seconds of the clock), and the test. `tools/test_times.py` sums them up. Failures
    are written to build/failures.txt at once: pytest prints them at the end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._out = (folder / "timeline.tsv").open("w")
        self._failures = (folder / "failures.txt").open("w")

    def pytest_runtest_logreport(self, report: Any) -> None:
        row = (report.node.gateway.id, report.when, report.start, report.stop, report.nodeid)
        print(*row, sep="\t", file=self._out, flush=True)
        if report.failed:
            print(
                report.nodeid,
                report.when,
                report.longreprtext,
                sep="\n",
                file=self._failures,
                flush=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    # Where tools/wheel_tests.py has installed the wheel.
    package = os.environ.get("MCAST_TEST_PACKAGE")
    if package and not Path(torch_mcast.__file__).is_relative_to(package):
        raise pytest.UsageError(f"{torch_mcast.__file__} is not below {package}")
    if config.getoption("numprocesses", None):  # the process that controls the others
        config.pluginmanager.register(Timeline(config.rootpath / "build"))
    else:  # before threads, sockets and processes are created
        own_network.enter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    if not item.get_closest_marker("machine_network"):
        return (yield)
    with own_network.of_the_machine():
        return (yield)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    workers = Pool()
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def mapped_pool() -> Iterator[Pool]:
    """Separate processes: once a process puts its tensors into arenas, it always does."""
    workers = Pool()
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def engine_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    socket = tmp_path_factory.mktemp("engine") / "engine.sock"
    process = host_engine.start(socket)
    yield socket
    host_engine.end(process)


# Values of the fixture `ranks`: the settings of each path.
PATHS = {
    "network": {"MCAST_SHARED_MEMORY": "off"},
    "host": {"MCAST_SHARED_MEMORY": "auto"},
    "host-slots": {"MCAST_SHARED_MEMORY": "slots"},
    "host-map": {"MCAST_SHARED_MEMORY": "auto", "MCAST_ENGINE_MEMORY": "map_all"},
    "engine": {"MCAST_ENGINE_MEMORY": "slots"},
    "engine-map": {"MCAST_ENGINE_MEMORY": "map_all"},
    "engine-copy": {"MCAST_ENGINE_MEMORY": "copy"},
}
# More values, for tests that name them: ranks at one engine, which share memory inside it.
MORE_PATHS = {
    path.replace("engine", "engine-host"): {**setting, "MCAST_SHARED_MEMORY": "auto"}
    for path, setting in PATHS.items()
    if path.startswith("engine")
}
# Modules whose tests run over all paths, on loopback or in shared memory; and the paths that they
# take only with MCAST_TEST_ALL=1, because the code that these modules test is the same there.
ALL_PATHS: dict[str, set[str]] = {
    "test_exchange": set(),
    "test_ops": set(),
    "test_reduce": set(),
    "test_training": {"host-slots", "engine", "engine-map", "engine-copy"},
    "test_work": {"host-slots", "engine-map", "engine-copy"},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__
    if "ranks" in metafunc.fixturenames and module in ALL_PATHS:
        paths = ["network"]
        if not metafunc.definition.get_closest_marker("network"):
            paths = [
                pytest.param(p, marks=[pytest.mark.all_tier] if p in ALL_PATHS[module] else [])
                for p in PATHS
                if p != "host-map"  # test_mapped_tensors runs operations over it
            ]
        metafunc.parametrize("ranks", paths, indirect=True)


@pytest.fixture
def ranks(pool: Pool, request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """ranks(world, function, *args, ...): see ranks.Pool.run."""
    path = getattr(request, "param", "network")
    workers, setting = pool, (PATHS | MORE_PATHS)[path]
    if path.startswith("engine"):
        setting = {**setting, "MCAST_ENGINE": f"host:{request.getfixturevalue('engine_socket')}"}
    if path.endswith("-map"):
        workers = request.getfixturevalue("mapped_pool")

    def run(world: int, *args: Any, env: dict[str, str] | None = None, **more: Any) -> list[Any]:
        return workers.run(world, *args, env={**setting, **(env or {})}, **more)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    wanted = not hasattr(report, "wasxfail") and not item.get_closest_marker("not_everywhere")
    if report.skipped and strict() and wanted:
        report.outcome = "failed"
        report.longrepr = f"skipped, but MCAST_CI=1: {report.longrepr}"
    return report


@pytest.fixture
def stores(tmp_path):
    """Starts an engine that keeps stores. Returns its socket and its port."""
    port = free_port()
    path = tmp_path / "engine.sock"
    # One of the peers' addresses belongs to no host, and no interface leads to it.
    process = host_engine.start(
        path, "--store-port", str(port), "--goodbye", "1", "--peers", "240.0.0.1"
    )
    yield path, port
    host_engine.end(process)
