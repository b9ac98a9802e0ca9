"""Ranks exchange JSON through the store that init_process_group would use. No wait exceeds its
deadline: a value that is not there by then is missing, and the caller reports it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from torch_mcast.doctor.job.ranks import label

_RETRY_S = 0.05
_TELL_S = 5.0


def say(text: str) -> None:
    """Prints progress on standard error, apart from the report on standard output."""
    print(f"torch-mcast doctor: {text}", file=sys.stderr, flush=True)


class Rendezvous:
    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size

    def publish(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def fetch(self, key: str, deadline: float) -> Any:
        """Returns the value, or None if it was not published before the deadline (time.monotonic)."""
        while not self.store.check([key]):
            if time.monotonic() >= deadline:
                return None
            time.sleep(_RETRY_S)
        return json.loads(self.store.get(key))

    def collect(
        self, key: str, ranks: Iterable[int], deadline: float, what: str = ""
    ) -> dict[int, Any]:
        """Returns {rank: value} of those that published "key/rank" in time. `what` is printed on
        standard error if it takes long, with the missing ranks."""
        missing, found = sorted(ranks), {}
        tell_at = time.monotonic() + _TELL_S
        while True:
            for rank in list(missing):
                if self.store.check([f"{key}/{rank}"]):
                    found[rank] = json.loads(self.store.get(f"{key}/{rank}"))
                    missing.remove(rank)
            now = time.monotonic()
            if not missing or now >= deadline:
                return dict(sorted(found.items()))
            if what and now >= tell_at:
                tell_at = now + _TELL_S
                say(f"{what} of {label(missing)}, {deadline - now:.0f} s at most")
            time.sleep(_RETRY_S)

    def arrive(self, key: str, expected: int) -> None:
        """Counts this rank in; the last one opens the gate that `passed` checks."""
        if self.store.add(key, 1) == expected:
            self.store.set(f"{key}/all", "1")

    def passed(self, key: str) -> bool:
        return self.store.check([f"{key}/all"])


def connect(environment: Mapping[str, str], timeout: float) -> Rendezvous:
    """Raises ValueError if the launcher's variables are wrong, RuntimeError if the store cannot be
    reached.

    torchrun's agent already has a store; without it rank 0 opens one, as init_process_group does.
    """
    from torch.distributed import PrefixStore, TCPStore

    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    if not 0 <= rank < size:
        raise ValueError(f"RANK={rank} is not below WORLD_SIZE={size}")
    port = int(environment.get("MASTER_PORT", "29500"))
    agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        environment["MASTER_ADDR"],
        port,
        size,
        is_master=rank == 0 and not agent,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
    )
    # A restarted job meets under a new name, without keys of the earlier ranks.
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Rendezvous(PrefixStore(f"torch_mcast_doctor/{attempt}/", store), rank, size)
