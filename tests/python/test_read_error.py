"""torch_mcast.read_error(): name and fields of the errors that a rank gets."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_mcast


def calls_that_differ() -> dict:
    rank = dist.get_rank()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_gather_into_tensor(torch.zeros(8 + 8 * rank), torch.ones(4 + 4 * rank))
    return torch_mcast.read_error(caught.value)


def test_a_mismatch_names_both_ranks_and_calls(ranks):
    for found in ranks(2, calls_that_differ):
        assert (found["code"], found["error"]) == ("mismatch", "operation_differs")
        fields = found["fields"]
        assert {fields["rank"], fields["other"]} == {0, 1} and fields["sequence"] == 0
        calls = {f"all_gather_into_tensor({size} bytes, element type 6)" for size in (16, 32)}
        assert {fields["call"], fields["other_call"]} == calls


def abort_in_a_group() -> tuple[dict, dict]:
    group = dist.new_group(backend="mcast")
    if dist.get_rank() == 0:
        torch_mcast.abort(group)
    with pytest.raises(dist.DistBackendError) as caught:
        while True:
            dist.barrier(group)
    return torch_mcast.read_error(caught.value), torch_mcast.read_error(
        torch_mcast.stats(group)["failure"]
    )


def test_an_abort_is_read_from_an_exception_and_from_stats(ranks):
    for pair in ranks(2, abort_in_a_group):
        for found in pair:
            assert (found["code"], found["error"]) == ("aborted", "aborted")
            assert found["fields"] == {"rank": 0, "reason": "abort() on rank 0"}


def test_a_text_without_a_name_has_perhaps_a_code():
    none = {"code": None, "error": None, "fields": {}}
    assert torch_mcast.read_error("") == none == torch_mcast.read_error(KeyError("rank"))
    text = "mcast barrier #1 on rank 0 of 2 in group 'g': closed: the group was shut down"
    assert torch_mcast.read_error(text) == {"code": "closed", "error": None, "fields": {}}
    silent = "rank 3 has been silent for 10.0 s (liveness limit 5.0 s); its process is stopped"
    assert torch_mcast.read_error(silent) == {
        "code": "peer_lost",
        "error": "rank_silent",
        "fields": {"rank": 3, "silence": "10.0 s", "limit": "5.0 s"},
    }
