"""The benchmark's formulas, statistics and rows, against values worked out by hand. No torch."""

import re

import pytest

from torch_mcast.bench import formulas, rows, statistics
from torch_mcast.bench.plan import Plan, parse_sizes, variant_settings
from torch_mcast.lab.counters import Counters, Port


@pytest.mark.parametrize(
    "op, world, factor",
    [
        ("all_reduce", 8, 1.75),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("broadcast", 8, 1),
        ("ag_rs", 2, 1.0),
        ("barrier", 8, None),
        ("fsdp2", 8, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(op, world, factor):
    assert formulas.bus_factor(op, world) == factor


def test_payload_rate_is_1440_of_1514_bytes():
    assert formulas.payload_rate(10**9, 1500) == pytest.approx(118.9e6, rel=1e-3)


@pytest.mark.parametrize(
    "op, hosts, ms",
    [  # shared/lab.md: 64 MiB, 1 Gbit/s
        ("all_gather", 8, 494),
        ("reduce_scatter", 8, 494),
        ("all_reduce", 8, 988),
        ("broadcast", 8, 564),
        ("ag_rs", 8, 988),
        ("all_gather", 16, 529),
        ("all_reduce", 16, 1058),
    ],
)
def test_bounds_of_64_mib_at_1_gbit(op, hosts, ms):
    assert formulas.bound_s(op, 64 << 20, hosts, 10**9, 1500) * 1e3 == pytest.approx(ms, abs=0.7)


def test_there_is_no_bound_without_a_rate_or_a_network():
    assert formulas.bound_s("all_gather", 1 << 20, 8, None, 1500) is None
    assert formulas.bound_s("all_gather", 1 << 20, 1, 10**9, 1500) is None
    assert formulas.bound_s("barrier", 0, 8, 10**9, 1500) is None


@pytest.mark.parametrize(
    "op, sent",
    [
        ("broadcast", 100),
        ("all_gather", 100),
        ("reduce_scatter", 300),
        ("all_reduce", 400),
        ("ag_rs", 400),
        ("fsdp2", 500),
        ("barrier", None),
    ],
)
def test_what_a_host_sends_at_least(op, sent):
    assert formulas.multicast_send_bytes(op, 400, 4) == sent


@pytest.mark.parametrize(
    "size, world, padded",
    [(4096, 4, 4096), (1 << 20, 3, 1048584), (1, 8, 32), (32, 8, 32), (33, 8, 64)],
)
def test_sizes_are_padded_to_equal_shards(size, world, padded):
    assert formulas.padded_size(size, world) == padded


def test_percentiles_interpolate():
    assert statistics.percentile([4, 1, 3, 2], 0.5) == 2.5
    assert statistics.percentile(range(11), 0.9) == 9
    assert statistics.percentile([7], 0.9) == 7
    with pytest.raises(ValueError):
        statistics.percentile([], 0.5)


def test_the_slowest_rank_counts_in_each_repetition():
    assert statistics.slowest([[1, 5, 2], [3, 1, 2]]) == [3, 5, 2]
    with pytest.raises(ValueError):
        statistics.slowest([[1, 2], [1]])


def test_ratios_are_paired_by_repetition():
    # The machine was twice as slow in the second repetition: the ratio does not see it.
    ratio = statistics.paired_ratio([1, 2, 1], [3, 6, 3])
    assert (ratio.median, ratio.low, ratio.high) == (3, 3, 3)
    assert statistics.paired_ratio([1, 1, 1], [1, 2, 3]).median == 2


def raw(op="all_gather", size=400 * 10**6, backend="x", times=((1.0, 3.0, 2.0), (2.0, 1.0, 2.0))):
    return {
        "op": op,
        "wanted": size,
        "size": size,
        "backend": backend,
        "right": True,
        "inner": 1,
        "rank_times": times,
        "rank_cpu": [[1.0] * 3, [3.0] * 3],
        "repairs": 2.0,
    }


def test_a_row():
    row = rows.finish(raw(), world=4, hosts=4, rate=10**9, mtu=1500)
    assert row["times_s"] == [2, 3, 2] and row["median_s"] == 2 and row["min_s"] == 2
    assert row["algbw"] == 200e6 and row["busbw"] == 150e6
    assert row["cpu_s"] == 4 and row["cpu_s_per_gb"] == pytest.approx(10)
    bound = 300e6 / (125e6 * 1440 / 1514)
    assert row["bound_s"] == pytest.approx(bound)
    assert row["bound_percent"] == pytest.approx(100 * bound / 2)
    assert row["model_send_bytes"] == 100e6 and row["repairs"] == 2


def test_a_row_of_a_program_that_lacks_the_operation():
    row = rows.finish(
        {"op": "all_gather", "wanted": 4, "size": 4, "backend": "uftp", "right": True},
        4,
        4,
        None,
        1500,
    )
    assert row["supported"] is False and "median_s" not in row


def test_a_barrier_has_no_bandwidth():
    row = rows.finish(raw("barrier", 0), 4, 4, 10**9, 1500)
    assert row["algbw"] is None and row["cpu_s_per_gb"] is None and row["bound_percent"] is None


def test_ratios_go_to_the_peer_of_the_same_case():
    table = [
        rows.finish(raw(backend="fast"), 2, 2, None, 1500),
        rows.finish(raw(backend="peer", times=[[4.0, 6.0, 4.0]] * 2), 2, 2, None, 1500),
        rows.finish(raw(size=8, backend="fast"), 2, 2, None, 1500),
    ]
    rows.add_ratios(table, "peer")
    assert table[0]["ratio"] == {"peer": "peer", "median": 2, "low": 2, "high": 2}
    assert "ratio" not in table[1] and "ratio" not in table[2]


def test_what_the_counting_moves_is_subtracted():
    def counters(sent, received):
        return Counters(
            {"h1": Port(wire_bytes=sent), "h2": Port(wire_bytes=0)},
            {"h1": Port(wire_bytes=0), "h2": Port(wire_bytes=received, queue_drops=1)},
        )

    lab = rows.lab_traffic(counters(1000, 1100), counters(100, 100), ["h1", "h2"])
    assert lab == {
        "sent_mean": 450,
        "sent_max": 900,
        "received_max": 1000,
        "fabric": 1900,
        "queue_drops": 1,
    }


def test_sizes():
    assert parse_sizes("4k,1M") == (4096, 1 << 20)
    assert parse_sizes("4k:1M") == (4096, 16384, 65536, 262144, 1 << 20)
    assert parse_sizes("1k:8k:2,4k") == (1024, 2048, 4096, 8192)
    for bad in ("0:4", "4k:1M:1", "x"):
        with pytest.raises(ValueError):
            parse_sizes(bad)


def test_variants_of_mcast_are_settings():
    known = "10.0.0.9:7117,10.0.0.10:7117"
    assert variant_settings("mcast:ring") == {"algorithm": "ring"}
    assert variant_settings("mcast:fold=turn:ring") == {"fold": "turn", "algorithm": "ring"}
    assert variant_settings("mcast:aggregators=0", known) == {"aggregators": ""}
    assert variant_settings("mcast:aggregators=1", known) == {"aggregators": "10.0.0.9:7117"}
    assert variant_settings("mcast:aggregators=2", known)["aggregators"] == known
    for bad in ("gloo:ring", "mcast:", "mcast:fold=", "mcast:=turn", "mcast:ring::x"):
        with pytest.raises(ValueError, match=re.escape(bad)):
            variant_settings(bad)
        with pytest.raises(ValueError):
            Plan(("broadcast",), (4,), (bad,))
    with pytest.raises(ValueError, match="there are 2 aggregators"):
        variant_settings("mcast:aggregators=3", known)


def test_every_rank_draws_the_same_order_and_it_varies():
    plan = Plan(("broadcast",), (4,), ("a", "b", "c"))
    orders = [plan.order("broadcast", 4, repetition) for repetition in range(20)]
    assert orders == [
        Plan(("broadcast",), (4,), ("a", "b", "c")).order("broadcast", 4, r) for r in range(20)
    ]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    assert len({tuple(order) for order in orders}) == 6


def test_cases_without_a_size_come_once():
    plan = Plan(("broadcast", "barrier"), (4, 8), ("gloo",))
    assert plan.cases == [("broadcast", 4), ("broadcast", 8), ("barrier", 0)]
    with pytest.raises(ValueError, match="nonsense"):
        Plan(("nonsense",), (4,), ("gloo",))
    with pytest.raises(ValueError, match="once"):
        Plan(("barrier",), (4,), ("gloo", "gloo"))


def test_bytes_per_host_come_from_the_lab_before_the_nics():
    nic = {"h1": (10, 40), "h2": (30, 20)}
    assert rows.host_bytes({"nic": nic}) == (20, 40)
    assert rows.host_bytes({"nic": nic, "lab": {"sent_mean": 5, "received_max": 6}}) == (5, 6)
    assert rows.host_bytes({}) == (None, None)


def test_exposed_communication_is_the_step_less_a_silent_one():
    def row(backend, steps):
        raw = {
            "op": "fsdp2", "size": 1 << 20, "wanted": 1 << 20, "backend": backend, "right": True,
            "rank_times": [steps, [0.1] * 3], "rank_cpu": [[None] * 3] * 2, "inner": 1,
            "rank_silent": [[0.5, 0.5, 0.6], [0.4, 0.7, 0.6]],
        }  # fmt: skip
        return rows.finish(raw, 2, 2, 10**9, 1500)

    ours, theirs = row("mcast", [1.5, 1.7, 1.6]), row("gloo", [2.5, 2.7, 2.6])
    assert ours["silent_s"] == pytest.approx(0.6)
    assert ours["exposed_times_s"] == pytest.approx([1.0, 1.0, 1.0])
    (note,) = rows.exposed_notes([ours, theirs], "gloo")
    assert "without communication 600 ms" in note
    assert "mcast 1000 ms (0.50 of gloo's)" in note and "gloo 2000 ms" in note
    assert rows.exposed_notes([{"op": "broadcast"}], "gloo") == []
