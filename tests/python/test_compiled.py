"""Functional collectives in a compiled function: traced by `aot_eager`, compiled by inductor in
make test-all.

Inductor's own compiler fails if the path of torch contains a space, so a separate job imports torch
through a link whose path has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torchrun import torchrun


def compiled(backend: str) -> None:
    """Runs as each rank, in the default group."""
    import torch.distributed._functional_collectives as functional

    import torch_mcast

    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD

    def step(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", group)
        every = functional.all_gather_tensor(x + 1, 0, group)
        part = functional.reduce_scatter_tensor(every, "sum", 0, group)
        return total + part + functional.broadcast(x, 1, group)

    def served() -> int:
        return sum(c["engine"] for c in torch_mcast.stats()["calls"].values())

    x = torch.arange(4.0) + rank
    expected = step(x)
    before = served()
    found = torch.compile(step, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(found, expected)
    assert served() >= 4 + before
    total = sum(2 * (torch.arange(4.0) + r) for r in range(world))
    torch.testing.assert_close(found, total + world * (x + 1) + torch.arange(4.0) + 1)
    # In one write: ranks share the output.
    sys.stdout.write(f"rank {rank}: torch of {Path(torch.__file__).parents[1]}\n")


def test_functional_collectives_traced(ranks):
    """Runs the graph that inductor would get, unchanged."""
    ranks(2, compiled, "aot_eager")


@pytest.mark.all_tier
def test_functional_collectives_compiled():
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="compiled-") as folder:
        link = Path(folder) / "packages"
        link.symlink_to(Path(torch.__file__).parents[1])
        done = subprocess.run(
            [*torchrun(2), __file__], capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "MCAST_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                 "TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache", "TMPDIR": folder,
                 "PYTHONPATH": os.pathsep.join([str(link), *filter(None, sys.path)])},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert {f"rank {r}: torch of {link}" for r in range(2)} <= set(done.stdout.splitlines())


if __name__ == "__main__":
    dist.init_process_group("cpu:mcast")
    compiled("inductor")
    dist.destroy_process_group()
