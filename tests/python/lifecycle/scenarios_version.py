"""A rank of another version, as the others see it and as it sees them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from passing_store import PassingStore
from scenarios import caught, join
from scenarios_failure import all_good

OTHER = "99.1.2"
RECORD = "rank/"
LATER_FIELDS = ("reduce_", "salt", "shared", "network")  # fields that an old version's record lacks


class Translated(PassingStore):
    """The store as a rank of another build sees it, whose record it changes. The records that it
    reads are changed in the same way, since its library is in fact the same build as the others'.
    """

    def __init__(self, real: Any, what: str) -> None:
        super().__init__(real)
        self.what = what
        self.own: dict[str, Any] = {}

    def changed(self, key: str, value: Any) -> Any:
        if RECORD not in key or not bytes(value).startswith(b"version="):
            return value
        lines = bytes(value).decode().splitlines()
        fields = dict(line.split("=", 1) for line in lines)
        if self.what in ("version", "record"):
            fields["version"] = OTHER
        if self.what in ("protocol", "record"):
            fields["protocol"] = str(int(fields["protocol"]) + 1)
        if self.what == "record":
            fields = {k: v for k, v in fields.items() if not k.startswith(LATER_FIELDS)}
        return "".join(f"{k}={v}\n" for k, v in fields.items()).encode()

    def set(self, key: str, value: Any) -> None:
        self.own[key] = bytes(value)
        self.real.set(key, self.changed(key, value))

    def get(self, key: str) -> bytes:
        return self.own[key] if key in self.own else self.changed(key, self.real.get(key))


def two_versions(link: Any, other: int, what: str) -> None:
    """Rank `other` differs in its version, its protocol, or in its whole record. Then all have the
    same version, and create the group in the same processes."""
    real = dist.FileStore(str(link.folder / "store"), link.world)
    store = Translated(real, what) if link.rank == other else real
    caught(link, lambda: join(link, timeout_s=20, store=store))
    join(link, incarnation="2")
    all_good()
    dist.destroy_process_group()
    link.say("good")
