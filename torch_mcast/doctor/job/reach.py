"""Tests which ranks receive from which others, with the library's kinds of traffic: multicast
datagrams of full size and TCP connections, between all ranks.

Rank 0 makes a plan from the facts of all ranks: on one host it uses loopback, else the chosen
interfaces; the size is a full chunk of the group that these ranks would create. Every rank joins
and listens before any sends. Then each sends a few rounds of one full and one small datagram (if
only full ones are missing, the MTU is the cause), and connects to all. It stops when all have sent
and the last datagram had time to arrive, so a rank that is scheduled late is not reported as
unreachable."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from torch_mcast.doctor import udp
from torch_mcast.doctor.fixes import UDP_PORTS
from torch_mcast.doctor.job.compare import Facts
from torch_mcast.doctor.netif import Interface, family_of

_HEADER = 32  # bytes of the library's datagram header; chunks are multiples of 64
_PROBE = struct.Struct("<16sIB")
_SMALL = 64
_EVERY_S, _GRACE_S, _CONNECT_S = 0.1, 0.3, 2.0


def probe_size(datagram: int, chunk: int) -> int:
    """Returns the bytes of a full datagram of the group, of which `datagram` is the upper bound."""
    payload = max(datagram - _HEADER, 0) // 64 * 64
    return _HEADER + (min(payload, chunk) if chunk else payload)


def plan(facts: Facts) -> dict[str, Any]:
    """Returns the path, the participants and the datagrams, as JSON."""
    one_host = len({f["host_id"] for f in facts.values()}) == 1
    path = "loopback" if one_host else "interface"
    able = sorted(rank for rank, f in facts.items() if f[path] is not None)
    datagram = min((facts[rank][path]["datagram"] for rank in able), default=0)
    chunks = [int(facts[rank]["values"].get("chunk", 0)) for rank in able]
    return {
        "path": path,
        "ranks": able,
        "hosts": {str(rank): facts[rank]["host_id"] for rank in able},
        "group": udp.random_group(any(":" in facts[rank][path]["address"] for rank in able)),
        # The port is one of a job's, so that a filter that accepts jobs accepts it. Groups are
        # separate, so that no job is disturbed.
        "port": UDP_PORTS[0] + secrets.randbelow(UDP_PORTS[1] - UDP_PORTS[0] + 1),
        "token": secrets.token_hex(16),
        "size": max(probe_size(datagram, max(chunks, default=0)), _SMALL),
        "rounds": 10 if len(able) <= 64 else 3,
    }


@dataclass
class Heard:
    full: set[int] = field(default_factory=set)
    small: set[int] = field(default_factory=set)
    # peers that refused a TCP connection, and the reason
    refused: dict[int, str] = field(default_factory=dict)
    problem: str = ""  # this rank could not take part

    def to_json(self) -> dict[str, Any]:
        return {
            "full": sorted(self.full),
            "small": sorted(self.small),
            "refused": {str(rank): why for rank, why in sorted(self.refused.items())},
            "problem": self.problem,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Heard:
        refused = {int(rank): why for rank, why in row["refused"].items()}
        return cls(set(row["full"]), set(row["small"]), refused, row["problem"])


class Probe:
    """One rank's sockets, open from the plan until all have reported. A context manager."""

    def __init__(
        self,
        plan: dict[str, Any],
        rank: int,
        multicast: Interface,
        addresses: dict[str, str],
        ttl: int,
        rcvbuf: int,
        ports: tuple[int, int] | None = None,  # to listen on; None: any
    ) -> None:
        self.plan, self.rank = plan, rank
        self._token = bytes.fromhex(plan["token"])
        self._sockets = contextlib.ExitStack()
        self._listeners: dict[str, socket.socket] = {}
        with contextlib.ExitStack() as stack:
            self._receiver = stack.enter_context(
                udp.open_receiver(multicast, plan["group"], plan["port"])
            )
            udp.set_buffer(self._receiver, True, rcvbuf)
            self._sender = stack.enter_context(udp.open_sender(multicast, ttl))
            for kind, address in addresses.items():
                backlog = max(len(plan["ranks"]), 16)
                listener = udp.listen(address, ports, backlog)
                self._listeners[kind] = stack.enter_context(listener)
                listener.setblocking(False)
            self._sockets = stack.pop_all()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._sockets.close()

    def addresses(self) -> dict[str, list[Any]]:
        """Returns {"loopback" or "interface": [address, port]} on which this rank listens."""
        return {kind: list(s.getsockname()[:2]) for kind, s in self._listeners.items()}

    def run(self, peers: dict[int, Any], sent: Any, all_sent: Any, limit: float) -> Heard:
        """`peers`: addresses() of all; `sent()` reports that this rank has sent everything,
        `all_sent()` returns whether all ranks have. Takes at most `limit` seconds."""
        heard = Heard()
        start = time.monotonic()
        rounds, announced, quiet_at = 0, False, None
        next_at = start
        with selectors.DefaultSelector() as selector:
            selector.register(self._receiver, selectors.EVENT_READ, None)
            for listener in self._listeners.values():
                selector.register(listener, selectors.EVENT_READ, None)
            pending = self._connect_all(peers, selector, heard)
            while (now := time.monotonic()) < start + limit:
                if now >= next_at:
                    next_at = now + _EVERY_S
                    if rounds < self.plan["rounds"]:
                        rounds += 1
                        self._send(heard)
                    elif not announced:
                        announced = True
                        sent()
                    elif quiet_at is None and all_sent():
                        quiet_at = now + _GRACE_S
                if now > start + _CONNECT_S:
                    self._give_up(pending, selector, heard, "no answer")
                complete = len(heard.full) == len(self.plan["ranks"])
                if quiet_at is not None and not pending and (complete or now > quiet_at):
                    break
                for key, _ in selector.select(max(next_at - now, 0)):
                    self._ready(key, selector, pending, heard)
            self._give_up(pending, selector, heard, "no answer")
        return heard

    def _send(self, heard: Heard) -> None:
        to = (self.plan["group"], self.plan["port"])
        for full, size in ((1, self.plan["size"]), (0, _SMALL)):
            payload = _PROBE.pack(self._token, self.rank, full).ljust(size, b"\0")
            try:
                self._sender.sendto(payload, to)
            except BlockingIOError:  # a full queue counts as loss, and more rounds follow
                continue
            except OSError as error:
                heard.problem = f"sending {size} bytes: {error.strerror}"

    def _ready(self, key: Any, selector: Any, pending: dict[int, Any], heard: Heard) -> None:
        if key.data is not None:
            self._connected(key.data, selector, pending, heard)
        elif key.fileobj is self._receiver:
            self._hear(heard)
        else:
            with contextlib.suppress(OSError):
                key.fileobj.accept()[0].close()

    def _hear(self, heard: Heard) -> None:
        for _ in range(256):  # so that timers are handled in between
            try:
                payload = self._receiver.recv(65536)
            except OSError:
                return
            if len(payload) < _PROBE.size:
                continue
            token, rank, full = _PROBE.unpack_from(payload)
            if token == self._token and len(payload) == (self.plan["size"] if full else _SMALL):
                (heard.full if full else heard.small).add(rank)

    def _connect_all(self, peers: dict[int, Any], selector: Any, heard: Heard) -> dict[int, Any]:
        pending: dict[int, Any] = {}
        hosts = self.plan["hosts"]
        for rank, addresses in peers.items():
            same = hosts[str(rank)] == hosts[str(self.rank)]
            address = addresses.get("loopback" if same else "interface")
            if rank == self.rank or address is None:
                continue
            client = socket.socket(family_of(address[0]), socket.SOCK_STREAM)
            client.setblocking(False)
            try:
                client.connect(tuple(address))
            except BlockingIOError:
                pass
            except OSError as error:
                heard.refused[rank] = f"{address[0]}: {error.strerror}"
                client.close()
                continue
            pending[rank] = (client, address)
            selector.register(client, selectors.EVENT_WRITE, rank)
        return pending

    def _connected(self, rank: int, selector: Any, pending: dict[int, Any], heard: Heard) -> None:
        client, address = pending.pop(rank)
        selector.unregister(client)
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            heard.refused[rank] = f"{address[0]}: {os.strerror(error)}"
        client.close()

    def _give_up(self, pending: dict[int, Any], selector: Any, heard: Heard, why: str) -> None:
        for rank, (client, address) in pending.items():
            heard.refused[rank] = f"{address[0]}: {why}"
            selector.unregister(client)
            client.close()
        pending.clear()
