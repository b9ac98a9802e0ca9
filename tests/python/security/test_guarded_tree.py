"""A guarded tree of aggregators: a leaf in each of two racks and one at the spine, all with the
secret of their role. Sums are exact, and folded on two levels. If the one at the spine has another
secret it is refused by name, and sums are exact without it: the leaves fold on one level, and
owners fold the rest."""

import guarded
import pytest

from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.pool import Pool
from torch_mcast.secret import new, role

pytestmark = pytest.mark.usefixtures("lab_rights")
LEAVES, TOP = ("a1", "a2"), "a3"
HOSTS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """files[name]: the job's secret, its role's, and that of another job's role."""
    folder = tmp_path_factory.mktemp("secrets")
    job, other = new(), new()
    for name, text in {"job": job, "role": role(job), "other": role(other)}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return {name: str(folder / name) for name in ("job", "role", "other")}


@pytest.fixture(scope="module")
def lab():
    spec = LabSpec(
        hosts=HOSTS, aggregators=3, racks=[2, 2], aggregator_racks=[1, 2, 0], uplink_rate="1gbit"
    )
    with Lab(spec) as it:
        yield it


def served(lab, files, monkeypatch, top):
    """Returns stats of all ranks, and the bytes that each aggregator has folded: those of the
    leaves, of the top."""
    for name, secret in [*((leaf, "role") for leaf in LEAVES), (TOP, top)]:
        with monkeypatch.context() as patch:
            patch.setenv("MCAST_SECURITY", "sealed")
            patch.setenv("MCAST_SECRET_FILE", files[secret])
            lab.aggregation.restart(name)
    options = {"security": "sealed", "secret_file": files["job"], "aggregator_patience": 30_000}
    with Pool.in_lab(lab, guarded.PRELOAD) as ranks:
        call = ranks.start(guarded.aggregated, options, True)
        call.wait("aggregated")
        folded = [
            sum(
                station["folded_bytes"]
                for job in lab.aggregation.status(name)["jobs"]
                for station in job["stations"]
            )
            for name in (*LEAVES, TOP)
        ]
        call.signal("looked")
        rows = call.results()
    assert not any(row["failure"] for row in rows)
    assert {row["security"]["mode"] for row in rows} == {"sealed"}
    return rows, folded


def test_a_sealed_tree_folds_on_two_levels(lab, files, monkeypatch):
    rows, (*leaves, top) = served(lab, files, monkeypatch, "role")
    assert {told["state"] for told in rows[0]["aggregators"]} == {"admitted"}
    sent = [row["counters"]["agg_bytes_sent"] for row in rows]
    assert min(sent) > 0 and not any(row["counters"]["agg_lost"] for row in rows)
    # Each leaf folds its rack's two contributions, the top the two sums, as long as one.
    assert leaves == [sum(sent[:2]), sum(sent[2:])]
    assert top == sum(sent) // 2
    assert sum(row["counters"]["agg_results"] for row in rows) > 0


def test_a_top_with_another_secret_is_refused_and_owners_fold(lab, files, monkeypatch):
    rows, (*leaves, top) = served(lab, files, monkeypatch, "other")
    told = {row["address"].split("/")[-1].split(":")[0]: row for row in rows[0]["aggregators"]}
    refused = told[lab.host(TOP).address]
    assert refused["state"] != "admitted" and "the group's proof is wrong" in refused["reason"]
    assert lab.aggregation.status(TOP)["refused"].get("security", 0) > 0
    # The leaves fold, on one level, their part of the ranks' 16 MiB per round; owners fold the
    # rest.
    sent = [row["counters"]["agg_bytes_sent"] for row in rows]
    assert top == 0 and sum(leaves) == sum(sent)
    most = rows[0]["rounds"] * 4 * guarded.ELEMENTS * (HOSTS - 1) / HOSTS
    assert all(0 < bytes_ < most for bytes_ in sent)
    assert not any(row["counters"]["agg_lost"] for row in rows)
