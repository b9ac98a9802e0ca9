"""The benchmark driver's handling of the ranks' reports, and of the lab that they run in. No torch."""

from __future__ import annotations

import pytest

from torch_mcast.bench import driver, openmpi
from torch_mcast.bench.plan import Plan
from torch_mcast.bench.told import Told
from torch_mcast.lab.spec import LabSpec


def raw(backend: str, *times: float, **more) -> dict:
    return {
        "op": "broadcast", "wanted": 4, "size": 4, "backend": backend, "right": True, "inner": 1,
        "rank_times": [list(times)] * 2, "rank_cpu": [[1.0] * len(times)] * 2, **more,
    }  # fmt: skip


def test_a_backend_that_is_done_is_not_partial_any_more():
    seen = []
    told = Told(2, 1, None, 1500, lambda: seen.append(len(told.rows)))
    told.take("partial", [raw(name, 1.0, partial=True) for name in ("mcast", "gloo")])
    told.take("row", raw("mcast", 1.0, 2.0))
    told.take("environment", {"MCAST_X": "1"})
    told.take("news of another kind", None)
    assert seen == [1] and told.environment == {"MCAST_X": "1"}
    told.keep_partial()
    told.keep_partial()
    assert [(row["backend"], row["n"], row.get("partial", False)) for row in told.rows] == [
        ("mcast", 2, False),
        ("gloo", 1, True),
    ]


def test_partial_rows_are_those_of_the_last_repetition():
    told = Told(2, 1, None, 1500)
    told.take("partial", [raw("mcast", 1.0, partial=True), raw("gloo", partial=True)])
    told.take("partial", [raw("mcast", 1.0, 3.0, partial=True), raw("gloo", partial=True)])
    told.keep_partial()
    assert [(row["backend"], row["median_s"]) for row in told.rows] == [("mcast", 2.0)]


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        (dict(hosts=3), None),
        (dict(hosts=3, rate="1gbit"), 10**9),
        (dict(hosts=3, rate="1gbit", host_rates={"h2": "10mbit"}), 10**7),
        (dict(hosts=3, rate="1gbit", host_rates={"h2": "none"}), 10**9),
        (dict(hosts=3, aggregators=1, rate="1gbit", host_rates={"a1": "10mbit"}), 10**9),
    ],
)
def test_the_bound_is_that_of_the_slowest_worker(fields, rate):
    plan = Plan(("broadcast",), (4,), ("gloo",))
    run = driver.Run(plan, LabSpec(ranks_per_host=2, mtu=9000, **fields), ranks=7)
    assert (run.world, run.hosts, run.rate, run.mtu) == (6, 3, rate, 9000)


def test_ranks_of_one_host_have_no_bound():
    run = driver.Run(Plan(("broadcast",), (4,), ("gloo",)), None, ranks=7)
    assert (run.world, run.hosts, run.rate) == (7, 1, None)


@pytest.mark.parametrize(
    ("version", "layer"),
    [("mpirun (Open MPI) 4.1.4\n", "vader"), ("mpirun (Open MPI) 5.0.0\n", "sm")],
)
def test_open_mpi_shares_memory_by_the_layer_that_its_version_has(version, layer, monkeypatch):
    said = type("Done", (), {"stdout": version})
    monkeypatch.setattr(openmpi, "finished", lambda *_: said)
    assert openmpi._transports(tuned=True) == f"tcp,{layer},self"
    assert openmpi._transports(tuned=False) == "tcp,self"


@pytest.mark.parametrize("fields", [dict(repetitions=0), dict(warmup=0)])
def test_a_plan_measures_and_warms_up_once_at_least(fields):
    with pytest.raises(ValueError, match="at least one repetition and one warm-up"):
        Plan(("broadcast",), (4,), ("gloo",), **fields)
    Plan(("broadcast",), (4,), ("gloo",), repetitions=1, warmup=1)
