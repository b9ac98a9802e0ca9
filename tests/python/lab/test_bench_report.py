"""The benchmark's table for people: units of its cells, and the text of cells without a count. No torch."""

from __future__ import annotations

import pytest

from torch_mcast.bench import report, rows


def raw() -> dict:
    """Returns the raw result of two ranks, three timings of an all-gather of 400 MB."""
    size = 400 * 10**6
    return {
        "op": "all_gather", "wanted": size, "size": size, "backend": "x", "right": True, "inner": 1,
        "rank_times": [[1.0, 3.0, 2.0], [2.0, 1.0, 2.0]], "rank_cpu": [[1.0] * 3, [3.0] * 3], "repairs": 2.0,
    }  # fmt: skip


def cells(document, wide=False):
    table = report.table(document, wide)
    return {str(column.header): next(iter(column.cells)) for column in table.columns}


def test_figures_of_a_row_are_in_their_units():
    size = 400 * 10**6
    nic = {"h1": (110e6, 330e6), "h2": (110e6, 330e6)}
    made = {"title": "t", "caption": "c", "peer": None, "notes": []}
    bare = rows.finish(raw(), 4, 4, None, 1500)
    narrow = cells({**made, "rows": [bare]})
    assert narrow["median (n)"] == "2 s (3)" and narrow["GB/s"] == "0.2"
    row = rows.finish({**raw(), "nic": nic, "inner": 5}, 4, 4, 10**9, 1500)
    wide = cells({**made, "rows": [row]}, wide=True)
    assert row["model_send_bytes"] == size / 4
    assert wide == {
        "operation": "all_gather 390625 KiB", "backend": "x", "n": "3 x 5", "median": "2 s", "min": "2 s",
        "p90": "2.8 s", "algbw GB/s": "0.2", "busbw GB/s": "0.15", "% of bound": "126",
        "sent/host": "110.00 MB", "x model": "1.10", "recv/host": "330.00 MB", "fabric": "-",
        "CPU s/GB": "10.00", "repairs": "2",
    }  # fmt: skip
    once = rows.finish({**raw(), "repairs": None}, 4, 4, 10**9, 1500)
    wide = cells({**made, "rows": [once]}, wide=True)
    assert [wide[name] for name in ("n", "sent/host", "x model", "repairs")] == ["3", "-", "-", "-"]


@pytest.mark.parametrize(
    "value, text",
    [(2.5, "2.5 s"), (250.4, "250 s"), (0.0125, "12.5 ms"), (0.15, "150 ms"), (9.4e-5, "94 us")],
)
def test_times_have_three_figures(value, text):
    assert report.time_text(value) == text


@pytest.mark.parametrize(
    "value, text",
    [(None, "-"), (999, "999 B"), (1000, "1.00 kB"), (2.5e6, "2.50 MB"), (3e9, "3.00 GB")],
)
def test_bytes_are_decimal(value, text):
    assert report.bytes_text(value) == text
