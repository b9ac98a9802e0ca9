"""A host without the secret attacks a guarded job while all-gathers run: bytes are exact, the
attacker's datagrams are counted with cause and source, memory is bounded. The tests never assert
times."""

import pytest
from test_attacks import attacker_address, left_for_the_ring, refused, run, unharmed

from torch_mcast.secret import new

# Chunks are missing for a while at every rank, so chunks that are forged in their place are
# checked.
LOSSES = {"faults": "drop:rate=0.2,type=data", "cutoff": "200", "algorithm": "multicast"}


@pytest.fixture(params=["sealed", pytest.param("auth", marks=pytest.mark.all_tier)])
def guarded(request, tmp_path):
    path = tmp_path / "secret"
    path.write_text(new())
    path.chmod(0o600)
    return {"security": request.param, "secret_file": str(path)}


def test_altered_datagrams_are_refused_and_counted_by_cause_and_source(segment, guarded):
    # Whether a rank checks a forged chunk depends on the chunks it misses.
    rows, _ = run(segment, "guarded_siege", "forged", **guarded, **LOSSES)
    unharmed(rows)
    for cause in ("foreign", "downgraded", "forged_header", "malformed"):
        assert min(refused(rows, cause)) > 0, (cause, refused(rows, cause))
    assert sum(refused(rows, "forged")) > 0, refused(rows, "forged")
    for row in rows:
        told = row["stats"]["security"]
        assert told["causes"]["damaged"] == 0, "a lane takes one version only"
        worst = told["sources"][0]
        assert worst["address"] == attacker_address(segment)
        assert worst["causes"]["forged_header"] > 0
        assert row["stats"]["counters"]["duplicates"] + row["stats"]["counters"]["stale"] > 0


def test_a_blind_flood_costs_nothing_but_time(segment, guarded):
    rows, _ = run(segment, "blind_flood", **guarded)
    unharmed(rows)
    # The noise does not parse; datagrams of another job have the wrong version here.
    assert min(refused(rows, "malformed")) > 0 and min(refused(rows, "downgraded")) > 0
    for row in rows:
        assert row["stats"]["security"]["untried"] == 0
        assert row["stats"]["security"]["sources"][0]["address"] == attacker_address(segment)


def test_a_flooded_address_is_left_for_the_ring(segment, guarded):
    left_for_the_ring(segment, **guarded)


def test_a_siege_of_connections_leaves_the_job_alone(segment, guarded):
    rows, _ = run(segment, "hello_siege", **guarded)
    unharmed(rows)
    for row in rows:
        causes = row["stats"]["security"]["causes"]
        assert causes["hello_refused"] > 0 and causes["crowded_out"] > 0
        assert attacker_address(segment) in {
            s["address"] for s in row["stats"]["security"]["sources"]
        }


def test_a_member_s_address_makes_no_member(segment, guarded):
    """Sends noise, and true headers with other bytes, with a rank's IP source address."""
    rows, _ = run(segment, "spoofed_member", "forged_header", **guarded, **LOSSES)
    unharmed(rows)
    # (The rank that has this address does not accept packets from outside with it.)
    assert sum(refused(rows, "malformed")) > 0 and sum(refused(rows, "forged_header")) > 0
    told = [s for row in rows for s in row["stats"]["security"]["sources"]]
    spoofed = segment.lab.workers[1].address
    assert any(s["address"] == spoofed and s["causes"]["forged_header"] > 0 for s in told)
    assert attacker_address(segment) not in {s["address"] for s in told}, "as spoofed"


def test_hellos_without_the_secret_get_nowhere(segment, guarded):
    rows, _ = run(segment, "guarded_hellos", **guarded)
    unharmed(rows)
    for cause in ("hello_refused", "hello_timeouts"):
        assert min(refused(rows, cause)) > 0, (cause, refused(rows, cause))
    for row in rows:
        told = row["stats"]["security"]["sources"]
        assert attacker_address(segment) in {s["address"] for s in told}
