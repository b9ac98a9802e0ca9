"""The store of a job at an engine of the host, as c10d uses it: init_method="engine://"."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from forked import Forked

from torch_mcast import _C, _store

SHORT = timedelta(milliseconds=100)


@pytest.fixture
def store(stores):
    path, port = stores
    return _C.EngineStore(str(path), "127.0.0.1", port, "job", timedelta(seconds=20))


def test_does_what_c10d_expects(store):
    other = store.clone()
    store.set("key", "value")
    assert other.get("key") == b"value"
    assert (store.add("n", 3), other.add("n", -5)) == (3, -2)
    assert other.check(["key", "n"]) and not other.check(["key", "none"])
    assert store.compare_set("key", "value", "new") == b"new"
    assert store.compare_set("key", "value", "newer") == b"new"
    assert store.compare_set("fresh", "", "x") == b"x"
    store.append("fresh", "y")
    store.multi_set(["a", "b"], ["1", "2"])
    assert other.multi_get(["fresh", "a", "b"]) == [b"xy", b"1", b"2"]
    assert store.has_extended_api()
    assert store.num_keys() == 5
    assert store.delete_key("a") and not store.delete_key("a")
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("a", "3")
    assert not store.check(["a"]) and prefixed.get("a") == b"3"


def test_waits_for_keys_and_no_longer_than_it_is_told(store):
    later = threading.Timer(0.2, lambda: store.clone().set("late", "1"))
    later.start()
    assert store.get("late") == b"1"
    later.join()
    with pytest.raises(dist.DistStoreError, match="nobody has set x, y"):
        store.wait(["late", "x", "y"], SHORT)
    store.set_timeout(SHORT)
    with pytest.raises(dist.DistStoreError, match="nobody has set x"):
        store.get("x")
    assert store.get("late") == b"1"


def test_ctrl_c_ends_a_wait(store):
    # The workers of a parallel test run ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            store.wait(["never"], timedelta(seconds=30))
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_unreachable_store_is_named_in_the_error(stores):
    path, port = stores
    with pytest.raises(dist.DistStoreError, match="is an engine with --store-port"):
        _C.EngineStore(str(path), "240.0.0.1", port, "job", SHORT)
    with pytest.raises(dist.DistStoreError, match=r"the engine does not connect to 240\.0\.0\.2"):
        _C.EngineStore(str(path), "240.0.0.2", port, "job", SHORT)
    with pytest.raises(dist.DistStoreError, match="stores are at port"):
        _C.EngineStore(str(path), "127.0.0.1", port - 1, "job", SHORT)
    with pytest.raises(dist.DistStoreError, match="through the engine of this host"):
        _C.EngineStore(f"{path}.none", "127.0.0.1", port, "job", SHORT)


def meet(url, rank):
    """Runs twice: the second group must not find anything of the first one."""
    for _ in range(2):
        dist.init_process_group("mcast", init_method=url)
        x = torch.full((1000,), rank + 1.0)
        dist.all_reduce(x)
        dist.barrier()
        dist.destroy_process_group()
    return float(x[0])


def test_ranks_meet_by_what_the_launcher_says(stores):
    path, port = stores
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_engine_store import meet\n"
        "import os, torch_mcast\n"
        "print(meet(sys.argv[2], int(os.environ['RANK'])))\n"
    )
    environment = {
        **os.environ,
        "MCAST_ENGINE": f"host:{path}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "WORLD_SIZE": "2",
    }
    ranks = [
        Forked(
            ["-c", script, os.path.dirname(__file__), f"engine://127.0.0.1:{port}"],
            {**environment, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    for process in ranks:
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert said.split() == ["3.0"]


def test_a_restarted_job_has_a_store_of_its_own(stores, monkeypatch):
    path, port = stores
    monkeypatch.setenv("MCAST_ENGINE", f"host:{path}")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("MASTER_PORT", "29511")

    def met(restarts, made=0, url="", **environment):
        """Returns the store of the job's next group, in a process that has created so many."""
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
        monkeypatch.setattr(_store, "_made", made)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        query = "?rank=0&world_size=2"
        store, rank, world = next(_store.rendezvous(f"engine://127.0.0.1:{port}{url}{query}"))
        assert (rank, world) == (0, 2)
        return store

    first = met(0)  # a store exists as long as it is used
    first.set("key", "value")
    assert met(0).check(["key"])
    assert not met(1).check(["key"])
    assert not met(0, made=1).check(["key"])
    assert not met(0, url="/name").check(["key"])
    assert not met(0, MASTER_PORT="29512").check(["key"])
    assert not met(0, MASTER_PORT="29511", TORCHELASTIC_RUN_ID="other").check(["key"])


def test_a_url_without_its_environment_says_what_is_missing(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="the environment variable RANK is not set"):
        next(_store.rendezvous("engine://"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="the environment variable MASTER_ADDR is not set"):
        next(_store.rendezvous("engine://"))
