"""The aggregators of a lab: one process in each host with that role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mcast.aggregator import find_program, read
from torch_mcast.lab.daemons import Daemons
from torch_mcast.lab.topology import Host

PORT = 7117


class Aggregators(Daemons):
    noun = "aggregator"

    def hosts(self) -> list[Host]:
        return self._lab.aggregators

    def options(self) -> tuple[str, ...] | None:
        return self._lab.spec.aggregator_options

    def _socket(self, host: Host) -> Path:
        return self.folder(host) / "status.sock"

    def command(self, host: Host) -> list[str]:
        own = ["--listen", host.endpoint(PORT), "--status", str(self._socket(host))]
        rate = self._lab.spec.rate_of(host.name)
        if rate is not None:
            own += ["--rate", str(rate)]
        return [str(find_program()), *own]

    def ask(self, host: Host) -> dict[str, Any]:
        return read(self._socket(host))
