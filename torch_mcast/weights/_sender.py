"""The sender: rank 0 of a channel. Decides who takes part in each version, and sends it.

Per version it writes to the log:
  plan      one for each attempt: the receivers (one of each host), where to begin, and whether the
            group is made anew
  sealed    where the version's memory is on each host, for the other workers there
  commit    who has the version, who was left out and why
  failed    nobody gets it: the reason
Workers write: ready (waiting in receive()), done, bad (checksum), away (receive() raised), trainer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch

from torch_mcast.weights._content import Outgoing
from torch_mcast.weights._errors import GroupFailed, WeightsError
from torch_mcast.weights._log import Deadline, Log, Message
from torch_mcast.weights._members import HAS_RECONFIGURE, Changing, Fixed

_POLL = 0.005  # seconds between two looks at the store


def spans(begin: int, total: int, bucket: int) -> Iterator[tuple[int, int]]:
    """First byte and number of bytes of each bucket from `begin` on."""
    while begin < total:
        yield begin, min(bucket, total - begin)
        begin += bucket


def staging(bucket: int, total: int) -> list[torch.Tensor]:
    """Two buffers: one is on the wire while the other is filled or stored."""
    return [torch.empty(min(bucket, total), dtype=torch.uint8) for _ in range(2)]


def cannot_leave_out() -> str:
    if HAS_RECONFIGURE:
        return (
            "the group was made without enable_reconfigure=True, so no worker can be left out: make a "
            "new group of the processes that are alive"
        )
    return (
        f"torch {torch.__version__} has no reconfigure (2.14 and later have it), so no worker can be left "
        "out: make a new group of the processes that are alive"
    )


class Sender:
    def __init__(
        self, store: Any, size: int, members: Fixed | Changing, limit: timedelta, bucket: int
    ) -> None:
        self._store, self._members, self._limit, self._bucket = store, members, limit, bucket
        self._down = Log(store, "down")
        self._up = {rank: Log(store, f"up/{rank}") for rank in range(1, size)}
        self._read = dict.fromkeys(self._up, 0)  # entries of each log that were read
        self._trainers: set[int] = set()
        self._absent: set[int] = set()  # left out, and not back yet
        # Workers that wait for a version and take part in none.
        self._ready: dict[int, Message] = {}
        self._answers: dict[int, Message] = {}
        self._formed: list[str] = []  # processes of the group's members, [] once it has failed
        self._ranks: list[int] = []  # of the members but the sender
        self._bell = -1
        self.version = int(store.add("version", 0))
        self.left_out: dict[int, str] = {}

    def send(self, content: Outgoing) -> int:
        version = self.version + 1
        self.left_out = {}
        attempt = Version(self, content, version)
        try:
            self._gather(version, attempt)
            attempt.run()
        except WeightsError as error:
            self._fail(version, attempt, str(error))
            raise
        except GroupFailed as error:
            text = self._describe_failure(version, attempt, error)
            self._fail(version, attempt, text)
            raise WeightsError(text, version, self.left_out) from error
        self._commit(version, attempt)
        return version

    def poll(self) -> None:
        """Reads what the others have written."""
        for rank, log in self._up.items():
            for number in range(self._read[rank] + 1, log.count() + 1):
                self._take(rank, log.read(number))
                log.drop(number)
                self._read[rank] = number

    def until(self, deadline: Deadline, over: Callable[[], bool]) -> None:
        self.poll()
        while not over() and deadline.left() > 0:
            bell = self._store.add("bell", 0)
            if bell == self._bell:
                time.sleep(_POLL)
                continue
            self._bell = bell
            self.poll()

    def lost(self) -> dict[int, str]:
        """The rank that the group has lost, and how. At most one, since a group fails once."""
        found = self._members.lost()
        if found is None or not 0 < found[0] <= len(self._ranks):
            return {}
        return {self._ranks[found[0] - 1]: f"was lost: {found[1]}"}

    def _take(self, rank: int, message: Message) -> None:
        kind = message["kind"]
        if kind == "trainer":
            self._trainers.add(rank)
        elif kind == "ready":
            self._ready[rank] = message
            self._absent.discard(rank)
            return
        if kind == "away" and self._ready.get(rank, {}).get("id") == message["id"]:
            self._ready.pop(rank)
        # done, bad, away: the first counts, since a worker that reports a failure goes away, too.
        if kind != "trainer" and self._answers.get(rank, {}).get("id") != message["id"]:
            self._answers[rank] = message

    def _gather(self, version: int, attempt: Version) -> None:
        """Waits for the workers that took part in the last version."""
        deadline = Deadline(self._limit)

        lost: dict[int, str] = {}

        def missing() -> list[int]:
            known = self._trainers | self._absent | self._ready.keys()
            return [rank for rank in self._up if rank not in known]

        def over() -> bool:
            lost.update(self.lost() if self._formed else {})
            return not set(missing()) - lost.keys() and bool(self._ready)

        self.until(deadline, over)
        if lost:
            self._formed = []
        late = missing()
        attempt.workers, self._ready = self._ready, {}
        for rank in late:
            text = f"has not called receive() within {deadline.limit:g} s"
            self._leave_out(rank, lost.get(rank, text))
        if not attempt.workers or (self.left_out and not self._members.changes):
            reasons = self._reasons() if self.left_out else "no worker has called receive()"
            hint = "a worker is slow, dead, or in another group"
            raise WeightsError(
                f"weights: version {version} was not sent after {deadline.elapsed():.1f} s: {reasons}. "
                f"Hint: {hint if self._members.changes else cannot_leave_out()}",
                version,
                self.left_out,
            )

    def _leave_out(self, rank: int, reason: str) -> None:
        self.left_out[rank] = reason
        if self._members.changes:
            self._absent.add(rank)

    def _reasons(self) -> str:
        return "; ".join(f"rank {rank} {reason}" for rank, reason in sorted(self.left_out.items()))

    def _fail(self, version: int, attempt: Version, text: str) -> None:
        ids = [message["id"] for message in attempt.workers.values()]
        self._formed = []
        self._down.append({"kind": "failed", "version": version, "error": text, "ids": ids})

    def _describe_failure(self, version: int, attempt: Version, error: GroupFailed) -> str:
        return (
            f"weights: version {version} was not sent, after {attempt.elapsed():.1f} s (limit "
            f"{self._limit.total_seconds():g} s): {self._reasons() or error}. Hint: {cannot_leave_out()}"
        )

    def _commit(self, version: int, attempt: Version) -> None:
        self._down.append(
            {
                "kind": "commit",
                "version": version,
                "have": [attempt.workers[rank]["id"] for rank in attempt.have],
                "left_out": attempt.left_ids,
            }
        )
        self.version = int(self._store.add("version", 1))


class Version:
    """One version on its way."""

    def __init__(self, sender: Sender, content: Outgoing, version: int) -> None:
        self.content = content
        self.workers: dict[int, Message] = {}  # that take part, with what they last announced
        self.have: set[int] = set()  # those that have the version
        self.left_ids: dict[str, str] = {}
        self._places: dict[str, dict[str, Any]] = {}  # of sealed memory, by host
        self._sender, self._version = sender, version
        self._begun = Deadline(sender._limit)

    def elapsed(self) -> float:
        return self._begun.elapsed()

    def run(self) -> None:
        sender = self._sender
        attempts = 2 + len(self.workers)  # each but two leaves a worker out
        while (receivers := self._receivers()) or (readers := self._readers()):
            failure = None
            if receivers:
                attempts -= 1
                failure = self._attempt(receivers)
                if failure is not None and not sender._members.changes:
                    for rank, reason in sender.lost().items():
                        self._leave_out(rank, reason)
                    raise failure
                self._settle(receivers)
            else:
                self._share(readers)
            if failure is not None and attempts == 0:
                raise failure
            if not self.workers or (sender.left_out and not sender._members.changes):
                hint = "" if sender._members.changes else f". Hint: {cannot_leave_out()}"
                raise WeightsError(
                    f"weights: version {self._version} was not sent, after {self.elapsed():.1f} s (limit "
                    f"{sender._limit.total_seconds():g} s): {sender._reasons()}{hint}",
                    self._version,
                    sender.left_out,
                )

    def _receivers(self) -> list[int]:
        """One worker of each host that has not got the version: the one that has most of it."""
        chosen: dict[str, int] = {}
        workers = self.workers
        for rank in sorted(workers, key=lambda rank: (-self._has(rank), rank)):
            if rank not in self.have and workers[rank]["host"] not in self._places:
                chosen.setdefault(workers[rank]["host"], rank)
        return sorted(chosen.values())

    def _readers(self) -> list[int]:
        """Workers of hosts that have the version in sealed memory, which they have not mapped."""
        return [
            rank
            for rank, message in self.workers.items()
            if rank not in self.have and message["host"] in self._places
        ]

    def _has(self, rank: int) -> int:
        """Bytes of this version that a worker has kept from an earlier attempt."""
        key, size = self.workers[rank]["has"]
        return int(size) if key == self.content.key else 0

    def _attempt(self, receivers: list[int]) -> GroupFailed | None:
        sender = self._sender
        messages = [self.workers[rank] for rank in receivers]
        processes = [message["process"] for message in messages]
        number = sender._down.count() + 1
        again = processes != sender._formed
        plan: Message = {
            "kind": "plan",
            "version": self._version,
            "key": self.content.key,
            "total": self.content.layout.total,
            "index": len(self.content.index),
            "bucket": sender._bucket,
            "begin": min(self._has(rank) for rank in receivers),
            "limit": sender._limit.total_seconds(),
            "form": again,
            "ranks": [0, *receivers],
            "handles": [sender._members.handle(), *(message["handle"] for message in messages)],
            "ids": [message["id"] for message in messages],
        }
        sender._formed, sender._ranks = [], receivers
        sender._down.append(plan)
        try:
            if again:
                sender._members.form(number, plan["ranks"], plan["handles"], sender._limit)
            self._transfer(plan["begin"])
            sender._members.barrier()  # each receiver has reported
        except GroupFailed as failure:
            return failure
        sender._formed = processes
        return None

    def _transfer(self, begin: int) -> None:
        members, total = self._sender._members, self.content.layout.total
        buffers = staging(self._sender._bucket, total)
        works: list[Any] = []
        for number, (at, size) in enumerate(spans(begin, total, self._sender._bucket)):
            if len(works) == len(buffers):
                members.wait(works.pop(0))
            bucket = buffers[number % len(buffers)][:size]
            self.content.fill(bucket, at)
            works.append(members.broadcast(bucket))
        for work in works:
            members.wait(work)

    def _share(self, readers: list[int]) -> None:
        sender = self._sender
        sender._down.append(
            {
                "kind": "sealed",
                "version": self._version,
                "index": len(self.content.index),
                "hosts": self._places,
                "ids": [self.workers[rank]["id"] for rank in readers],
            }
        )
        self._settle(readers)

    def _settle(self, workers: list[int]) -> None:
        """Waits for what each worker reports about the attempt."""
        sender = self._sender
        asked = {rank: self.workers[rank] for rank in workers}
        lost: dict[int, str] = {}
        deadline = Deadline(sender._limit)

        def answer_of(rank: int) -> Message | None:
            """What it has reported: ready again, if it waits for another attempt."""
            answer = sender._answers.get(rank)
            if answer is not None and answer["id"] == asked[rank]["id"]:
                return answer
            return sender._ready.get(rank)

        def over() -> bool:
            lost.update(sender.lost())
            return all(answer_of(rank) or rank in lost for rank in asked)

        sender.until(deadline, over)
        if lost:
            sender._formed = []
        for rank, message in asked.items():
            answer = answer_of(rank)
            if answer is None:
                text = f"did not finish within {deadline.limit:g} s"
                self._leave_out(rank, lost.get(rank, text))
            elif answer["kind"] == "done":
                self.have.add(rank)
                if "place" in answer:
                    self._places[message["host"]] = answer["place"]
            elif answer["kind"] == "ready":
                self.workers[rank] = sender._ready.pop(rank)
            else:
                self._leave_out(rank, answer["error"])

    def _leave_out(self, rank: int, reason: str) -> None:
        self.left_ids[self.workers.pop(rank)["id"]] = reason
        self._sender._leave_out(rank, reason)
