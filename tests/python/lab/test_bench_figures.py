"""The benchmark's formulas, statistics and rows, against values worked out by hand. No torch."""

import json
import re

import pytest

from torch_mcast.bench import document, formulas, rows, samples
from torch_mcast.bench.plan import Plan, parse_sizes, variant_settings
from torch_mcast.lab.counters import Counters, Port
from torch_mcast.lab.spec import LabSpec, Loss


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
        ("all_to_all", 4, 0.75),
        ("gather", 4, 0.75),
        ("scatter", 4, 0.75),
        ("send_recv", 4, 1),
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
        ("fsdp2_async", 500),
        ("all_to_all", 300),
        ("gather", 75),  # all but the root's host send a block of 100
        ("scatter", 75),
        ("send_recv", 400),
        ("barrier", None),
    ],
)
def test_what_a_host_sends_at_least(op, sent):
    assert formulas.multicast_send_bytes(op, 400, 4) == sent
    assert formulas.multicast_send_bytes(op, 400, 1) == 0


@pytest.mark.parametrize(
    "op, received",
    [
        ("broadcast", 400),
        ("all_gather", 300),
        ("reduce_scatter", 300),
        ("all_reduce", 600),
        ("all_to_all", 300),
        ("gather", 300),
        ("scatter", 300),
        ("send_recv", 400),
        ("ag_rs", 600),
        ("fsdp2", 900),
        ("fsdp2_async", 900),
        ("barrier", 0),
    ],
)
def test_what_a_host_receives_at_least(op, received):
    assert formulas.receive_bytes(op, 400, 4) == received
    assert formulas.receive_bytes(op, 400, 1) == 0


@pytest.mark.parametrize(
    "op, ring, gloo",
    [
        ("broadcast", 300, 300),
        ("all_gather", 300, 300),
        ("reduce_scatter", 300, 600),  # Gloo's is an all-reduce
        ("all_reduce", 600, 600),
        ("ag_rs", 600, 900),
    ],
)
def test_what_a_rank_of_a_ring_sends(op, ring, gloo):
    assert formulas.ring_send_bytes(op, 400, 4) == ring
    assert formulas.gloo_send_bytes(op, 400, 4) == gloo


@pytest.mark.parametrize(
    "size, world, padded",
    [(4096, 4, 4096), (1 << 20, 3, 1048584), (1, 8, 32), (32, 8, 32), (33, 8, 64)],
)
def test_sizes_are_padded_to_equal_shards(size, world, padded):
    assert formulas.padded_size(size, world) == padded


def test_percentiles_interpolate():
    assert samples.percentile([4, 1, 3, 2], 50) == 2.5
    assert samples.percentile(range(11), 90) == 9
    assert samples.percentile([7], 90) == 7
    with pytest.raises(ValueError):
        samples.percentile([], 50)


def test_the_slowest_rank_counts_in_each_repetition():
    assert samples.slowest([[1, 5, 2], [3, 1, 2]]) == [3, 5, 2]
    with pytest.raises(ValueError):
        samples.slowest([[1, 2], [1]])


def test_ratios_are_paired_by_repetition():
    # The machine was twice as slow in the second repetition; the ratio is unaffected.
    ratio = samples.paired_ratio([1, 2, 1], [3, 6, 3])
    assert (ratio.median, ratio.low, ratio.high) == (3, 3, 3)
    assert samples.paired_ratio([1, 1, 1], [1, 2, 3]).median == 2


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
    assert row["p90_s"] == pytest.approx(2.8) and row["rank_cpu_share"] == 0.5
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


def test_the_best_peer_is_the_fastest_of_those_that_promise_the_same():
    def row(backend, seconds):
        return rows.finish(raw(backend=backend, times=[[seconds] * 3] * 2), 2, 2, None, 1500)

    found = [row("mcast", 2.0), row("mcast:ring", 1.0), row("gloo", 6.0), row("openmpi_tuned", 3.0), row("blaster", 0.5)]  # fmt: skip
    rows.add_best_ratios(found)
    assert {each["ratio_best"]["peer"] for each in found} == {"openmpi_tuned"}
    assert [each["ratio_best"]["median"] for each in found[:4]] == [1.5, 3, 0.5, 1]
    alone = [row("mcast", 2.0), row("gloo", 6.0)]
    rows.add_best_ratios(alone)  # for a single peer there is already a ratio
    assert not any("ratio_best" in each for each in alone)


