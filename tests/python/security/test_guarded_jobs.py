"""Jobs of several hosts in every mode: the same bits, no readable data on the wire if it is sealed,
and a named error on all ranks, soon, if their settings do not match."""

from pathlib import Path

import guarded
import pytest
import torch
from attackers import RANKS
from guarded import MODES
from named_errors import by_rank, check_error

import torch_mcast
from torch_mcast.secret import new

all_tier = pytest.mark.all_tier
SOON = 30  # seconds; the creation's own limit is 60
SUITES = ("aes128gcm", "aes256gcm", "chacha20poly1305")


@pytest.fixture
def secret(tmp_path):
    """secret(name): the path of a new secret."""

    def make(name: str = "secret") -> str:
        path: Path = tmp_path / name
        if not path.exists():
            path.write_text(new())
            path.chmod(0o600)
        return str(path)

    return make


def options(mode: str, secret, **more) -> dict:
    # (The workers have guarded groups of other tests.)
    off = {"security_mixed": 1}
    kept = off if mode == "off" else {"security": mode, "secret_file": secret()}
    return {**kept, **more}


def guarded_well(stats, mode):
    told = stats["security"]
    assert told["mode"] == mode and stats["path"] in ("multicast", "ring") and not stats["failure"]
    if mode == "off":
        assert told["suite"] == told["library"] == "" and told["sealed"] == 0
        return
    assert told["suite"] in SUITES and told["library"].startswith("OpenSSL 3")
    assert "secret_id" not in told and not told["trust_store"] and told["epoch"] == 0
    assert told["untried"] == 0
    # (Datagrams of the previous group, in another mode and at the same address, may still arrive.)
    unwanted = {
        c: told["causes"][c] for c in ("forged", "forged_header", "replayed", "source_moved")
    }
    assert not any(unwanted.values()), (unwanted, told)
    if stats["path"] == "multicast":
        assert told["sealed"] > 0 and told["opened"] > 0


def same_bits(cluster, modes, secret, count, world=0, **more):
    digests = {}
    for mode in modes:
        rows = cluster.run(guarded.collectives, options(mode, secret, **more), 5, count, world)
        rows = [row for row in rows if row is not None]
        for row in rows:
            guarded_well(row["stats"], mode)
        digests[mode] = [row["digest"] for row in rows]
    assert all(d == digests["off"] for d in digests.values()), digests


@pytest.fixture
def two(lab):
    """Two hosts with two ranks each: rails, and ranks that share memory."""
    return lab(preload=guarded.PRELOAD, hosts=2, ranks_per_host=2, rate="1gbit")


def test_collectives_have_the_same_bits_in_every_mode(segment, secret):
    same_bits(segment, MODES, secret, 20, RANKS)


def test_collectives_of_hosts_with_several_ranks(two, secret):
    same_bits(two, MODES, secret, 12)


@all_tier
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("algorithm", ["ring", "auto"])
def test_every_suite_on_both_paths(segment, secret, suite, algorithm):
    more = {"algorithm": algorithm, "security_suite": suite}
    same_bits(segment, MODES, secret, 60, RANKS, **more)


@all_tier
@pytest.mark.parametrize("more", [{"subgroups": 2}, {"faults": "drop:rate=0.02,type=data"}])
def test_parts_and_losses(segment, secret, more):
    same_bits(segment, MODES, secret, 40, RANKS, **more)


def blocks_compared(cluster, secret, world=0, **more):
    """Digests of blocks are equal in every mode that has them; all blocks are those of their roots."""
    given = [options("off", secret, **more)]
    given += [options(mode, secret, source_auth=1, **more) for mode in ("auth", "sealed")]
    digests = []
    for one in given:
        rows = cluster.run(guarded.collectives, one, 5, 12, world)
        rows = [row for row in rows if row is not None]
        digests.append([row["digest"] for row in rows])
        for row in rows:
            counters = row["stats"]["counters"]
            assert (counters["blocks_verified"] > 0) == ("source_auth" in one), counters
            assert counters["blocks_forged"] == 0
    assert digests[0] == digests[1] == digests[2], digests


LOSSES = {"faults": "drop:rate=0.02,type=data"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"algorithm": "ring"}, marks=all_tier),
        pytest.param(LOSSES, marks=all_tier),
        pytest.param({"subgroups": 2}, marks=all_tier),
    ],
)
def test_blocks_are_compared_with_source_auth(segment, secret, more):
    blocks_compared(segment, secret, RANKS, **more)


@all_tier
def test_blocks_of_hosts_with_several_ranks_are_compared(two, secret):
    blocks_compared(two, secret)


def test_a_store_that_is_trusted_needs_no_secret(segment):
    more = {"security": "sealed", "trust_store": 1}
    rows = segment.run(guarded.collectives, more, 3, 4, RANKS)[:RANKS]
    assert all(row["stats"]["security"]["trust_store"] for row in rows)


