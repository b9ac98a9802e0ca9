"""torchft: a process group of replicas that is made again after each change of its members.

from torch_mcast.adapters.torchft_group import ProcessGroupMcast

manager = torchft.Manager(pg=ProcessGroupMcast(timeout=timedelta(seconds=30)), ...)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from torch_mcast.adapters._store_group import group_of_store


class _Work(dist._Work):
    """A work whose failure is in its future and in the group's errored(), as with torchft's group of NCCL.

    torchft's DistributedDataParallel ends its replica if wait() raises, and so do replicas over Gloo."""

    def __init__(self, group: ProcessGroupMcast, work: Any) -> None:
        super().__init__()
        self._group = group
        self._work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            return bool(self._work.wait() if timeout is None else self._work.wait(timeout))
        except RuntimeError as error:
            self._group.failure = error
            return False

    def get_future(self) -> Any:
        return self._work.get_future()


class ProcessGroupMcast(ProcessGroupWrapper):
    """Replaces torchft.ProcessGroupGloo; `options` is a torch_mcast.Options for each group that it makes.

    wait() of an operation that has failed returns False. Its error is in errored() until the next
    configure(), and in the operation's future.
    """

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), options: Any = None, pg: Any = None
    ) -> None:
        super().__init__(timeout, pg)
        self._options = options
        self.failure: Exception | None = None

    def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
        self.failure = None
        name = f"torchft_quorum_{self._quorum_id}"
        return group_of_store(store, rank, world_size, name, self._timeout, self._options)

    def _wrap_work(self, work: Any, opts: object) -> Any:
        return _Work(self, work)

    def errored(self) -> Exception | None:
        return self.failure

    def getBackendName(self) -> str:
        return "torchft-mcast"
