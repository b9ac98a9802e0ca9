"""Reads the status of an aggregator of this host: one JSON document from its unix socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch_mcast._status_socket import NoAnswer, ask


class NoAggregator(NoAnswer):
    """No aggregator responds; the text lists the sockets that were tried."""


def socket_paths() -> list[Path]:
    """Returns the usual places of an aggregator's socket, for aggregators started without --status."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    folders = [Path("/run"), *([Path(own)] if own else [])]
    return [folder / "torch-mcast-aggregator" / "aggregator.sock" for folder in folders]


def read(path: str | Path | None = None, user: str = "") -> dict[str, Any]:
    """Returns the status of the aggregator at this socket, or of the first that responds at a usual
    place. `user` is the user it must run as; "" allows root, this user, and the folder's owner."""
    tried = []
    for place in [Path(path)] if path else socket_paths():
        try:
            return ask(place, user)
        except (OSError, ValueError) as error:
            tried.append(f"{place}: {error}")
    raise NoAggregator("no aggregator answers: " + "; ".join(tried))
