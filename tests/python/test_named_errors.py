"""named_errors.py: an error with another name, code or field does not match."""

from __future__ import annotations

import pytest
from named_errors import LOST, SECONDS, blames, by_rank, is_error, raises_error

REASON = "rank 3 has been silent for 10.0 s (liveness limit 5.0 s)"
SILENT = (
    f"mcast barrier #1 on rank 0 of 4 in group 'g': peer_lost: {REASON}; its process is stopped"
)


def test_name_code_and_fields_are_compared():
    assert is_error(SILENT, "rank_silent", rank=3, silence=SECONDS, limit={"5.0 s", "6.0 s"})
    assert is_error(SILENT, {"rank_silent", *LOST}) and blames(SILENT, {2, 3}, "5.0 s")
    for wrong in ({"rank": 2}, {"rank": {1, 2}}, {"silence": str.isdigit}, {"pid": 3}):
        assert not is_error(SILENT, "rank_silent", **wrong), wrong
    assert not is_error(SILENT, LOST) and not is_error(SILENT, "rank_left")
    assert not is_error(SILENT.replace("peer_lost", "timeout"), "rank_silent")
    assert not is_error("mcast: peer_lost: there is none", "rank_silent")
    assert not blames(SILENT, {2}, "5.0 s") and not blames(SILENT, {3}, "6.0 s")


def test_an_exception_must_be_the_expected_error():
    with raises_error(RuntimeError, "rank_silent", rank=3) as caught:
        raise RuntimeError(SILENT)
    assert str(caught.value) == SILENT
    with (
        pytest.raises(AssertionError, match="expected rank_silent"),
        raises_error(RuntimeError, "rank_silent", rank=2),
    ):
        raise RuntimeError(SILENT)


def test_values_are_found_by_rank():
    fields = {"rank": 2, "call": "barrier", "other": 0, "other_call": "broadcast"}
    assert by_rank(fields, "call") == {2: "barrier", 0: "broadcast"}
