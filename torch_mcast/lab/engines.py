"""The engines of a lab: one process in each worker host, which does the networking of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mcast import _program
from torch_mcast.engine import read
from torch_mcast.lab.daemons import Daemons
from torch_mcast.lab.topology import Host


class Engines(Daemons):
    noun = "engine"

    def hosts(self) -> list[Host]:
        return self._lab.workers

    def options(self) -> tuple[str, ...] | None:
        return self._lab.spec.engine_options

    def socket(self, host: Host) -> Path:
        """Returns the path that its ranks name in MCAST_ENGINE=host:PATH."""
        return self.folder(host) / "engine.sock"

    def command(self, host: Host) -> list[str]:
        return [str(_program.find_program("mcast-engine")), "--socket", str(self.socket(host))]

    def ask(self, host: Host) -> dict[str, Any]:
        return read(self.socket(host))
