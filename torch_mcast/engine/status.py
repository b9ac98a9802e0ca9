"""Asking the engine of this host how it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mcast._status_socket import NoAnswer, ask

DEFAULT_SOCKET = "/run/torch-mcast/engine.sock"


class NoEngine(NoAnswer):
    """Nobody answers; the text says where it was tried."""


def read(path: str | Path = DEFAULT_SOCKET, user: str = "") -> dict[str, Any]:
    """The status of the engine whose clients connect to `path`: its clients, with their groups,
    operations in flight and bytes of shared memory. `user`: as the setting engine_user."""
    place = Path(f"{path}.status")
    try:
        return ask(place, user)
    except (OSError, ValueError) as error:
        raise NoEngine(f"no engine answers: {place}: {error}") from error
