"""examples/train_fsdp.py: its sums, its picture, and that it prints both without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from report import comparison, sent, shares_table, together
from timeline import SHADES, Step, bar, busy, common, covered, merged, picture, shares, total
from torchrun import torchrun
from train_fsdp import device_for

from torch_mcast.bench.formulas import gloo_send_bytes, ring_send_bytes
from torch_mcast.secret import new

SCRIPT = Path(__file__).parents[2] / "examples" / "train_fsdp.py"
STEP = Step((("forward", 1000), ("backward", 1400), ("optimizer", 1900)), 2000)


def op(lane: str, first: int | None, last: int | None, posted: int = 0) -> dict[str, Any]:
    return {"lane": lane, "posted": posted, "first_byte": first, "last_byte": last}


TRACE = [
    op("multicast", 500, 1100),  # started in the previous step
    op("multicast", 1400, 1600),
    op("multicast", 1550, 1700),
    op("reduce", 1600, 1800),
    op("reduce", None, None),  # moved no data
    op("reduce", 1950, 2500),
]


def test_time_is_counted_once():
    assert merged([(5, 7), (1, 3), (2, 4), (4, 5)]) == [(1, 7)]
    assert merged([(3, 4), (1, 2)]) == [(1, 2), (3, 4)]
    assert common([(1, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]
    assert common([(1, 2)], [(2, 3)]) == []
    assert total([(1, 4), (6, 9)]) == 6


def test_lanes_are_busy_within_the_step():
    assert busy(TRACE, STEP.start, STEP.end) == {
        "multicast": [(1000, 1100), (1400, 1700)],
        "reduce": [(1600, 1800), (1950, 2000)],
    }
    assert shares(TRACE, [STEP]) == {"multicast": 0.4, "reduce": 0.25, "both": 0.1}
    assert shares([], []) == {"multicast": 0.0, "reduce": 0.0, "both": 0.0}


def test_a_bar_is_as_dark_as_its_column_is_busy():
    assert bar([(0, 100), (125, 150), (150, 151), (350, 400)], 0, 400, 4, SHADES) == "█▒ ▒"
    assert bar([], 0, 100, 3, SHADES) == "   "
    assert bar([(0, 100)], 0, 100, 200, "#").count("#") == 100  # columns shorter than a ns


@pytest.mark.parametrize("width", [30, 60, 80])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_picture_fits_and_shows_both_lanes(width, ascii_only):
    lines = picture(STEP, TRACE, width, ascii_only)
    assert max(map(len, lines)) == width
    assert [line.split()[0] for line in lines[1:4]] == ["multicast", "reduce", "both"]
    assert all(len(line) == len(line.encode()) for line in lines) is ascii_only
    columns = width - 10
    both = lines[3][10:].ljust(columns)
    assert both.strip() and not both[: columns * 6 // 10].strip()
    assert not both[-(-columns * 7 // 10) :].strip()
    assert lines[0][10:].startswith("|forward")
    assert lines[0][10 + columns * 4 // 10 :].startswith("|backward")


def test_steps_that_the_trace_has_lost_are_left_out():
    later = Step((("forward", 5000), ("backward", 6000)), 7000)
    trace = [op("multicast", 5100, 5200, posted=5050)]
    assert covered(trace, [STEP, later]) == [later]
    assert covered([], [STEP]) == []


def test_table_of_shares():
    lines = shares_table({"this step": [STEP]}, TRACE)
    assert lines[1].split() == ["this", "step", "40.0%", "25.0%", "10.0%"]
    assert len(lines[0]) == len(lines[1])


def test_the_bytes_of_other_backends_follow_the_formulas():
    for world in (2, 3, 8):
        others = 64 * (world - 1) / world
        assert ring_send_bytes("all_gather", 64, world) == others
        assert ring_send_bytes("all_reduce", 64, world) == 2 * others
        assert gloo_send_bytes("all_gather", 64, world) == others
        assert gloo_send_bytes("reduce_scatter", 64, world) == 2 * others
    assert ring_send_bytes("all_reduce", 64, 1) == 0


def rank_stats(datagrams: int, frames: int, reduce_frames: int) -> dict[str, Any]:
    counters = {
        "datagram_bytes_sent": datagrams,
        "frame_bytes_sent": frames,
        "repair_bytes_sent": 3,
    }
    reduce = {"datagram_bytes_sent": 0, "frame_bytes_sent": reduce_frames, "repair_bytes_sent": 0}
    calls = {"all_gather_into_tensor": 8000, "reduce_scatter_tensor": 1000, "barrier": 0}
    return {"size": 4, "bytes": calls, "counters": counters, "reduce_counters": reduce}


def test_the_bytes_of_ranks_are_summed_and_compared():
    one = sent(rank_stats(datagrams=2100, frames=3200, reduce_frames=3100))
    assert (one.gathers, one.reductions, one.together, one.repairs) == (2200, 3100, 5300, 3)
    # A ring: 3/4 of 8000 and 3/4 of the reduction's input, 4 x 1000. Gloo reduces all of it.
    assert (one.ring_gathers, one.ring, one.gloo) == (6000, 9000, 12000)
    both = together([one, sent(rank_stats(2000, 3000, 3000))])
    assert (both.gathers, both.reductions, both.ring) == (4200, 6100, 18000)
    text = "\n".join(comparison(one))
    assert "2.73 times" in text and "ring 1.70 times" in text and "Gloo 2.26 times" in text
    nothing = {**rank_stats(0, 0, 0), "bytes": {}}
    assert comparison(sent(nothing)) == []


@pytest.mark.parametrize(
    ("asked", "gpus", "ranks", "device"),
    [("auto", 0, 1, "cpu"), ("auto", 4, 4, "cuda"), ("auto", 1, 4, "cpu"), ("cpu", 4, 4, "cpu"), ("cuda", 1, 2, "cuda")],
)  # fmt: skip
def test_gpus_are_taken_where_each_rank_has_one(asked, gpus, ranks, device):
    assert device_for(asked, gpus, ranks) == device


def trained(*more: str, **env: str) -> str:
    """Returns the example's output for two ranks without shared memory."""
    size = ["--steps", "3", "--batch", "1", "--context", "16", "--width", "48", "--layers", "2"]
    done = forked.ranks(
        2, [SCRIPT, *size, *more],
        {**os.environ, "MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
         "MCAST_SHARED_MEMORY": "off", "PYTHONIOENCODING": "ascii", **env},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[float]]:
    """Returns the output of an unguarded training, and its losses: one run for all tests, since
    each costs its processes five seconds of CPU time to import torch and FSDP."""
    path = tmp_path_factory.mktemp("plain") / "losses.json"
    said = trained("--prefetch", "2", "--json", str(path))
    return said, json.loads(path.read_text())["losses"]


