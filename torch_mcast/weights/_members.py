"""The group that carries the data: the sender, and one worker of each host.

Its first member is the sender. `Fixed` can only be made anew, of all workers. `Changing` is a group of
torch 2.14 and later with `enable_reconfigure`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_mcast._errors import read_error
from torch_mcast.weights._errors import GroupFailed, brief

HAS_RECONFIGURE = hasattr(dist, "_reconfigure")


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        found = read_error(error)
        rank = found["fields"].get("rank")
        raise GroupFailed(error, found["code"], rank if isinstance(rank, int) else None) from error


class Members:
    """Base of both. One broadcast after another; not thread-safe."""

    def __init__(self) -> None:
        self._backend: Any = None

    @property
    def backend(self) -> Any:
        """The ProcessGroupMcast, for torch_mcast.stats(); None before the first transfer of a fixed group."""
        return self._backend

    def handle(self) -> str:
        """Changes with each form(). Empty if members do not change."""
        return ""

    def broadcast(self, bucket: torch.Tensor) -> Any:
        """Starts to send the bucket (at the first member) or to receive it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        with _failures():
            return self._backend.broadcast([bucket], options)

    def barrier(self) -> None:
        """Waits until all members have called it. Fails if one of them has ended, which an idle group on
        shared memory does not notice."""
        with _failures():
            self._backend.barrier(dist.BarrierOptions()).wait()

    def wait(self, work: Any) -> None:
        with _failures():
            work.wait()

    def lost(self) -> tuple[int, str] | None:
        """Index of a member that was lost since the last operation, and how."""
        text = self._backend._stats()["failure"] if self._backend is not None else ""
        found = read_error(text)
        rank = found["fields"].get("rank")
        return (rank, brief(text, found["code"])) if isinstance(rank, int) else None

    def close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.abort()


class Fixed(Members):
    changes = False

    def __init__(self, store: Any, rank: int, name: str, options: Any) -> None:
        super().__init__()
        self._store, self._rank, self._name, self._options = store, rank, name, options

    def form(self, number: int, ranks: list[int], handles: list[str], limit: timedelta) -> None:
        from torch_mcast import _backend

        self.close()
        with _failures():
            self._backend = _backend.create_on(
                dist.PrefixStore(f"members/{number}", self._store),
                ranks.index(self._rank),
                ranks,
                f"{self._name}.weights{number}",
                limit,
                self._options,
            )


class Changing(Members):
    changes = True

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend

    def handle(self) -> str:
        return str(self._backend.get_reconfigure_handle())

    def form(self, number: int, ranks: list[int], handles: list[str], limit: timedelta) -> None:
        options = torch._C._distributed_c10d.ReconfigureOptions()
        options.uuid, options.handles, options.timeout = number, handles, limit
        with _failures():
            self._backend.set_timeout(limit)
            self._backend.reconfigure(options).wait()
