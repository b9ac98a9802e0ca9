"""Reads the status of this host's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mcast._status_socket import NoAnswer, ask

DEFAULT_SOCKET = "/run/torch-mcast/engine.sock"


class NoEngine(NoAnswer):
    """No engine responds; the text names the socket that was tried."""


def read(path: str | Path = DEFAULT_SOCKET, user: str = "") -> dict[str, Any]:
    """Returns the status of the engine whose clients connect to `path`: its clients, with their
    groups, operations in flight and bytes of shared memory. `user` is as in the setting
    engine_user."""
    place = Path(f"{path}.status")
    try:
        return ask(place, user)
    except (OSError, ValueError) as error:
        raise NoEngine(f"no engine answers: {place}: {error}") from error
