"""What the external programs that are measured have in common."""

from __future__ import annotations

from typing import Any, Protocol

from torch_mcast.lab.network import Lab


class Program(Protocol):
    """An external program, ready to be measured again and again."""

    version: str

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """{"s": seconds per operation of the slowest rank, None if it cannot do it; "cpu_s": of all
        ranks per operation or None; "right": results were right (or not checked); perhaps
        "algorithm": which one it used}. check: outputs are spoiled before."""


def one_rank_per_host(lab: Lab | None) -> bool:
    """Whether there are several hosts with one rank each: what programs of hosts can be compared with."""
    return bool(lab and lab.spec.hosts > 1 and lab.spec.ranks_per_host == 1)
