"""The interface of the external programs that are measured."""

from __future__ import annotations

from typing import Any, Protocol

from torch_mcast.lab.network import Lab


class Program(Protocol):
    """An external program, ready to be measured repeatedly."""

    version: str

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Returns {"s": seconds per operation of the slowest rank, None if the program lacks it;
        "cpu_s": of all ranks per operation or None; "right": results were right (or not checked);
        optionally "algorithm": the one it used}. check: outputs are overwritten before the run."""


def one_rank_per_host(lab: Lab | None) -> bool:
    """Returns whether there are several hosts with one rank each, as a comparison with programs
    that run once per host needs."""
    return bool(lab and lab.spec.hosts > 1 and lab.spec.ranks_per_host == 1)
