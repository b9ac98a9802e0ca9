"""UFTP, reliable multicast file transfer, as a peer for broadcast: a client in every host but the
first, and one `uftp` per measurement. Its time includes its announce phase, and both sides use
files in memory, unlike a collective. It is given the link's rate, because it cannot find it. One
rank per host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from torch_mcast.bench.program import one_rank_per_host
from torch_mcast.lab.network import Lab
from torch_mcast.lab.system import LabError

_NIC = "eth0"
_LIMIT_S = 120.0
# Shares of the link that its data may use; the rest is for headers, which it does not count.
_SHARE = 0.94


class Uftp:
    """Clients that listen in the hosts of a lab. version: of the Debian package, if any."""

    def __init__(self, lab: Lab | None) -> None:
        self._lab = lab
        self._clients: list[subprocess.Popen[bytes]] = []
        self.version = _version()
        if lab is None or not one_rank_per_host(lab):
            return
        folder = self._folder = lab.scratch("uftp", in_memory=True)
        for host in lab.workers[1:]:
            (folder / host.name).mkdir()
            with (folder / f"{host.name}.log").open("wb") as out:
                self._clients.append(
                    lab.popen(
                        host,
                        [
                            "uftpd",
                            "-d",
                            "-I",
                            _NIC,
                            "-D",
                            str(folder / host.name),
                            "-B",
                            str(4 << 20),
                        ],
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                    )
                )

    def measure(self, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Measures as program.Program does; only broadcast, in a lab."""
        if op != "broadcast" or self._lab is None or not one_rank_per_host(self._lab) or size < 1:
            return {"s": None, "cpu_s": None, "right": True}
        path = self._folder / "data"
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(os.urandom(min(size, 1 << 20)) * -(-size // (1 << 20)))
            os.truncate(path, size)
        rate = self._lab.spec.rate_of(self._lab.workers[0].name)
        limit = str(int(rate * _SHARE / 1000)) if rate else "-1"
        start = time.perf_counter()
        # The first round-trip estimate of 10 ms shortens the announce phase from seconds.
        self._lab.run(
            0,
            [
                "uftp",
                "-I",
                _NIC,
                "-R",
                limit,
                "-B",
                str(4 << 20),
                "-r",
                "0.01:0.01:5",
                "-b",
                str(self._lab.spec.mtu - 100),
                str(path),
            ],
            timeout_s=_LIMIT_S,
        )
        seconds = time.perf_counter() - start
        right = True
        for host in self._lab.workers[1:]:
            copy = self._folder / host.name / "data"
            right = right and (not check or copy.read_bytes() == path.read_bytes())
            copy.unlink(missing_ok=True)
        return {"s": seconds, "cpu_s": None, "right": right}

    def close(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()


def _version() -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "uftp"], capture_output=True, text=True
        )
        return done.stdout or "unknown"
    return "unknown"


@contextlib.contextmanager
def start(lab: Lab | None, world: int) -> Iterator[Uftp]:
    """Starts the clients. `world` is not needed: there is one receiver per host."""
    if lab and lab.spec.ranks_per_host * lab.spec.hosts != world:
        raise LabError("uftp: the ranks are not those of the lab")
    program = Uftp(lab)
    try:
        yield program
    finally:
        program.close()
