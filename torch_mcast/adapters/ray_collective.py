"""ray.util.collective: a registered backend.

from torch_mcast.adapters import ray_collective

ray_collective.register()  # in the driver and in each actor, before the group is made
ray.util.collective.init_collective_group(world_size, rank, backend="MCAST")
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import numpy
import ray
import torch
import torch.distributed as dist
from ray.experimental import internal_kv
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp
from torch.distributed import distributed_c10d as c10d

from torch_mcast.adapters._store_group import group_of_store

NAME = "MCAST"
# Until the other ranks have found rank 0; Ray's group of Gloo has the same.
MEETING = timedelta(seconds=30)
_OPERATORS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


def register() -> None:
    """Makes "MCAST" a backend of ray.util.collective in this process. Further calls do nothing."""
    from ray.util.collective.backend_registry import _global_registry

    if not _global_registry.is_registered(NAME):
        register_collective_backend(NAME, McastGroup)


def _key(group_name: str) -> str:
    # The cluster's table has no jobs.
    return f"torch_mcast/{ray.get_runtime_context().get_job_id()}/{group_name}"


def _meet(group_name: str, rank: int, size: int) -> Any:
    """A store of this group, which rank 0 keeps and whose address is in Ray's table while the ranks meet."""
    key = _key(group_name)
    if rank == 0:
        own = ray.util.get_node_ip_address()
        store = dist.TCPStore(own, 0, size, is_master=True, wait_for_workers=False, timeout=MEETING)
        internal_kv._internal_kv_put(key, f"{own} {store.port}")
        return store
    end, seen = time.monotonic() + MEETING.total_seconds(), "no address"
    while time.monotonic() < end:
        if told := internal_kv._internal_kv_get(key):
            seen = told.decode()
            address, port = seen.split()
            try:
                return dist.TCPStore(
                    address, int(port), is_master=False, timeout=timedelta(seconds=2)
                )
            except dist.DistError:
                pass  # of an earlier group of this name, whose rank 0 has ended
        time.sleep(0.05)
    raise TimeoutError(
        f"torch_mcast: group '{group_name}' of ray.util.collective: rank {rank} did not reach the store of "
        f"rank 0 ({seen}) within {MEETING.total_seconds():.0f} s. Hint: all {size} ranks must call "
        "init_collective_group()"
    )


def _one(tensors: list[Any]) -> torch.Tensor:
    """Ray hands over lists, of several tensors in its *_multigpu functions."""
    if len(tensors) != 1:
        raise ValueError(
            f"torch_mcast: got {len(tensors)} tensors, the group has one per rank: use a rank for each device"
        )
    if isinstance(tensors[0], numpy.ndarray):
        return torch.from_numpy(tensors[0])
    if not isinstance(tensors[0], torch.Tensor):
        kind = f"{type(tensors[0]).__module__}.{type(tensors[0]).__qualname__}"
        raise ValueError(f"torch_mcast: expected a torch.Tensor or a numpy.ndarray, got {kind}")
    return tensors[0]


def _row(lists: list[list[Any]]) -> list[torch.Tensor]:
    return [_one([tensor]) for tensor in lists[0]]


def _filled(options: Any, given: Any) -> Any:
    """Options of c10d with what Ray's say, which may be missing."""
    if hasattr(given, "reduceOp"):
        options.reduceOp = _OPERATORS[given.reduceOp]
    if hasattr(given, "root_rank"):
        options.rootRank = given.root_rank
    if getattr(given, "timeout_ms", timedelta(0)) > timedelta(0):
        options.timeout = given.timeout_ms
    return options


class McastGroup(BaseGroup):
    """A group of ray.util.collective. It is independent of the process's torch.distributed groups."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._store = _meet(group_name, rank, world_size)
        self._group = group_of_store(
            self._store, rank, world_size, group_name, c10d.default_pg_timeout
        )
        if rank == 0:  # all ranks have met: the group is made on all or on none
            internal_kv._internal_kv_del(_key(group_name))

    @property
    def process_group(self) -> Any:
        """The torch.distributed.ProcessGroup, for torch_mcast.stats()."""
        return self._group

    @classmethod
    def backend(cls) -> str:
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return dist.is_available()

    def destroy_group(self) -> None:
        self._group.shutdown()
        self._group = self._store = None

    def barrier(self, barrier_options: Any = None) -> None:
        self._group.barrier(_filled(c10d.BarrierOptions(), barrier_options)).wait()

    def broadcast(self, tensor: Any, broadcast_options: Any = None) -> None:
        options = _filled(c10d.BroadcastOptions(), broadcast_options)
        self._group.broadcast([_one(tensor)], options).wait()

    def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
        options = _filled(c10d.AllreduceOptions(), allreduce_options)
        self._group.allreduce([_one(tensor)], options).wait()

    def reduce(self, tensor: Any, reduce_options: Any = None) -> None:
        options = _filled(c10d.ReduceOptions(), reduce_options)
        self._group.reduce([_one(tensor)], options).wait()

    def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:
        options = _filled(c10d.AllgatherOptions(), allgather_options)
        self._group.allgather([_row(tensor_list)], [_one(tensor)], options).wait()

    def reducescatter(
        self, tensor: Any, tensor_list: Any, reducescatter_options: Any = None
    ) -> None:
        options = _filled(c10d.ReduceScatterOptions(), reducescatter_options)
        self._group.reduce_scatter([_one(tensor)], [_row(tensor_list)], options).wait()

    def send(self, tensor: Any, send_options: Any) -> None:
        self._group.send([_one(tensor)], send_options.dst_rank, 0).wait()

    def recv(self, tensor: Any, recv_options: Any) -> None:
        self._group.recv([_one(tensor)], recv_options.src_rank, 0).wait()
