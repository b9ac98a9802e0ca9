"""A trainer's ranks and inference workers in one group, and the two calls that they make."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_mcast._load import extension
from torch_mcast._stats import backend_of
from torch_mcast.weights._content import NamedTensors, Outgoing
from torch_mcast.weights._errors import WeightsError
from torch_mcast.weights._log import Deadline, Log
from torch_mcast.weights._members import HAS_RECONFIGURE, Changing, Fixed
from torch_mcast.weights._sender import Sender
from torch_mcast.weights._worker import Received, Worker

LIMIT = timedelta(seconds=30)
BUCKET_BYTES = 16 << 20
_TIMEOUT = timedelta(minutes=30)  # as of torch.distributed


class Channel:
    """Sends versions of a model's weights from a trainer to inference workers.

    All processes of `group` make a channel of it. Rank 0 is the sender. The other ranks are ranks of the
    trainer, which call `send()` too, or workers, which call `receive()`.

    The data goes over a group of the sender and one worker of each host. If `group` was made with
    `enable_reconfigure=True` (torch 2.14 and later), it becomes that group: its members then change from
    version to version, and it must not be used for anything else. Otherwise the channel makes a group of
    its own, with the settings of `group`, and a worker that is lost or late is an error.

    A channel is used by one thread at a time.

    Args:
        group: A group with an mcast backend. None: the default group.
        limit: How long a worker may be late: to call `receive()` once the sender has called `send()`, to take
            or confirm a bucket, and to verify the last one. The sender's value counts.
        bucket_bytes: Size of the pieces that are sent. The sender and each receiving worker have two
            buffers of this size. The sender's value counts.

    Raises:
        ValueError: The group has no mcast backend, or `bucket_bytes` is below 1.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        limit: timedelta = LIMIT,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        backend = backend_of(group)
        store = dist.distributed_c10d._get_process_group_store(group or dist.group.WORLD)
        options = backend.options
        name = options.group_name
        members: Fixed | Changing
        if getattr(options, "enable_reconfigure", False):
            members = Changing(backend)
        else:
            members = Fixed(_prefixed(store, name), backend.rank(), name, options)
        self._start(store, name, members, backend.rank(), backend.size(), limit, bucket_bytes)
        self._timeout = options.timeout

    @classmethod
    def connect(
        cls,
        address: str,
        port: int,
        rank: int,
        world_size: int,
        *,
        limit: timedelta = LIMIT,
        bucket_bytes: int = BUCKET_BYTES,
        timeout: timedelta = _TIMEOUT,
        options: Any = None,
    ) -> Channel:
        """Makes a channel between processes that have no common group, such as two jobs.

        Blocks until the sender has called it. On torch 2.14 and later workers may be left out, and one that
        was started again may connect again.

        Args:
            address: Host of rank 0, which keeps the store that all others connect to.
            port: TCP port of the store on that host.
            rank: This process's number, from 0 (the sender) to `world_size - 1`.
            world_size: Number of the trainer's ranks and workers.
            limit: See the class.
            bucket_bytes: See the class.
            timeout: How long the others wait for the sender: here, and for each version.
            options: `torch_mcast.Options` of the group that carries the data.

        Raises:
            ValueError: `rank` is not below `world_size`.
            torch.distributed.DistNetworkError: The store was not there within `timeout`.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"weights: expected a rank from 0 to {world_size - 1}, got {rank}")
        tcp = dist.TCPStore(address, port, None, rank == 0, timeout=timeout, wait_for_workers=False)
        store = dist.PrefixStore("torch_mcast_weights", tcp)
        channel = cls.__new__(cls)
        name = f"weights@{address}:{port}"
        members: Fixed | Changing
        if HAS_RECONFIGURE:
            from torch_mcast import _backend

            ranks = list(range(world_size))
            members = Changing(
                _backend.create_on(
                    store, rank, ranks, name, timeout, options, enable_reconfigure=True
                )
            )
        else:
            members = Fixed(_prefixed(store, name), rank, name, options or extension().Options())
        channel._start(store, name, members, rank, world_size, limit, bucket_bytes)
        channel._timeout = timeout
        return channel

    def _start(
        self,
        store: Any,
        name: str,
        members: Fixed | Changing,
        rank: int,
        size: int,
        limit: timedelta,
        bucket_bytes: int,
    ) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"weights: expected a bucket of 1 byte or more, got {bucket_bytes}")
        # A connection of its own, because waiting occupies it.
        self._store = _prefixed(store, name).clone()
        self._rank, self._members = rank, members
        self._sender: Sender | None = None
        self._worker: Worker | None = None
        self._trainer: _Trainer | None = None
        if rank == 0:
            self._sender = Sender(self._store, size, members, limit, bucket_bytes)

    def send(self, named_tensors: NamedTensors) -> int:
        """Sends the next version. Called on all ranks of the trainer.

        Returns once every worker that takes part has the version, or was left out.

        Rank 0 sends the values of its tensors, and must not change them until the call returns. Contiguous
        CPU tensors are not copied as a whole; others, such as those of a GPU, are copied to host memory
        first. The other ranks of the trainer only run through `named_tensors`, since that may be a
        collective: of each DTensor `full_tensor()` is taken, on all ranks.

        Args:
            named_tensors: Names and tensors: a state_dict, or an iterable of pairs. Dense tensors of any
                dtype, shape and device. Names are unique.

        Returns:
            The number of the version, from 1 on.

        Raises:
            WeightsError: The version was not sent: no worker is there; or a worker was lost, late or had
                other bytes, and the group cannot leave it out (before torch 2.14).
            TypeError: A value is not a dense tensor.
            ValueError: Two tensors have the same name, or this rank has called `receive()` before.
        """
        if self._worker is not None:
            raise ValueError(f"weights: rank {self._rank} has called receive(): it is a worker")
        if self._sender is not None:
            return self._sender.send(Outgoing(named_tensors))
        if self._trainer is None:
            self._trainer = _Trainer(self._store, self._rank)
        return self._trainer.send(named_tensors, self._timeout)

    def receive(self) -> Received:
        """Waits for the next version, and returns its tensors. Called on workers.

        Returns once the sender has committed the version: this worker's host has all of it, and the
        checksum of each tensor was verified. Until then no tensor is visible, so a failure never leaves
        half a version.

        The tensors are views of memory that all workers of the host map. They can be kept: the memory is
        freed when no process refers to it any more. A write to a tensor changes this process's copy of the
        page only.

        Waits at most the timeout of the group (30 minutes by default) for the sender.

        Raises:
            WeightsError: No version came in time; the sender has ended; or the group failed, and cannot be
                reconfigured (before torch 2.14).
            ChecksumError: A tensor has other bytes than the sender had.
            ValueError: This is rank 0, or this rank has called `send()` before.
        """
        if self._sender is not None or self._trainer is not None:
            raise ValueError(
                f"weights: rank {self._rank} belongs to the trainer: it cannot receive"
            )
        if self._worker is None:
            self._worker = Worker(self._store, self._rank, self._members)
        return self._worker.receive(self._timeout)

    @property
    def version(self) -> int:
        """Number of the last version that this rank has sent or received; 0 before the first."""
        role = self._sender or self._worker or self._trainer
        return role.version if role is not None else 0

    @property
    def left_out(self) -> dict[int, str]:
        """At rank 0: rank of each worker that did not get the last version, and why. It takes part in the
        next version after it has called `receive()` again."""
        return dict(self._sender.left_out) if self._sender is not None else {}

    @property
    def backend(self) -> Any:
        """The group that carries the data, for `torch_mcast.stats()`. None at processes that have not used
        one."""
        return self._members.backend

    def close(self) -> None:
        """Leaves the group that carries the data, and lets go of memory. Tensors that were received stay
        valid."""
        if self._worker is not None:
            self._worker.close()
        self._members.close()


def _prefixed(store: Any, name: str) -> Any:
    return dist.PrefixStore(f"torch_mcast_weights/{name}", store)


class _Trainer:
    """A rank of the trainer other than 0."""

    def __init__(self, store: Any, rank: int) -> None:
        self._rank = rank
        self._down = Log(store, "down")
        self._seen = self._down.count()
        self.version = int(store.add("version", 0))
        Log(store, f"up/{rank}").append({"kind": "trainer"})
        store.add("bell", 1)

    def send(self, named_tensors: NamedTensors, timeout: timedelta) -> int:
        pairs = named_tensors.items() if hasattr(named_tensors, "items") else named_tensors
        for _, tensor in pairs:
            whole = getattr(tensor, "full_tensor", None)
            if callable(whole):
                whole()
        deadline = Deadline(timeout)
        while (entry := self._down.wait(self._seen + 1, deadline)) is not None:
            self._seen += 1
            if entry["kind"] == "commit":
                self.version = int(entry["version"])
                return self.version
            if entry["kind"] == "failed":
                raise WeightsError(entry["error"], entry["version"])
        raise WeightsError(
            f"weights: rank {self._rank} did not learn within {deadline.limit:g} s whether version "
            f"{self.version + 1} was sent. Hint: rank 0 did not call send(), or has ended",
            self.version + 1,
        )


_channels: weakref.WeakKeyDictionary[Any, Channel] = weakref.WeakKeyDictionary()


def _channel_of(group: dist.ProcessGroup | None) -> Channel:
    key = group or dist.group.WORLD
    channel = _channels.get(key) if key is not None else None
    if channel is None:
        channel = Channel(group)
        _channels[key] = channel
    return channel


def send(named_tensors: NamedTensors, group: dist.ProcessGroup | None = None) -> int:
    """Sends the next version to the workers of `group` (None: the default group): `Channel.send()`, of a
    channel with default settings that is made at the first call and kept as long as the group."""
    return _channel_of(group).send(named_tensors)


def receive(group: dist.ProcessGroup | None = None) -> Received:
    """Receives the next version from rank 0 of `group` (None: the default group): `Channel.receive()`, of a
    channel with default settings that is made at the first call and kept as long as the group."""
    return _channel_of(group).receive()
