"""Guarded groups with an aggregator that has the role of their secret: sums are exact, and folded
there. An aggregator without it is left out, with its name in both logs, and owners fold."""

import os

import guarded
import pytest

from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool
from torch_mcast.secret import new, role

pytestmark = pytest.mark.usefixtures("lab_rights")
HOSTS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files[name]: a secret, and the one derived from it for aggregators."""
    folder = tmp_path_factory.mktemp("secrets")
    texts = {"job": new(), "other": new()}
    texts |= {f"role of {name}": role(text) for name, text in texts.items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return {name: str(folder / name) for name in texts}


@pytest.fixture(scope="module")
def lab():
    with Lab(LabSpec(hosts=HOSTS, aggregators=1, aggregator_options=("--lanes", "2"))) as it:
        yield it


@pytest.fixture
def served(lab, monkeypatch):
    """served(mode, secret): ranks, and an aggregator with these settings."""
    pools = []

    def start(mode, secret):
        lab.aggregation.kill("a1")
        with monkeypatch.context() as patch:
            patch.setenv("MCAST_SECURITY", mode)
            if secret:
                patch.setenv("MCAST_SECRET_FILE", secret)
            lab.aggregation.start("a1")
        assert "MCAST_SECURITY" not in os.environ
        pools.append(Pool.in_lab(lab, guarded.PRELOAD))
        return pools[-1].__enter__()

    yield start
    for pool in pools:
        pool.__exit__(None, None, None)


def options(files, mode):
    # A station that waits for a core is not lost.
    return {"security": mode, "secret_file": files["job"], "aggregator_patience": 30_000}


@pytest.mark.parametrize("mode", ["sealed", pytest.param("auth", marks=pytest.mark.all_tier)])
def test_aggregators_with_the_role_fold_reductions(lab, served, files, mode):
    ranks = served(mode, files["role of job"])
    rows = ranks.run(guarded.aggregated, options(files, mode))
    for row in rows:
        assert row["counters"]["agg_results"] > 0 and row["counters"]["agg_lost"] == 0, row
        assert row["security"]["mode"] == mode and not row["failure"]
    assert rows[0]["aggregators"][0]["state"] == "admitted"
    assert not lab.aggregation.status("a1")["refused"].get("security")


@pytest.mark.parametrize(
    ("mode", "secret", "text"),
    [
        ("sealed", "role of other", "the group's proof is wrong"),
        pytest.param("sealed", "job", "the group's proof is wrong", marks=pytest.mark.all_tier),
        pytest.param("auth", "role of job", "security=auth", marks=pytest.mark.all_tier),
        ("off", None, "is its security off?"),
    ],
)
def test_an_aggregator_without_the_role_is_left_out_by_name(served, files, mode, secret, text):
    ranks = served(mode, secret and files[secret])
    rows = ranks.run(guarded.aggregated, options(files, "sealed"))
    for row in rows:
        assert row["counters"]["agg_results"] == 0 and not row["failure"]
    (told,) = rows[0]["aggregators"]
    assert told["state"] != "admitted" and text in told["reason"], told
