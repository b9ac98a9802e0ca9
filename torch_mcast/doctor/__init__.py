"""Checks this machine, and under a launcher the machines of a job against each other.

    python -m torch_mcast.doctor                    # this machine
    torchrun --nproc-per-node 4 -m torch_mcast.doctor      # every rank, and all ranks together
    srun --ntasks-per-node=1 torch-mcast doctor            # likewise

Each check examines one thing the library depends on. It reports the finding, a verdict, and the
command that repairs it. Sockets are plain Python ones, so that the machine can be checked even if
the extension cannot be loaded. The doctor changes nothing on the machine; it only sends a few
datagrams on loopback and on the interface that torch-mcast would use.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    from torch_mcast.doctor.cli import main as run

    return run(arguments)


__all__ = ["main"]
