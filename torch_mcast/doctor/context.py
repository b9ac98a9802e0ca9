"""Data that the checks share, collected once: settings, interfaces, and the one that the library takes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_mcast.doctor import netif
from torch_mcast.doctor.netif import Interface, Route

# Defaults of the settings that checks need if the extension, which has the table, cannot be loaded.
_DEFAULTS = {
    "interface": "",
    "algorithm": "auto",
    "max_mtu": "9000",
    "chunk": "0",
    "rcvbuf": str(32 << 20),
    "sndbuf": str(1 << 20),
    "ttl": "1",
    "faults": "",
    "port_range": "",
}


def load_table() -> tuple[Any, list[dict[str, Any]], str]:
    """Returns (the Options class, rows of the settings table, ""), or (None, [], why not)."""
    try:
        from torch_mcast._load import extension

        module = extension()
        return module.Options, module.settings(), ""
    except Exception as error:  # noqa: BLE001 - every error of a broken torch is reported
        return None, [], f"{type(error).__name__}: {error}"


def resolve(
    options: Any, rows: list[dict[str, Any]], environment: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns ({setting: value}, {variable: its fault}).

    The library stops at the first bad variable. To name all of them each is resolved alone: the
    others are hidden behind explicit defaults, which win over the environment.
    """
    defaults = {row["name"]: row["default"] for row in rows}
    values, bad = dict(defaults), {}
    for row in rows:
        text = environment.get(row["env"], "").strip()
        if not text:
            continue
        explicit = {**defaults, row["name"]: text}
        try:
            values[row["name"]] = options(**explicit).resolved()[row["name"]]
        except (ValueError, RuntimeError) as error:
            message = str(error).splitlines()[0].partition(": ")[2]  # without the name of the class
            bad[row["env"]] = message.replace(
                f"from option {row['name']}", f"from environment variable {row['env']}"
            )
    return values, bad


@dataclass
class Context:
    environment: Mapping[str, str]
    values: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    extension_error: str = ""
    interfaces: list[Interface] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    chosen: Interface | None = None
    why: str = ""  # reason for the choice, or for its absence
    loopback: Interface | None = None
    gpu: bool = False  # --gpu: a machine without a usable GPU fails
    unreached: set[str] = field(default_factory=set)  # interfaces where multicast did not arrive

    def number(self, setting: str) -> int:
        return int(self.values[setting])

    @property
    def paths(self) -> list[Interface]:
        """Returns loopback and the chosen interface, without missing or equal ones."""
        found = [self.chosen, self.loopback]
        if self.chosen and self.loopback and self.chosen.index == self.loopback.index:
            found.pop()
        return [i for i in found if i is not None]

    @property
    def ports(self) -> tuple[int, int] | None:
        """Returns the TCP ports on which a job's processes listen; None: any."""
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", self.values.get("port_range", ""))
        return (int(found[1]), int(found[2] or found[1])) if found else None

    def whole(self, variable: str, default: int) -> int:
        """Returns a count from the environment, as launchers set it; `default` if it is not a number."""
        text = self.environment.get(variable, "")
        return int(text) if text.isascii() and text.isdigit() else default


def gather(environment: Mapping[str, str] = os.environ) -> Context:
    options, rows, error = load_table()
    if rows:
        values, bad = resolve(options, rows, environment)
    else:
        values, bad = dict(_DEFAULTS), {}
        values["interface"] = environment.get("MCAST_SOCKET_IFNAME", "").strip()
        values["port_range"] = environment.get("MCAST_PORT_RANGE", "").strip()
    context = Context(environment, values, rows, bad, error)
    context.routes = netif.read_routes()
    try:
        context.interfaces = netif.list_interfaces(context.routes)
        context.loopback = netif.find_loopback(context.interfaces)
        if store := environment.get("MASTER_ADDR"):
            netif.mark_store_route(context.interfaces, store)
        choose = netif.named_interface if error else netif.choose_interface
        context.chosen, context.why = choose(context.interfaces, values["interface"])
    except (OSError, ValueError) as problem:
        context.why = str(problem)
    return context
