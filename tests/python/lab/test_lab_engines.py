"""Engines in worker hosts of a lab, and ranks that use them."""

from __future__ import annotations

import os

import pytest

from torch_mcast.bench import meter, rows
from torch_mcast.engine import NoEngine
from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool


@pytest.fixture(scope="module")
def hosted():
    with Lab(LabSpec(hosts=2, engine_options=("--groups", "20"))) as lab:
        yield lab


def sums(context) -> list:
    """Runs one all_reduce. Returns how the group is carried out, and the CPU time of the engine for it."""
    import torch
    import torch.distributed as dist

    import torch_mcast

    before = meter.engine_cpu_s()
    dist.init_process_group(
        "mcast",
        init_method=context.init_method,
        rank=context.rank,
        world_size=2,
        pg_options=torch_mcast.Options(fallback="none"),
    )
    x = torch.full((1 << 20,), context.rank + 1.0)
    dist.all_reduce(x)
    by = torch_mcast.stats()["transport_reason"]
    dist.destroy_process_group()
    return [float(x[0]), by, meter.engine_cpu_s() - before]


def test_ranks_of_a_lab_use_the_engines_of_their_hosts(hosted):
    assert "MCAST_ENGINE" in hosted.env("h1") and hosted.env("h1") != hosted.env("h2")
    with Pool.in_lab(hosted) as pool:
        for value, by, cpu in pool.run(sums):
            assert value == 3.0
            assert by.startswith("engine of this host (process ")
            assert cpu > 0
    assert hosted.engines.status("h1")["clients"] == []


def test_an_engine_that_was_killed_is_started_again(hosted):
    hosted.engines.kill("h2")
    with pytest.raises(NoEngine):
        hosted.engines.status("h2")
    hosted.restore(hosted.spec)
    with Pool.in_lab(hosted) as pool:
        assert [value for value, *_ in pool.run(sums)] == [3.0, 3.0]


def test_cpu_of_the_engine_is_told_apart(monkeypatch):
    monkeypatch.delenv("MCAST_ENGINE", raising=False)
    assert meter.engine_cpu_s() == 0
    # One rank of each host, here this process, reports the CPU time of the host's engine.
    monkeypatch.setattr(meter, "_engine_pid", lambda path: os.getpid())
    for setting, local, counted in (
        ("host:/x", "0", True),
        ("host:/x", "1", False),
        ("auto", "0", False),
    ):
        monkeypatch.setenv("MCAST_ENGINE", setting)
        monkeypatch.setenv("LOCAL_RANK", local)
        assert (meter.engine_cpu_s() > 0) == counted, (setting, local)
    raw = {
        "op": "all_gather", "size": 10**9, "wanted": 10**9, "backend": "mcast", "right": True,
        "rank_times": [[1.0, 1.0, 1.0]] * 2, "inner": 1,
        "rank_cpu": [[0.01, 0.02, 0.03], [0.03, 0.02, 0.01]], "engine_cpu": [[0.5] * 3, [0.3] * 3],
    }  # fmt: skip
    row = rows.finish(raw, 2, 2, None, 1500)
    assert row["cpu_s"] == pytest.approx(0.04) and row["engine_cpu_s"] == pytest.approx(0.8)
    assert row["cpu_s_per_gb"] == pytest.approx(0.84)
    assert row["rank_cpu_share"] == pytest.approx(0.02)
    (note,) = rows.engine_notes([row])
    assert "mcast: a rank 2.0 % of a CPU, all ranks 40.0 ms, engines 800.0 ms" in note


def test_spec_round_trip():
    for spec in (LabSpec(engine_options=()), LabSpec(engine_options=["--groups", "3"]), LabSpec()):
        assert LabSpec.from_json(spec.to_json()) == spec