def test_rows_of_a_case_that_was_stopped_say_so():
    times = [[1.0], [2.0]]
    half = {**raw(times=times), "partial": True, "rank_cpu": [[None], [None]]}
    none = {**half, "rank_times": [[], []], "rank_cpu": [[], []]}
    (row,) = rows.partial([half, none], 2, 2, None, 1500)
    assert row["partial"] and row["n"] == 1 and row["median_s"] == 2
    assert rows.few_notes([row], 3) == []
    (note,) = rows.partial_notes([row, rows.finish(raw(), 2, 2, None, 1500)])
    assert "stopped during this case" in note


def test_the_bytes_of_the_counting_itself_are_subtracted():
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
    assert variant_settings("mcast:sealed") == {"security": "sealed", "trust_store": "1"}
    assert variant_settings("mcast:fold=turn:ring") == {"fold": "turn", "algorithm": "ring"}
    assert variant_settings("mcast:link_rate=0") == {"link_rate": "0"}
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


def test_n_of_each_row_is_told_where_it_is_less_than_asked_for():
    few = rows.finish(raw(), 4, 4, 10**9, 1500)
    assert few["n"] == 3
    (note,) = rows.few_notes([few], 5)
    assert "all_gather of 390625 KiB 3" in note and "fewer than 5" in note
    assert rows.few_notes([few, {"op": "barrier", "supported": False}], 3) == []


def test_rows_above_the_bound_are_explained_by_the_burst_or_not_at_all():
    size, burst = 1 << 20, 256 << 10
    bound = formulas.bound_s("all_gather", size, 8, 10**9, 1500)
    least = formulas.bound_s("all_gather", size, 8, 10**9, 1500, burst)
    assert least == pytest.approx(bound - burst * 8 / 1e9)
    assert formulas.bound_s("all_gather", 4096, 8, 10**9, 1500, burst) == 0

    def notes(seconds, rate=10**9):
        row = rows.finish(raw(size=size, times=[[seconds] * 3] * 2), 8, 8, 10**9, 1500)
        return rows.above_bound_notes([row], rate, 1500, burst)

    assert notes(1.01 * bound) == [] and notes(0.95 * bound, rate=None) == []
    (explained,) = notes(0.95 * bound)
    assert "105 % of the bound" in explained and "256 KiB pass a shaper" in explained
    (strange,) = notes(0.5 * least)
    assert "does not explain it" in strange


def test_open_mpi_is_named_where_it_is_faster_than_the_peer():
    def row(backend, seconds):
        return rows.finish(raw(backend=backend, times=[[seconds] * 3] * 2), 2, 2, None, 1500)

    mine, gloo, tuned = row("mcast", 1.0), row("gloo", 4.0), row("openmpi_tuned", 2.0)
    (note,) = rows.rival_notes([mine, gloo, row("openmpi", 3.0), tuned], "gloo")
    assert "openmpi_tuned is 2.00 x as fast as gloo" in note and "mcast is 2.00 (2.00-2.00)" in note
    assert rows.rival_notes([mine, gloo, row("openmpi", 5.0)], "gloo") == []
    assert rows.rival_notes([mine, gloo, tuned], None) == []


def test_the_headline_tells_path_lab_and_port_queue():
    spec = LabSpec(8, rate="1gbit", queue="4M", multicast_rate="100mbit", faults=[Loss("1%")])
    text = document.lab_text(spec)
    assert "MCAST_LINK_RATE" not in document.lab_text(LabSpec(8))
    for part in (
        "1 Gbit/s",
        "port queue 4 MiB",
        "ranks told the rate (MCAST_LINK_RATE)",
        "multicast 100 Mbit/s",
        "loss 0.01",
    ):
        assert part in text
    told = rows.path_text([{"backend": "mcast", "path": "multicast"}, {"backend": "gloo"},
                           {"backend": "mcast:ring", "path": "ring"}])  # fmt: skip
    assert told == "; mcast by multicast"