def test_training_without_a_terminal_or_unicode(plain):
    said, _ = plain
    assert said.isascii() and "\x1b" not in said
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert "path: multicast" in said and "2 ranks on " in said
    assert "All-gathers alone: a ring would have sent" in said
    # However small a part of a column it fills, which depends on the machine.
    assert any(line.startswith("multicast ") and set(line[10:]) & set(".:+#") for line in lines)
    assert any(line.startswith("all 3 steps") for line in lines)


# `make test` leaves it out, rather than skip it, if it cannot run.
TIER = pytest.mark.not_everywhere if torch.cuda.is_available() else pytest.mark.all_tier


@TIER
@pytest.mark.not_everywhere
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")
def test_gpus_train_where_there_are_some():
    ranks = torch.cuda.device_count()
    done = subprocess.run(
        [*torchrun(ranks), str(SCRIPT), "--device", "cuda", "--steps", "3"],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
             "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ranks} ranks on cuda" in done.stdout and "in 3 steps" in done.stdout


@pytest.mark.parametrize(
    "mode", ["sealed", *(pytest.param(m, marks=pytest.mark.all_tier) for m in ("auth", "engine"))]
)
def test_the_losses_are_the_same_in_a_guarded_group_and_by_an_engine(
    plain, tmp_path, mode, engine_socket
):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(new())
    how = {"MCAST_SECURITY": mode, "MCAST_SECRET_FILE": str(secret)}
    if mode == "engine":
        how = {"MCAST_ENGINE": f"host:{engine_socket}"}
    path = tmp_path / "losses.json"
    assert "path: multicast" in trained("--json", str(path), **how)
    losses = json.loads(path.read_text())["losses"]
    assert losses and losses == plain[1]
