"""Asking an aggregator of this host how it is: one JSON document from its unix socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch_mcast._status_socket import NoAnswer, ask


class NoAggregator(NoAnswer):
    """Nobody answers; the text says where it was tried."""


def socket_paths() -> list[Path]:
    """Where an aggregator's socket may be, unless it was told otherwise (--status)."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path("/run"), *([Path(own)] if own else [])]
    return [folder / "torch-mcast-aggregator" / "aggregator.sock" for folder in folders]


def read(path: str | Path | None = None, user: str = "") -> dict[str, Any]:
    """The status of the aggregator at this socket, or of the first that answers at a usual place. `user`:
    whose it must be; "": root's, this user's, or that of the folder's owner."""
    tried = []
    for place in [Path(path)] if path else socket_paths():
        try:
            return ask(place, user)
        except (OSError, ValueError) as error:
            tried.append(f"{place}: {error}")
    raise NoAggregator("no aggregator answers: " + "; ".join(tried))
