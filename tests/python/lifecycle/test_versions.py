"""Two installed versions in one job: all ranks report it at once, with both versions and their ranks."""

from __future__ import annotations

import pytest
from named_errors import by_rank, check_error
from scenarios_version import OTHER

import torch_mcast

OURS = torch_mcast.__version__


@pytest.mark.parametrize("what", ["version", "protocol", "record"])
@pytest.mark.parametrize("other", [0, 1])
def test_two_versions_in_one_job(job, other, what):
    """`record`: the other rank's record cannot be read here, except its first lines."""
    with job(3, "scenarios_version.two_versions", other, what) as it:
        for rank in it.ranks:
            text = rank.expect("error")["text"]
            head = f"mcast: rank {rank.number} of 3 could not make group '0': mismatch: "
            assert text.startswith(head), text
            said = by_rank(check_error(text, "version_differs"), "version")
            assert len(said) == 2 and 0 in said, text
            mine, theirs = OURS, OTHER
            if what == "protocol":
                number = min(int(text.rpartition(" ")[2]) for text in said.values())
                mine, theirs = (f"{OURS}, protocol {n}" for n in (number, number + 1))
            assert set(said.values()) == {mine, theirs}, text
            if rank.number != other:  # that rank compares the others in the same way
                assert said.get(other) == theirs, text
        it.expect("good")
        it.end()
