"""Collectives whose bytes every rank can compute for every other rank, compared in full."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from contents import compare


def words(rank: int, count: int, salt: int) -> torch.Tensor:
    """Returns words small enough that sums over the ranks stay exact, different at every place and
    rank. They are made in one pass, since all ranks make the words of all ranks."""
    first, step = 40503 * (rank + 1) + 97 * salt, 1_000_003
    return torch.arange(first, first + step * count, step, dtype=torch.int64)


def total(count: int, salt: int) -> torch.Tensor:
    return sum(words(rank, count, salt) for rank in range(dist.get_world_size()))


def all_gather(count: int, salt: int, **more: Any) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.full((world * count,), -1)
    dist.all_gather_into_tensor(output, words(rank, count, salt), **more)
    expected = torch.cat([words(r, count, salt) for r in range(world)])
    compare(output, expected, f"all_gather of {count}")


def broadcast(count: int, salt: int, root: int = 0) -> None:
    tensor = words(root, count, salt) if dist.get_rank() == root else torch.full((count,), -1)
    dist.broadcast(tensor, root)
    compare(tensor, words(root, count, salt), f"broadcast of {count} from {root}")


def reduce_scatter(count: int, salt: int) -> None:
    """Reduces and scatters `count` words of each block."""
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.full((count,), -1)
    dist.reduce_scatter_tensor(output, words(rank, world * count, salt))
    expected = total(world * count, salt).chunk(world)[rank]
    compare(output, expected, f"reduce_scatter of {count}")


def all_reduce(count: int, salt: int) -> None:
    tensor = words(dist.get_rank(), count, salt)
    dist.all_reduce(tensor)
    compare(tensor, total(count, salt), f"all_reduce of {count}")


def every(counts: tuple[int, ...] = (3, 200_000), salt: int = 0) -> None:
    """Runs each operation with these numbers of words, small ones and large ones, and a barrier."""
    for i, count in enumerate(counts):
        all_gather(count, salt + i)
        broadcast(count, salt + i, root=(salt + i) % dist.get_world_size())
        reduce_scatter(count, salt + i)
        all_reduce(count, salt + i)
    dist.barrier()
