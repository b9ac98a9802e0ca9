"""Results that the ranks of a run have reported so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_mcast.bench import rows


class Told:
    """`rows` and `environment` (of the ranks) grow during the run; on_row() is called after each
    new row. World, hosts, rate and mtu are as in rows.finish."""

    def __init__(
        self,
        world: int,
        hosts: int,
        rate: int | None,
        mtu: int,
        on_row: Callable[[], None] = lambda: None,
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.environment: dict[str, str] = {}
        self.on_row = on_row
        self._about = (world, hosts, rate, mtu)
        self._partial: list[dict[str, Any]] = []

    def take(self, kind: str, value: Any) -> None:
        """Takes a rank's report; ignores kinds that do not belong to a row."""
        if kind == "row":
            self._partial = [raw for raw in self._partial if raw["backend"] != value["backend"]]
            self.rows.append(rows.finish(value, *self._about))
            self.on_row()
        elif kind == "partial":
            self._partial = value
        elif kind == "environment":
            self.environment.update(value)

    def keep_partial(self) -> None:
        """Adds the rows of the case in which the run was stopped, with the timings so far."""
        self.rows += rows.partial(self._partial, *self._about)
        self._partial = []
