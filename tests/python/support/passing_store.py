"""A c10d store in Python that forwards all calls to another one; tests override calls to change
data on the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class PassingStore(dist.Store):
    """Implements only the calls of the rendezvous."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real

    def set(self, key: str, value: Any) -> None:
        self.real.set(key, value)

    def get(self, key: str) -> bytes:
        return self.real.get(key)

    def add(self, key: str, value: int) -> int:
        return self.real.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.real.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self.real.wait(keys, timeout)
