"""Messages between the sender and the workers, on the store of the group.

There are two kinds of logs. The sender writes one that all others read ("down"); each other rank has one that
only the sender reads ("up/RANK"). A log has one writer, which sets an entry before it counts it, so a writer
that dies leaves no gap, and its successor of the same rank goes on where it ended.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from torch_mcast.weights._errors import StoreGone

Message = dict[str, Any]

_SHORTEST, _LONGEST = 0.001, 0.05  # seconds between two looks at the store


class Deadline:
    """A point in time, with the limit that it was made from."""

    def __init__(self, limit: timedelta) -> None:
        self.limit = limit.total_seconds()
        self._begin = time.monotonic()

    def left(self) -> float:
        return self._begin + self.limit - time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._begin


class Log:
    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name = store, name

    def count(self) -> int:
        """Number of entries that were ever written."""
        return int(self._store.add(f"{self._name}/count", 0))

    def append(self, message: Message) -> None:
        self._store.set(f"{self._name}/{self.count() + 1}", json.dumps(message))
        self._store.add(f"{self._name}/count", 1)

    def read(self, number: int) -> Message:
        """Entry `number`, from 1 on, which was written."""
        message: Message = json.loads(self._store.get(f"{self._name}/{number}"))
        return message

    def drop(self, number: int) -> None:
        self._store.delete_key(f"{self._name}/{number}")

    def wait(self, number: int, deadline: Deadline) -> Message | None:
        """Entry `number`, or None if it has not been written by the deadline.

        Raises:
            StoreGone: The store does not respond, so the process that keeps it is gone.
        """
        key = f"{self._name}/{number}"
        pause = _SHORTEST
        # Store.wait() would hold up signals of the process, and log a line at its timeout.
        while True:
            try:
                if self._store.check([key]):
                    return self.read(number)
            except RuntimeError as error:
                raise StoreGone(
                    f"weights: the store of the group does not respond after {deadline.elapsed():.1f} s: "
                    f"{error}. Hint: the process that keeps it has ended"
                ) from error
            if deadline.left() <= 0:
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST)
