"""Guarded jobs whose networking is done by the engines of their hosts: the engines have the secret,
the ranks have none."""

from __future__ import annotations

from pathlib import Path

import guarded
import pytest
import torch
from guarded import MODES
from host_engine import end, start
from named_errors import check_error
from ranks import RankError
from test_guarded_jobs import guarded_well

from torch_mcast.engine import read
from torch_mcast.secret import new, role

all_tier = pytest.mark.all_tier
PER_HOST = 2


def written(path: Path) -> str:
    path.write_text(new())
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def secret(tmp_path_factory) -> str:
    return written(tmp_path_factory.mktemp("engines") / "secret")


@pytest.fixture
def hosts(lab, secret):
    """Two hosts with an engine and two ranks each; their ranks may request any mode here."""
    engine_options = ("--secret-file", secret, "--security", ",".join(MODES))
    return lab(
        preload=guarded.PRELOAD, hosts=2, ranks_per_host=PER_HOST, rate="1gbit",
        engine_options=engine_options,
    )  # fmt: skip


def by_engine(stats) -> bool:
    return stats["transport_reason"].startswith("engine of this host (process ")


def test_collectives_have_the_same_bits_in_every_mode(hosts, secret):
    """This also holds if the ranks of one host use no engine, and have the secret themselves."""
    alone = {"engine": "inproc", "security": "sealed", "secret_file": secret}
    mixed = [{"security": "sealed"}] * PER_HOST + [alone] * PER_HOST
    choices = {mode: [{"security": mode}] * 2 * PER_HOST for mode in MODES} | {"mixed": mixed}
    choices["digests"] = [{**options, "source_auth": 1} for options in mixed]
    digests = {}
    for name, each in choices.items():
        rows = hosts.run(guarded.chosen, each, 5, 8)
        for row, options in zip(rows, each, strict=True):
            guarded_well(row["stats"], options["security"])
            assert by_engine(row["stats"]) == ("engine" not in options)
            compared = row["stats"]["counters"]["blocks_verified"]
            assert (compared > 0) == ("source_auth" in options), compared
        digests[name] = [row["digest"] for row in rows]
    assert all(d == digests["off"] for d in digests.values()), digests


@pytest.mark.parametrize("modes", [("off", "sealed"), pytest.param(MODES, marks=all_tier)])
def test_training_has_the_same_bits_in_every_mode(hosts, modes):
    reference = None
    for mode in modes:
        for row in hosts.run(guarded.trained, {"security": mode}):
            guarded_well(row["stats"], mode)
            assert by_engine(row["stats"])
            reference = reference or row["parameters"]
            assert row["parameters"].keys() == reference.keys()
            for name, value in row["parameters"].items():
                assert torch.equal(value, reference[name]), (mode, name)


@pytest.mark.parametrize("mode", ["off", "sealed", pytest.param("auth", marks=all_tier)])
def test_what_is_sealed_cannot_be_read_on_the_wire(hosts, mode):
    for row in hosts.run(guarded.overheard, {"security": mode}, "eth0", 2 * PER_HOST):
        guarded_well(row["stats"], mode)
        assert by_engine(row["stats"]) and row["bytes"] > 3 * (48 << 10)
        # Without encryption the search finds them, so the search works.
        assert (row["told"] == 0) == (mode == "sealed"), row


def test_an_aggregator_that_has_the_role_folds(lab, secret, tmp_path, monkeypatch):
    """The engines prove the secret to it; it has only the secret derived for aggregators."""
    cluster = lab(
        preload=guarded.PRELOAD, hosts=4, rate="1gbit",
        engine_options=("--secret-file", secret, "--security", "sealed"),
        aggregators=1, aggregator_options=("--lanes", "2"),
    )  # fmt: skip
    file = tmp_path / "role"
    file.write_text(role(Path(secret).read_text()))
    file.chmod(0o600)
    with monkeypatch.context() as patch:
        patch.setenv("MCAST_SECURITY", "sealed")
        patch.setenv("MCAST_SECRET_FILE", str(file))
        cluster.lab.aggregation.restart("a1")
    # A station that waits for a core is not lost.
    options = {"security": "sealed", "aggregator_patience": 30_000}
    rows = cluster.run(guarded.aggregated, options)
    for row in rows:
        guarded_well(row, "sealed")
        assert by_engine(row)
        assert row["counters"]["agg_results"] > 0 and row["counters"]["agg_lost"] == 0, row
    assert rows[0]["aggregators"][0]["state"] == "admitted"
    assert not cluster.lab.aggregation.status("a1")["refused"].get("security")


def test_datagrams_that_an_engine_refuses_appear_in_stats_of_its_ranks(hosts):
    rows = hosts.run(guarded.jostled, {"security": "sealed"})
    for row in rows[PER_HOST:]:  # rows of the other host
        seen = row["seen"]
        assert seen["causes"]["downgraded"] > 0, seen
        (source,) = [s for s in seen["sources"] if s["causes"].get("downgraded")]
        assert source["address"].startswith("10.")
        assert 'cause="downgraded"} ' in row["metrics"]
        assert f'source="{source["address"]}"' in row["metrics"]


def test_another_secret_is_named_by_all(hosts, tmp_path):
    theirs = {"engine": "inproc", "security": "sealed", "secret_file": written(tmp_path / "other")}
    choices = [{"security": "sealed"}] * (2 * PER_HOST - 1) + [theirs]
    ranks = list(range(2 * PER_HOST))
    call = hosts.start(guarded.creation, choices, "", len(ranks))
    call.wait("ended", ranks, timeout_s=90)
    call.signal("all have ended", None, ranks)
    for row in call.results():
        fields = check_error(row["error"], "secret_differs")
        assert ranks[-1] in (fields["rank"], fields["other"]) and row["after"] < 30, row


def nothing() -> None:
    """Creates a group; it may fail."""


@pytest.mark.parametrize(
    ("guards", "mode", "text"),
    [
        (True, "off", "serves security=auth,sealed, this group has security=off"),
        (False, "sealed", "has no secret and serves security=off only"),
    ],
)
def test_a_security_mode_that_an_engine_does_not_serve_is_refused_by_name(
    ranks, tmp_path, secret, guards, mode, text
):
    path = tmp_path / "engine.sock"
    process = start(path, *(("--secret-file", secret) if guards else ()))
    try:
        env = {"MCAST_ENGINE": f"host:{path}", "MCAST_SECURITY": mode}
        with pytest.raises(RankError, match=text):
            ranks(2, nothing, env=env, timeout_s=60)
        assert read(path)["security"]["modes"] == (["auth", "sealed"] if guards else ["off"])
    finally:
        end(process)
