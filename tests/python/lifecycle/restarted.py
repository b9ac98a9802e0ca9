"""Run by torchrun: the first attempt fails on rank 1, the second works, then waits to be interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import torch_mcast


def main() -> None:
    folder, attempt = Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("mcast")
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.zeros(world)
    dist.all_gather_into_tensor(output, torch.full((1,), float(rank)))
    assert output.tolist() == list(map(float, range(world)))
    if attempt == "0":
        if rank == 1:
            raise RuntimeError("deliberate, in the first attempt")
        try:
            dist.barrier()
        except dist.DistBackendError as error:
            (folder / "first").write_text(str(error))
            raise
    assert torch_mcast.stats()["path"] == sys.argv[2]
    (folder / f"good{rank}.new").write_text(str(os.getpid()))
    (folder / f"good{rank}.new").rename(folder / f"good{rank}")
    if rank == 0:
        dist.barrier()
    else:
        signal.pause()


if __name__ == "__main__":
    main()
