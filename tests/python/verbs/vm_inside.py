"""The supervisor of a cluster of virtual machines, in its own namespaces.

It is process 1 of a PID namespace: when it ends, for whatever reason, the kernel kills every
machine, and the network namespace with its bridge and taps is removed with the last of them. It
ends when its standard input closes, so also when its owner is killed. Argument: JSON {"nodes":
[command line, ...]}, node i using tap i. It reads lines from standard input: "kill N" ends machine
N at once. It writes lines to standard output: "ended N" when a machine is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading

_BRIDGE = "br0"


def tap(node: int) -> str:
    return f"tap{node}"


def _ip(*arguments: str, lines: list[str] | None = None) -> None:
    subprocess.run(
        ["ip", *arguments], input="\n".join(lines or []) + "\n", text=True, check=True, timeout=60
    )


def _build(nodes: int) -> None:
    lines = [
        "link set lo up",
        f"link add {_BRIDGE} type bridge mcast_snooping 0",
        f"link set {_BRIDGE} up",
    ]
    _ip("-batch", "-", lines=lines)
    for node in range(1, nodes + 1):
        _ip("tuntap", "add", "dev", tap(node), "mode", "tap")
        # Set before the tap joins the bridge, whose MTU is the smallest of its ports.
        plug = [f"link set {tap(node)} mtu 4400 master {_BRIDGE}", f"link set {tap(node)} up"]
        _ip("-batch", "-", lines=plug)


def _start(console: str, argv: list[str]) -> subprocess.Popen[bytes]:
    with open(console, "wb") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def main() -> int:
    commands: list[list[str]] = json.loads(sys.argv[1])["nodes"]
    _build(len(commands))
    machines = [_start(argv[0], argv[1:]) for argv in commands]
    lock = threading.Lock()

    def report(number: int, machine: subprocess.Popen[bytes]) -> None:
        machine.wait()
        with lock:
            print(f"ended {number}", flush=True)

    for number, machine in enumerate(machines, 1):
        threading.Thread(target=report, args=(number, machine), daemon=True).start()
    for line in sys.stdin:
        word, _, number = line.partition(" ")
        if word == "kill":
            machines[int(number) - 1].kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
