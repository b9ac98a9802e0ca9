"""`torch-mcast estimate offload`: its table against the paper's figures, and the recorded counts against the paper's
budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torch_mcast.cost_model import cli, offload

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "benchmarks" / "dpa-counts.json"
UD, UC = offload.kernels(None)


@pytest.mark.parametrize(
    "kernel, chunk, harts",
    [
        # From docs/offload.md; shared, 4 KiB: the paper's 16 at 200G and 128 at 1.6T, and 4.
        (UD, 4096, [(4, 16), (8, 32), (15, 64), (30, 128)]),
        (UC, 4096, [(3, 4), (5, 8), (9, 16), (17, 32)]),
        (UD, 1024, [(15, 64), (30, 128), (59, 256), (118, 512)]),
        (UD, 64, [(236, 1024), (471, 2048), (941, 4096), (1882, 8192)]),
    ],
)
def test_the_papers_kernels(kernel, chunk, harts):
    assert [kernel.harts(gbit, chunk) for gbit in offload.GBIT] == harts


def test_one_hart_is_as_fast_as_the_paper_says():
    assert UD.alone * 4096 / 2**30 == pytest.approx(6.3, abs=0.05)  # measured 5.2
    assert UC.alone * 4096 / 2**30 == pytest.approx(11.5, abs=0.05)  # measured 11.9


def test_harts_follow_instructions_clock_and_cycles():
    half = offload.Kernel("half", offload.UD, offload.UD.instructions / 2)
    assert half.harts(200, 4096) == (2, 8)
    fast = offload.Kernel("fast", offload.UD, offload.UD.instructions, clock=2 * offload.CLOCK)
    assert fast.harts(200, 4096) == (2, 8)
    slow = offload.Kernel(
        "slow", offload.UD, 113, cycles_per_instruction=2 * offload.UD.cycles_per_instruction
    )
    assert slow.harts(200, 4096) == (8, 16)  # sharing as measured in the paper


def test_recorded_counts_keep_the_papers_budgets():
    counts = json.loads(COUNTS.read_text())
    best = counts["variants"]["rv64imac_zba_zbb_zbs"]
    assert best["placed"]["each"] <= offload.UC.instructions
    assert best["immediate"]["each"] <= offload.UD.instructions
    for rows in counts["variants"].values():
        assert set(offload.OURS) < set(rows)
        for row in rows.values():
            assert sum(row["classes"].values()) == row["instructions"]
            assert row["each"] == pytest.approx(
                row["instructions"] / (row["completions"] or row["calls"]), abs=0.0051
            )
            assert row["memory"] != "0" * 16


def test_the_page_has_what_is_counted_and_modelled():
    page = (ROOT / "docs" / "offload.md").read_text()
    counts = json.loads(COUNTS.read_text())
    for kernel in offload.kernels(counts)[:5]:
        cells = [" / ".join(map(str, kernel.harts(gbit, 4096))) for gbit in offload.GBIT]
        assert f"| {kernel.name} | {kernel.instructions:g} | {' | '.join(cells)} |" in page
    fast, plain = counts["variants"].values()
    for name in (
        "placed",
        "immediate",
        "header",
        "header_duplicate",
        "header_foreign",
        "send_header",
    ):
        assert f" | {fast[name]['each']:.2f} | {plain[name]['each']:.2f} |" in page, name


def test_state():
    assert offload.state_bytes(64 << 20, 4096) == 128 + 2048
    assert offload.state_bytes(1, 4096, roots=8) == 8 * (128 + 8)


def test_json(capsys):
    assert cli.main(["offload", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = [kernel["name"] for kernel in document["kernels"]]
    assert names[:5] == ["paper UD", "paper UC", "ours header", "ours immediate", "ours placed"]
    assert document["kernels"][0]["harts"]["4096"]["200"] == [4, 16]
    assert document["needed"]["4096"]["200"] == pytest.approx(6.1e6, rel=1e-3)
    assert document["measured"]["compiler"].startswith("riscv64-unknown-elf-gcc")


def test_table(capsys):
    assert cli.main(["offload"]) == 0
    text = capsys.readouterr().out
    for cell in ("4 / 16", "30 / 128", "118 / > 256", "ours header", "the paper measured 5.2"):
        assert cell in text


def test_without_the_repository_the_papers_counts_remain(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(offload, "COUNTS", tmp_path / "none.json")
    assert cli.main(["offload", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [kernel["name"] for kernel in document["kernels"]] == ["paper UD", "paper UC"]
    assert document["measured"] is None


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["--clock", "0"], "positive"),
        (["--cycles-per-instruction", "-1"], "positive"),
        (["--counts", "/nowhere/counts.json"], "no such file"),
    ],
)
def test_questions_without_sense(arguments, why, capsys):
    assert cli.main(["offload", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_file_of_something_else(capsys, tmp_path):
    (tmp_path / "x.json").write_text('{"variants": {"a": {}}}')
    assert cli.main(["offload", "--counts", str(tmp_path / "x.json")]) == 2
    assert "is not a file of counts" in capsys.readouterr().err
