"""A host that is not a rank attacks a job in the same segment while all-gathers run. The tests
assert the results, every byte; the counts, with their cause and source; the memory of the ranks.
They never assert times."""

import attackers
import pytest
from attackers import ATTACKER, RANKS

# Bytes by which an attack may make a rank grow, without its socket buffers (which the kernel
# holds).
GROWTH = 24 << 20


def run(segment, name, cause="", **options):
    """Returns (rows of the ranks, number of datagrams that the attacker sent). Rounds continue
    until `cause` has been counted."""
    ranks = list(range(RANKS))
    call = segment.start(attackers.play, name, options, cause)
    found = call.wait("made", ranks)
    call.signal("targets", found, [ATTACKER])
    call.wait("ready", [ATTACKER])
    call.signal("attacked", None, ranks)
    call.wait("rounds are over", ranks, timeout_s=120)
    call.signal("enough", None, [ATTACKER])
    (sent,) = call.wait("spent", [ATTACKER], timeout_s=120)
    call.signal("attack is over")
    rows = call.results(timeout_s=120)
    assert sent > 0
    return rows[:RANKS], sent


def refused(rows, cause):
    return [row["stats"]["security"]["causes"][cause] for row in rows]


def unharmed(rows):
    for row in rows:
        stats = row["stats"]
        assert not stats["failure"] and stats["counters"]["ops_failed"] == 0
        assert stats["counters"]["mismatched"] == 0
        assert row["grown"] < GROWTH, f"grew by {row['grown'] >> 20} MiB"


def attacker_address(segment):
    return segment.lab.workers[ATTACKER].address


def left_for_the_ring(segment, port=0, **options):
    """Checks that ranks leave a flooded address for the ring. `port`: the flood's, if not the
    group's. A fault has the effect that the flood has on data on a slow link: nine of ten chunks
    are lost."""
    options |= {"faults": "drop:rate=0.9,type=data", "rate_test": 0}
    ranks = list(range(RANKS))
    call = segment.start(attackers.flooded, options)
    groups = call.wait("made", ranks)
    call.signal("group", (groups[0][0], port or groups[0][1]), [ATTACKER])
    call.wait("left", ranks, timeout_s=90)
    call.signal("enough", None, [ATTACKER])
    rows = call.results(timeout_s=120)
    assert rows[ATTACKER] > 10_000
    for row in rows[:RANKS]:
        there, stats = row["there"], row["stats"]
        assert "switched at operation" in there["reason"] and "is flooded" in there["reason"]
        assert groups[0] not in row["groups"], "the address is left"
        assert groups[0][0] not in row["memberships"], "by the host, too: else the flood comes on"
        assert any(address.startswith("239.") for address in row["memberships"])
        assert port or there["security"]["causes"]["malformed"] > 10_000
        assert stats["counters"]["ops_failed"] == 0 and not stats["failure"]
        assert stats["path"] == "multicast" and stats["counters"]["path_switches"] >= 2


@pytest.mark.all_tier
@pytest.mark.parametrize("port", [0, attackers.UNHEARD])
def test_a_flooded_address_is_left_for_the_ring(segment, port):
    left_for_the_ring(segment, port)


@pytest.mark.parametrize("monitor", ["on", "off"])
def test_a_blind_flood_is_refused_by_cause_and_source(segment, monitor):
    rows, _ = run(segment, "blind_flood", monitor=monitor)
    unharmed(rows)
    assert min(refused(rows, "foreign")) > 0 and min(refused(rows, "malformed")) > 0
    for row in rows:
        security = row["stats"]["security"]
        assert security["mode"] == "off" and security["sources_watched"] == (monitor == "on")
        if monitor == "off":
            assert security["sources"] == []
            continue
        worst = security["sources"][0]
        assert worst["address"] == attacker_address(segment)
        assert worst["causes"]["foreign"] > 0 and worst["causes"]["malformed"] > 0


def test_another_job_at_the_same_address_is_foreign(segment):
    rows, _ = run(segment, "foreign_job", monitor="on")
    unharmed(rows)
    for row in rows:
        causes = row["stats"]["security"]["causes"]
        assert causes["foreign"] > 0
        assert causes["damaged"] == causes["malformed"] == 0


def test_captured_headers_with_other_bytes_change_nothing(segment):
    rows, _ = run(segment, "spoofed_member", "damaged", monitor="on")
    unharmed(rows)
    told = [s for row in rows for s in row["stats"]["security"]["sources"]]
    assert sum(refused(rows, "damaged")) > 0
    assert attacker_address(segment) not in {s["address"] for s in told}, "as spoofed"


def test_a_siege_of_connections_leaves_the_job_alone(segment):
    rows, _ = run(segment, "hello_siege", monitor="on")
    unharmed(rows)
    for row in rows:
        causes = row["stats"]["security"]["causes"]
        assert causes["hello_refused"] > 0
        assert causes["crowded_out"] > 0
        assert attacker_address(segment) in {
            s["address"] for s in row["stats"]["security"]["sources"]
        }


def test_the_watch_names_who_joins_and_is_no_rank(segment):
    allowed = ",".join(segment.lab.workers[r].address for r in range(RANKS))
    call = segment.start(attackers.watched, allowed)
    call.wait("seen", [0], timeout_s=90)
    call.signal("enough", None, [ATTACKER])
    code, said = call.results(timeout_s=60)[0]
    assert code == 1
    assert f"STRANGER {attacker_address(segment)} has joined 239.7.7.7" in said


def test_allow_keeps_the_kernel_in_front(segment):
    ranks = ",".join(segment.lab.workers[r].address for r in range(RANKS))
    rows, _ = run(segment, "blind_flood", allow=ranks)
    unharmed(rows)
    assert refused(rows, "foreign") == refused(rows, "malformed") == [0] * RANKS
    rows, _ = run(segment, "hello_siege", allow=ranks)
    unharmed(rows)
    assert min(refused(rows, "not_allowed")) > 0
    assert refused(rows, "hello_refused") == [0] * RANKS