@pytest.mark.parametrize("modes", [("off", "sealed"), pytest.param(MODES, marks=all_tier)])
def test_training_has_the_same_bits_in_every_mode(two, secret, modes):
    reference = None
    for mode in modes:
        rows = two.run(guarded.trained, options(mode, secret))
        for row in rows:
            guarded_well(row["stats"], mode)
            reference = reference or row["parameters"]
            assert row["parameters"].keys() == reference.keys()
            for name, value in row["parameters"].items():
                assert torch.equal(value, reference[name]), (mode, name)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_sealed_cannot_be_read_on_the_wire(segment, secret, mode):
    rows = segment.run(guarded.overheard, options(mode, secret), "eth0", RANKS)[:RANKS]
    for row in rows:
        guarded_well(row["stats"], mode)
        assert row["bytes"] > 3 * (48 << 10), "the ear has heard little"
        # Without encryption the search finds them, so the search works.
        assert (row["told"] == 0) == (mode == "sealed"), row


def refused(segment, choices, how=""):
    ranks = list(range(RANKS))
    call = segment.start(guarded.creation, choices, how, RANKS)
    call.wait("ended", ranks, timeout_s=90)
    call.signal("all have ended", None, ranks)
    rows = call.results()[:RANKS]
    for row in rows:
        assert row["error"], "was made"
        assert row["after"] < SOON, rows
    return [row["error"] for row in rows]


def test_another_secret_is_named_by_all(segment, secret):
    ours, theirs = options("sealed", secret), options("sealed", lambda: secret("other"))
    for error in refused(segment, [ours, ours, theirs]):
        fields = check_error(error, "secret_differs")
        assert 2 in (fields["rank"], fields["other"]), error
        assert "MCAST_SECRET_FILE" in error


@pytest.mark.parametrize("other", ["off", "auth"])
def test_another_mode_is_named_by_all(segment, secret, other):
    ours, theirs = options("sealed", secret), options(other, secret)
    for error in refused(segment, [ours, theirs, ours]):
        modes = by_rank(check_error(error, "security_differs"), "security")
        assert modes[1] == other and set(modes.values()) == {"sealed", other}, error
        assert "MCAST_SECURITY" in error


def test_another_source_auth_is_named_by_all(segment, secret):
    ours, theirs = options("auth", secret, source_auth=1), options("auth", secret)
    for error in refused(segment, [ours, ours, theirs]):
        settings = by_rank(check_error(error, "settings_differ"), "settings")
        assert "source_auth=0" in settings.pop(2), error
        (ours,) = settings.values()
        assert "source_auth=1" in ours, error


def test_source_auth_without_security_is_refused():
    alone = torch_mcast.Options(source_auth=1, security="off")
    with pytest.raises(ValueError, match="source_auth: 1 needs security=auth or security=sealed"):
        alone.resolved()


def test_a_rank_without_a_secret_is_named_by_all(segment, secret):
    ours = options("sealed", secret)
    for error in refused(segment, [ours, ours, {"security": "sealed"}]):
        assert "security needs a secret" in error


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("address", "the record of rank 1 was changed in the store"),
        pytest.param("another key", "the record of rank 1 was changed", marks=all_tier),
    ],
)
def test_a_changed_record_is_named_by_all(segment, secret, how, text):
    for error in refused(segment, [options("sealed", secret)] * RANKS, how):
        assert text in error


@pytest.mark.parametrize(
    ("how", "mode"), [("stripped", "off"), pytest.param("mode", "auth", marks=all_tier)]
)
def test_a_changed_mode_is_named_by_all(segment, secret, how, mode):
    for error in refused(segment, [options("sealed", secret)] * RANKS, how):
        modes = by_rank(check_error(error, "security_differs"), "security")
        assert modes[1] == mode and set(modes.values()) == {"sealed", mode}, error


def test_verbs_without_a_device_are_refused_as_in_any_group(segment, secret):
    for error in refused(segment, [options("sealed", secret, transport="verbs")] * RANKS):
        assert "rank 0 on host" in error and "cannot use verbs: " in error


def test_an_unencrypted_fallback_is_refused_and_the_error_names_the_setting(segment, secret):
    rows = segment.run(guarded.fallen_back, options("sealed", secret), RANKS)[:RANKS]
    for rank, row in enumerate(rows):
        assert row["stats"]["security"]["clear_fallback_calls"] == 0 and row["warnings"] == []
        assert "has no fallback backend for that device" in row["error"], (rank, row)
        assert "unless GLOO_DEVICE_TRANSPORT=TCP_TLS is set" in row["error"]


def test_calls_of_a_requested_unencrypted_fallback_are_counted(segment, secret):
    asked = options("sealed", secret, fallback="gloo")
    rows = segment.run(guarded.fallen_back, asked, RANKS)[:RANKS]
    for rank, row in enumerate(rows):
        assert row["error"] == ""
        clear = [text for text in row["warnings"] if "are sent unencrypted" in text]
        assert len(clear) == 1, row["warnings"]
        assert row["stats"]["security"]["clear_fallback_calls"] == 2, rank
    # of the first sum; the second one starts from that on all ranks
    total = RANKS * (RANKS + 1) / 2
    assert rows[1]["sum"] == 1000.0 * total * RANKS


def test_sends_are_guarded_like_all_else(segment, secret):
    rows = segment.run(guarded.sent, options("sealed", secret), RANKS)[:RANKS]
    assert rows[1]["sum"] == 100_000.0
    for rank, row in enumerate(rows):
        assert row["stats"]["security"]["clear_fallback_calls"] == 0
        made = {name: row["stats"]["calls"].get(name) for name in ("send", "recv")}
        one = {"engine": 1, "fallback": 0}
        assert made == {"send": one if rank == 0 else None, "recv": one if rank == 1 else None}
