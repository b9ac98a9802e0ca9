"""torchrun on this machine alone, whatever its own name resolves to: in a bare root or a container
often nothing."""

from __future__ import annotations

import sys

LOCAL = [
    sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
    "--local-addr", "127.0.0.1",
]  # fmt: skip


def torchrun(ranks: int, python: str = sys.executable) -> list[str]:
    """The command, but for the script."""
    return [python, *LOCAL[1:], "--nproc-per-node", str(ranks)]
