"""Counts the bytes that crossed the links of a lab between two signals, and those of them that were
sent again. A rank or a host that this machine delays loses datagrams, takes late ones for lost, or
is taken for lost by TCP. Without the repeated bytes, the count matches a model however busy the
machine is."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch_mcast.lab import Lab
from torch_mcast.lab.counters import Counters

# 1514 bytes of frame carry a chunk of 1408 bytes here: header, IP, UDP, Ethernet are 74.
FRAME = 1514
CHUNK = 1408
FRAMING = (CHUNK + 74) / CHUNK
# Bytes of a repair request: a frame of its own in a stream, and its acknowledgement.
ASKED = 200


@dataclass
class Crossed:
    """Frames that crossed links, and bytes of segments that TCP retransmitted, by host."""

    counters: Counters
    tcp_again: dict[str, int]

    def sent(self, host: str) -> int:
        return self.counters.sent(host)

    def received(self, host: str) -> int:
        return self.counters.received(host)


def tcp_again(lab: Lab) -> dict[str, int]:
    def of(host: Any) -> int:
        text = lab.run(host, ["cat", "/proc/self/net/snmp"]).stdout
        names, values = (row.split() for row in re.findall(r"^Tcp:(.*)$", text, re.MULTILINE))
        return int(dict(zip(names, values, strict=True))["RetransSegs"]) * FRAME

    with ThreadPoolExecutor(4) as threads:
        return dict(zip([host.name for host in lab.hosts], threads.map(of, lab.hosts), strict=True))


def again(counted: dict[str, int]) -> float:
    """Returns the bytes as framed that one rank has sent for repairs: repaired data, and its part
    of the requests."""
    asked = ASKED * (counted["fetches_sent"] + counted["fetches_received"])
    return FRAMING * (counted["repair_bytes_sent"] + CHUNK * counted["remulticast_chunks"]) + asked


def again_by_host(
    crossed: Crossed, counted: list[dict[str, int]], per_host: int = 1
) -> list[float]:
    """Returns the bytes that each host of the ranks has sent again."""
    sent = [
        sum(again(c) for c in counted[first : first + per_host])
        for first in range(0, len(counted), per_host)
    ]
    return [crossed.tcp_again[f"h{h}"] + bytes for h, bytes in enumerate(sent, 1)]


def moved(
    cluster: Any, function: Any, *args: Any, look: Callable[[], None] = lambda: None
) -> tuple[Crossed, list[Any]]:
    """Returns the bytes that crossed the links between two signals of `function`, and its results.
    `look` is called before the end."""
    call = cluster.start(function, *args)
    call.wait("ready")
    tcp, before = tcp_again(cluster.lab), cluster.lab.counters()
    call.signal("go")
    call.wait("done")
    counters = cluster.lab.counters() - before
    resent = {host: bytes - tcp[host] for host, bytes in tcp_again(cluster.lab).items()}
    look()
    call.signal("end")
    return Crossed(counters, resent), call.results()
