"""Ranks of one host under a memory limit of their cgroup (v2), as in a container: they work, or all
of them end with an error in bounded time. Runs in a virtual machine, whose cgroups belong to the
test."""

from __future__ import annotations

import re

import pytest

KILLED = 128 + 9
# MiB, and the limited ranks: too little to create a group, for the first broadcast, for an
# all-gather.
CASES = ["2:1", "4:01", "8:0", "16:1", "24:01", "200:01"]


@pytest.mark.alone  # its ranks have 10 s to make a group
@pytest.mark.all_tier  # an emulated machine takes half a minute for it
def test_ranks_in_a_memory_cgroup(driver, machines):
    script = "tests/python/verbs/limited.sh"
    nodes = machines(1, ["sh", script, driver, *CASES], memory_mb=768)
    assert nodes.result.code == 0, nodes.text()
    said = dict(re.findall(r"^CASE (\S+)\n(.*?)(?=^CASE |\Z)", nodes.outputs[0], re.M | re.S))
    assert list(said) == CASES
    ended = {case: [check(case, text, rank) for rank in (0, 1)] for case, text in said.items()}
    assert ended["2:1"] == ended["16:1"] == [1, KILLED] and ended["8:0"] == [KILLED, 1], ended
    assert ended["200:01"] == [0, 0], ended


def check(case: str, text: str, rank: int) -> int:
    """Returns the exit code of a rank: it succeeded, was killed by the kernel, or reports the reason."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    code, lines = int(values[f"code{rank}"]), re.findall(rf"^{rank} (.*)$", text, re.M)
    if code == 0:
        assert "failures=0" in lines and "path=shared memory" in lines, (case, text)
    elif code == KILLED:
        assert str(rank) in case.partition(":")[2] and int(values["oom_kills"]) > 0, (case, text)
    else:
        failed = [line for line in lines if line.startswith("FAILED ")]
        assert code == 1 and failed, (case, text)
        assert "resource_exhausted" in failed[0] or f"rank {1 - rank}" in failed[0], (case, text)
    return code
