"""A worker of a channel: waits for plans of the sender, receives or maps a version."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch

from torch_mcast.weights import _memory
from torch_mcast.weights._content import Incoming, tensors_of
from torch_mcast.weights._errors import GroupFailed, StoreGone, WeightsError
from torch_mcast.weights._log import Deadline, Log, Message
from torch_mcast.weights._members import Changing, Fixed
from torch_mcast.weights._sender import cannot_leave_out, spans, staging

_SENDER = 0
_log = logging.getLogger("torch_mcast")


class Received(Iterator[tuple[str, torch.Tensor]]):
    """Names and tensors of one version, in the order of the sender. Can be iterated once.

    Attributes:
        version: Number of the version.
    """

    def __init__(self, version: int, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.version = version
        self._tensors = tensors[::-1]

    def __next__(self) -> tuple[str, torch.Tensor]:
        if not self._tensors:
            raise StopIteration
        return self._tensors.pop()


class Worker:
    def __init__(self, store: Any, rank: int, members: Fixed | Changing) -> None:
        self._store, self._rank, self._members = store, rank, members
        self._up, self._down = Log(store, f"up/{rank}"), Log(store, "down")
        self._seen = self._down.count()  # entries that were read or are older than this process
        self._process = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._serial = 0
        self._host = _memory.host()
        self._incoming: Incoming | None = None
        # Verified, with the bytes of its index.
        self._sealed: tuple[_memory.Memory, int] | None = None
        self.version = 0

    def receive(self, timeout: timedelta) -> Received:
        self._announce()
        try:
            return self._await(Deadline(timeout))
        except StoreGone:
            self.close()
            raise
        except BaseException:
            self.close()
            with contextlib.suppress(RuntimeError):
                self._report("away", error="has stopped waiting")
            raise

    def close(self) -> None:
        self._sealed = self._incoming = None

    @property
    def _id(self) -> str:
        return f"{self._process}.{self._serial}"

    def _announce(self) -> None:
        self._serial += 1
        has = self._incoming
        self._report(
            "ready",
            process=self._process,
            host=self._host,
            handle=self._members.handle(),
            has=[has.key, has.done] if has is not None else ["", 0],
        )

    def _report(self, kind: str, **more: Any) -> None:
        self._up.append({"kind": kind, "id": self._id, **more})
        self._store.add("bell", 1)

    def _await(self, whole: Deadline) -> Received:
        deadline = whole
        while True:
            entry = self._down.wait(self._seen + 1, deadline)
            if entry is None:
                raise WeightsError(
                    f"weights: rank {self._rank} got no version after {self.version} from rank "
                    f"{_SENDER} within {deadline.limit:g} s. Hint: the trainer did not call send(), or "
                    "has ended",
                    self.version + 1,
                )
            self._seen += 1
            deadline = whole
            kind = entry["kind"]
            if kind == "plan" and self._id in entry["ids"]:
                if not self._take_part(entry, self._seen):
                    # A sender that is alive makes another plan, or gives up.
                    deadline = Deadline(timedelta(seconds=3 * entry["limit"]))
            elif kind == "sealed" and self._id in entry["ids"]:
                self._open(entry)
            elif kind == "failed" and self._id in entry["ids"]:
                raise WeightsError(entry["error"], entry["version"])
            elif kind == "commit" and self._id in entry["have"]:
                assert self._sealed is not None
                tensors = tensors_of(*self._sealed)
                self.close()
                self.version = entry["version"]
                return Received(self.version, tensors)
            elif kind == "commit" and self._id in entry["left_out"]:
                _log.warning(
                    "weights: rank %d was left out of version %d: it %s",
                    self._rank,
                    entry["version"],
                    entry["left_out"][self._id],
                )
                self.close()
                self._announce()

    def _take_part(self, plan: Message, number: int) -> bool:
        """Returns false if the group failed, and this worker waits for the next attempt."""
        try:
            if plan["form"]:
                limit = timedelta(seconds=plan["limit"])
                self._members.form(number, plan["ranks"], plan["handles"], limit)
            incoming = self._transfer(plan)
        except GroupFailed as error:
            if not self._members.changes:
                raise WeightsError(
                    f"weights: rank {self._rank} did not receive version {plan['version']} from rank "
                    f"{_SENDER}: {error}. Hint: {cannot_leave_out()}",
                    plan["version"],
                ) from error
            if error.lost == _SENDER:
                raise WeightsError(
                    f"weights: rank {self._rank} did not receive version {plan['version']}: rank "
                    f"{_SENDER}, the sender, was lost: {error}",
                    plan["version"],
                ) from error
            self._announce()
            return False
        wrong = incoming.verify(_SENDER)
        if wrong is None:
            incoming.memory.seal()
            self._sealed = incoming.memory, plan["index"]
            self._report("done", place=incoming.memory.place())
        else:
            self._report("bad", error=f"received other bytes: {wrong}")
        with contextlib.suppress(GroupFailed):  # this worker has all of it
            self._members.barrier()
        if wrong is not None:
            raise wrong
        return True

    def _transfer(self, plan: Message) -> Incoming:
        incoming = self._incoming
        if incoming is None or incoming.key != plan["key"]:
            incoming = Incoming(plan["key"], plan["version"], plan["total"], plan["index"])
            self._incoming = incoming
        buffers = staging(plan["bucket"], plan["total"])
        works: list[tuple[int, torch.Tensor, Any]] = []

        def land() -> None:
            at, bucket, work = works.pop(0)
            self._members.wait(work)
            if at == incoming.done:  # else it is repeated for another receiver
                incoming.take(bucket)

        for number, (at, size) in enumerate(spans(plan["begin"], plan["total"], plan["bucket"])):
            if len(works) == len(buffers):
                land()
            bucket = buffers[number % len(buffers)][:size]
            works.append((at, bucket, self._members.broadcast(bucket)))
        while works:
            land()
        return incoming

    def _open(self, entry: Message) -> None:
        """Opens the memory that another worker of this host has sealed."""
        place = entry["hosts"][self._host]
        try:
            self._sealed = _memory.Memory.open(place), entry["index"]
        except OSError as error:
            _log.warning(
                "weights: rank %d cannot map version %d of process %d, and receives by itself from now "
                "on: %s. Hint: the process has ended, runs as another user, or in another container",
                self._rank,
                entry["version"],
                place["pid"],
                error,
            )
            self._host = f"{self._host}/{self._process}"
            self._announce()
            return
        self._report("done")
