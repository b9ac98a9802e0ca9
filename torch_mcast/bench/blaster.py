"""Raw multicast as a reference for broadcast: one host sends as fast as it can, the others count
the bytes that their sockets receive. It has no headers, credit, repair or destination buffers: lost
datagrams stay lost. It uses the kernel's segmentation (UDP_SEGMENT) and coalescing (UDP_GRO), 64
KiB per call, as the engine does. Its time for `size` bytes is size / goodput of the slowest
receiver.

    python -m torch_mcast.bench.blaster GROUP PORT INTERFACE_ADDRESS      (in each receiving host)
    python -m torch_mcast.bench.blaster GROUP PORT INTERFACE_ADDRESS MTU BYTES   (in the sending one)
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch_mcast.bench.program import one_rank_per_host
from torch_mcast.lab.network import Lab

_UDP_SEGMENT, _UDP_GRO = 103, 104  # <linux/udp.h>
_SO_RCVBUFFORCE = 33
_GROUP, _PORT = "239.255.77.77", 29177
_BUFFER = 64 << 20
_ATLEAST = 256 << 20  # bytes of one measurement, at least
_QUIET_S = 0.3  # a measurement ends after this time without a datagram
_LIMIT_S = 60.0


def receive(group: str, port: int, address: str) -> None:
    """For every "go" on standard input: counts bytes until no more arrive, then prints {"bytes", "s"}."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((group, port))
    member = socket.inet_aton(group) + socket.inet_aton(address)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    buffer = memoryview(bytearray(1 << 16))
    for _ in sys.stdin:
        got, first, last = 0, 0.0, 0.0
        print("ready", flush=True)
        sock.settimeout(_LIMIT_S)
        with contextlib.suppress(TimeoutError):
            while True:
                count = sock.recv_into(buffer)
                last = time.perf_counter()
                if not got:  # the datagram that starts the clock does not count
                    first = last
                    got = 1
                    sock.settimeout(_QUIET_S)
                    continue
                got += count
        print(json.dumps({"bytes": got, "s": last - first}), flush=True)


def send(group: str, port: int, address: str, mtu: int, total: int) -> None:
    """Sends `total` bytes, limited only by the local queue."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    payload = mtu - 28
    batch = min(64, 65507 // payload)
    sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, payload)
    data = memoryview(bytearray(total if total < _ATLEAST else 64 << 20))
    size = payload * batch
    at = 0
    while total > 0:
        at = at if at + size <= len(data) else 0
        sock.sendto(data[at : at + size], (group, port))
        at += size
        total -= size


class Blaster:
    """Receivers that wait in the hosts of a lab. `version` describes the program."""

    version = "raw multicast, UDP_SEGMENT and UDP_GRO, losses not repaired"

    def __init__(self, lab: Lab | None) -> None:
        self._lab = lab
        self._receivers: list[subprocess.Popen[str]] = []
        if lab is None or not one_rank_per_host(lab):
            return
        for host in lab.workers[1:]:
            self._receivers.append(
                lab.popen(
                    host,
                    self._command(host.address),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def _command(self, *arguments: object) -> list[str]:
        module = "torch_mcast.bench.blaster"
        return [sys.executable, "-m", module, _GROUP, str(_PORT), *map(str, arguments)]

    def _answer(self, receiver: subprocess.Popen[str]) -> str:
        assert receiver.stdout is not None
        ready, _, _ = select.select([receiver.stdout], [], [], _LIMIT_S)
        return receiver.stdout.readline() if ready else ""

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Measures as program.Program does; only broadcast, in a lab with one rank per host."""
        nothing = {"s": None, "cpu_s": None, "right": True}
        if op != "broadcast" or self._lab is None or not one_rank_per_host(self._lab) or size < 1:
            return nothing
        for receiver in self._receivers:
            assert receiver.stdin is not None
            receiver.stdin.write("go\n")
            receiver.stdin.flush()
        if any(self._answer(r).strip() != "ready" for r in self._receivers):
            return nothing
        sender = self._lab.workers[0]
        total = max(size, _ATLEAST) if self._lab.spec.rate_of(sender.name) is None else size
        self._lab.run(
            0, self._command(sender.address, self._lab.spec.mtu, total), timeout_s=_LIMIT_S
        )
        goodput = []
        for receiver in self._receivers:
            counted = json.loads(self._answer(receiver) or "{}")
            goodput.append(counted["bytes"] / counted["s"] if counted.get("s") else 0.0)
        worst = min(goodput)
        return {**nothing, "s": size / worst if worst > 0 else None}

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.kill()
            receiver.communicate()


@contextlib.contextmanager
def start(lab: Lab | None, world: int) -> Iterator[Blaster]:
    """Starts the receivers. `world` is not needed: there is one per host."""
    program = Blaster(lab)
    try:
        yield program
    finally:
        program.close()


if __name__ == "__main__":
    group, port, address, *rest = sys.argv[1:]
    if rest:
        send(group, int(port), address, int(rest[0]), int(rest[1]))
    else:
        receive(group, int(port), address)