def test_a_document_says_what_it_was_made_with(tmp_path, monkeypatch):
    for name, value in {"MCAST_X": "1", "GLOO_Y": "2", "OMPI_Z": "3", "OTHER": "4"}.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "new" / "result.json"
    monkeypatch.setenv("MCAST_SECRET", "0123456789abcdef")
    of_ranks = document.common([{"MCAST_A": "1", "MCAST_B": "1"}, {"MCAST_A": "1", "MCAST_B": "2"}])
    assert document.common([{"MCAST_A": "1"}, {}, {"MCAST_B": "2"}]) == {"MCAST_A": "(differs)"}
    made = document.Document("here", "bench", [], None, 3, path=path, rank_environment=of_ranks)
    made.rows.append(rows.finish(raw(), 4, 4, None, 1500))
    made.save()
    found = json.loads(path.read_text())
    assert found["schema"] == document.SCHEMA and found["complete"] is False
    assert found["environment"].items() >= {("MCAST_X", "1"), ("GLOO_Y", "2"), ("OMPI_Z", "3")}
    assert found["rank_environment"] == {"MCAST_A": "1", "MCAST_B": "(differs)"}
    assert (
        found["environment"]["MCAST_SECRET"] == "(set)"
        and "0123456789abcdef" not in path.read_text()
    )
    assert "OTHER" not in found["environment"] and len(found["machine"]["load_before"]) == 3
    extension = document.extension()
    assert (found["build"]["extension_sha256"] is None) == (extension is None)
    assert [each.name for each in path.parent.iterdir()] == ["result.json"]
    made.save(complete=True)
    assert json.loads(path.read_text())["complete"] is True


def test_the_table_has_five_columns_or_all():
    from torch_mcast.bench import report

    table = [rows.finish(raw(backend=name), 2, 2, 10**9, 1500) for name in ("mcast", "gloo")]
    rows.add_ratios(table, "gloo")
    made = {"title": "t", "caption": "c", "peer": "gloo", "rows": table, "notes": []}
    narrow = [column.header for column in report.table(made).columns]
    assert narrow == ["operation", "backend", "median (n)", "% of bound", "x gloo"]
    assert "2 s (3)" in list(report.table(made).columns[2].cells)
    wide = [column.header for column in report.table(made, wide=True).columns]
    assert len(wide) == 16 and "n" in wide and "sent/host" in wide
    table.append(rows.finish(raw(backend="openmpi"), 2, 2, 10**9, 1500))
    rows.add_best_ratios(table)
    assert len(report.table(made).columns) == 5
    best = report.table(made, wide=True).columns[-1]
    assert best.header == "x best peer"
    assert list(best.cells) == ["1.00 (1.00-1.00) gloo", "1", "1.00 (1.00-1.00) gloo"]


@pytest.mark.parametrize("status, commit", [(0, "0123456789ab"), (128, None)])
def test_the_commit_is_that_of_a_checkout(status, commit, tmp_path, monkeypatch):
    said = type("Done", (), {"returncode": status, "stdout": "0123456789ab\n"})
    monkeypatch.setattr(document.subprocess, "run", lambda *_, **__: said)
    monkeypatch.setattr(document, "package_root", lambda: str(tmp_path))
    assert document.build()["commit"] is None
    (tmp_path / ".git").mkdir()
    assert document.build()["commit"] == commit


def test_names_of_backends_are_no_emojis(capsys):
    from torch_mcast.bench import report

    note = "broadcast, mcast:ring: 101 % of the bound"
    report.show({"title": "t", "caption": "c", "peer": None, "rows": [], "notes": [note]})
    assert note in capsys.readouterr().out


def test_the_plot_shows_shares_of_the_bound_and_bytes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib import figure

    from torch_mcast.bench import plot

    def row(backend, size):
        made = rows.finish(raw(backend=backend, size=size), 4, 4, 10**9, 1500)
        return {**made, "nic": {"h1": (size / 4, size)}, "min_s": made["min_s"] / 1000}

    shown = [row(backend, size) for size in (1 << 20, 1 << 26) for backend in ("mcast", "gloo")]
    saved = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: saved.append(self))
    plot.draw({"title": "t", "rows": shown}, tmp_path / "x.png")
    share, sent = saved[0].axes
    assert "bound" in share.get_ylabel() and "sent" in sent.get_ylabel()
    lines = [line for line in share.get_lines() if line.get_marker() not in ("None", None, "")]
    # Equal figures of two backends: markers of different shapes at different places.
    assert len({line.get_marker() for line in lines}) == 2
    assert list(lines[0].get_ydata()) == list(lines[1].get_ydata())
    assert not set(lines[0].get_xdata()) & set(lines[1].get_xdata())
    # One timing that is much too short does not compress all others.
    low, high = share.get_ylim()
    assert low == 0 and high < 2 * max(max(line.get_ydata()) for line in lines) + 110
