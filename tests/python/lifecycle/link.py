"""The rank's end of the control channel to the test: events out, orders in, lines of JSON."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any


class Link:
    def __init__(self, folder: Path, rank: int, world: int, connection: socket.socket) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self._socket = connection
        self._file = self._socket.makefile("r")

    def say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "at": time.monotonic(), **fields})
        self._socket.sendall((line + "\n").encode())

    def hear(self, order: str) -> None:
        """Waits for this order; if the channel closes, the rank ends."""
        line = self._file.readline()
        if not line:
            raise SystemExit("the test is gone")
        if line.strip() != order:
            raise SystemExit(f"expected the order {order!r}, got {line.strip()!r}")

    def leave(self) -> None:
        """Ends the rank by its exit handlers only. Tearing down the interpreter takes a second and
        runs no code of this library."""
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
