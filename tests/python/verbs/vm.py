"""A cluster of virtual machines with Soft-RoCE: real verbs and rdma_cm without hardware.

    with VmCluster(nodes=2, command=["build/cpp/mcast_verbs_driver"]) as cluster:
        result = cluster.wait(timeout=120)

    python tests/python/verbs/vm.py --nodes 3 --netem "loss 1%" -- COMMAND...

Each machine boots in software emulation (a few seconds), sees this machine's file system read-only
(its /tmp is private), has an interface eth0 on a common bridge and an RDMA device rxe0 on top of
it, runs the command with torchrun's variables, and shuts down. Output and exit codes are returned
through a shared folder. Everything lives in namespaces that end with the owner; see vm_inside.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import vm_image
from vm_image import SHARE
from vm_inside import tap

from torch_mcast.lab import system
from torch_mcast.lab.system import LabError

SUBNET = "10.98.77"
MAX_NODES = 16
# Variables of this process that the guests' commands get.
_PASSED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "HOME", "LANG")
_PASSED_PREFIX = ("MCAST_", "GTEST_")
_HIDDEN = ("/run", "/proc", "/sys", "/dev")
_POLL_S = 0.05
# no_timer_check: on a busy host the emulated timer is late, and the kernel would take it for a
# broken one and panic.
_KERNEL = "console=ttyS0 quiet panic=-1 no_timer_check"

_START = """#!/bin/sh
exec >{share}/out-$NODE 2>&1
. {share}/env
export NODE ADDRESS RANK=$((NODE - 1)) GROUP_RANK=$((NODE - 1))
ulimit -l unlimited
rdma link add rxe0 type rxe netdev eth0 || exit 99
{netem}
cd {cwd}
{command}
code=$?
echo $code >{share}/code-$NODE.part
mv {share}/code-$NODE.part {share}/code-$NODE
"""


@dataclass
class NodeResult:
    node: int
    code: int | None  # None: killed, or gone without a reply
    output: str
    console: str = ""  # of a machine that did not reply


@dataclass
class VmResult:
    nodes: list[NodeResult] = field(default_factory=list)
    seconds: float = 0.0
    timed_out: bool = False

    @property
    def code(self) -> int:
        """Returns 0 if every machine that was not killed on purpose ended its command with 0."""
        if self.timed_out:
            return 124
        return next((n.code if n.code is not None else 1 for n in self.nodes if n.code != 0), 0)


class VmCluster:
    """Boots on enter, runs `command` on every node, removes everything on exit."""

    def __init__(
        self,
        nodes: int,
        command: list[str],
        memory_mb: int = 512,
        netem: str = "",
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        on_line: Callable[[int, str], None] | None = None,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise LabError(f"{nodes} virtual machines: 1 to {MAX_NODES}")
        self.nodes = nodes
        self._command = command
        self._memory = memory_mb
        self._netem = netem
        self._env = env or {}
        self._cwd = os.path.realpath(cwd or os.getcwd())
        self._on_line = on_line
        self._ended: set[int] = set()
        self._killed: set[int] = set()
        self._read = [0] * (nodes + 1)
        self._partial = [b""] * (nodes + 1)
        hidden = [path for path in _HIDDEN if self._cwd.startswith(path + "/") or self._cwd == path]
        if hidden:
            raise LabError(
                f"{self._cwd} is not visible in the machines, which have their own {hidden[0]}"
            )

    def __enter__(self) -> VmCluster:
        image = vm_image.image()
        self._share = Path(tempfile.mkdtemp(prefix="torch-mcast-vm-"))
        try:
            self._write_share()
            self._start(image)
        except BaseException:
            shutil.rmtree(self._share, ignore_errors=True)
            raise
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._listener.join(timeout=5)
        shutil.rmtree(self._share, ignore_errors=True)

    def address(self, node: int) -> str:
        return f"{SUBNET}.{node}"

    def kill(self, node: int) -> None:
        """Ends machine `node` like a power cut."""
        self._killed.add(node)
        assert self._process.stdin is not None
        self._process.stdin.write(f"kill {node}\n")
        self._process.stdin.flush()

    def share(self) -> Path:
        """Returns the common folder on this machine; the guests see it as vm_image.SHARE."""
        return self._share

    def wait(self, timeout: float) -> VmResult:
        """Waits until every machine is gone, at most `timeout` seconds from the start."""
        deadline = self._began + timeout
        while len(self._ended) < self.nodes and time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise LabError(f"the machines' supervisor failed: {self._errors()}")
            time.sleep(_POLL_S)
            self._pass_on_output()
        self._pass_on_output(last=True)
        result = VmResult(seconds=time.monotonic() - self._began)
        result.timed_out = len(self._ended) < self.nodes
        for node in range(1, self.nodes + 1):
            code = self._share / f"code-{node}"
            result.nodes.append(
                NodeResult(
                    node,
                    int(code.read_text()) if code.exists() else None,
                    self._text(f"out-{node}"),
                    "" if code.exists() else self._text(f"console-{node}"),
                )
            )
        return result

    def _text(self, name: str) -> str:
        path = self._share / name
        return path.read_text(errors="replace") if path.exists() else ""

    def _errors(self) -> str:
        return self._text("supervisor").strip()

    def _write_share(self) -> None:
        env = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIX)}
        env |= {
            "WORLD_SIZE": str(self.nodes), "GROUP_WORLD_SIZE": str(self.nodes), "NODES": str(self.nodes),
            "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": self.address(1),
            "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "eth0",
            "MCAST_SOCKET_IFNAME": "=eth0", "MCAST_VM_SHARE": SHARE,
        }  # fmt: skip
        env |= self._env
        lines = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in env.items())
        (self._share / "env").write_text(lines)
        netem = f"tc qdisc add dev eth0 root netem {self._netem} || exit 98" if self._netem else ""
        (self._share / "start").write_text(
            _START.format(
                share=SHARE,
                netem=netem,
                cwd=shlex.quote(self._cwd),
                command=shlex.join(self._command),
            )
        )

    def _start(self, image: vm_image.Image) -> None:
        nodes = [self._machine(image, node) for node in range(1, self.nodes + 1)]
        rights = [] if system.capable() else ["--user", "--map-root-user"]
        inside = str(Path(__file__).with_name("vm_inside.py"))
        supervisor = [sys.executable, inside, json.dumps({"nodes": nodes})]
        with open(self._share / "supervisor", "wb") as errors:
            self._process = subprocess.Popen(
                [
                    system.tool("unshare"),
                    *rights,
                    "--net",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    *supervisor,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, number = line.partition(" ")
            if word == "ended":
                self._ended.add(int(number))

    def _machine(self, image: vm_image.Image, node: int) -> list[str]:
        """Returns the console log, then qemu's command line."""
        share = "security_model=none,multidevs=remap"
        return [
            str(self._share / f"console-{node}"),
            "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", str(self._memory), "-smp", "1",
            "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-monitor", "none",
            "-kernel", str(image.kernel), "-initrd", str(image.initrd),
            "-append", f"{_KERNEL} node={node} address={self.address(node)}",
            "-virtfs", f"local,path=/,mount_tag=root9p,readonly=on,{share}",
            "-virtfs", f"local,path={self._share},mount_tag=share,{share}",
            "-netdev", f"tap,id=n0,ifname={tap(node)},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=n0,mac=52:54:00:77:00:{node:02x},host_mtu=4400",
        ]  # fmt: skip

    def _pass_on_output(self, last: bool = False) -> None:
        if self._on_line is None:
            return
        for node in range(1, self.nodes + 1):
            path = self._share / f"out-{node}"
            if not path.exists():
                continue
            with open(path, "rb") as file:
                file.seek(self._read[node])
                fresh = file.read()
            self._read[node] += len(fresh)
            *lines, self._partial[node] = (self._partial[node] + fresh).split(b"\n")
            if last and self._partial[node]:
                lines.append(self._partial[node])
                self._partial[node] = b""
            for line in lines:
                self._on_line(node, line.decode(errors="replace"))


def run(
    nodes: int, command: list[str], memory_mb: int, netem: str, timeout: float, kill: dict[int, str]
) -> int:
    """Prints output with a prefix per node. Returns the exit code. kill: node -> text of an output
    line (of any node) that triggers killing it."""
    cluster: VmCluster

    def show(node: int, line: str) -> None:
        print(f"[node{node}] {line}", flush=True)
        for victim, text in list(kill.items()):
            if text in line:
                del kill[victim]
                cluster.kill(victim)

    victims = set(kill)
    cluster = VmCluster(nodes, command, memory_mb, netem, on_line=show)
    with cluster:
        result = cluster.wait(timeout)
    for node in result.nodes:
        if node.code is None and node.node not in victims:
            tail = "\n".join(node.console.splitlines()[-15:])
            print(f"vm: node{node.node} gave no answer:\n{tail}", file=sys.stderr)
    if result.timed_out:
        print(f"vm: not done after {timeout:g} s", file=sys.stderr)
        return 124
    survivors = [node for node in result.nodes if node.node not in victims]
    return VmResult(survivors).code


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Boots machines, runs a command in each, removes them."
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--memory", type=int, default=512, metavar="MB", help="of each machine")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--netem", default="", help='of each link, tc\'s words: "loss 1%%"')
    parser.add_argument(
        "--kill",
        action="append",
        default=[],
        metavar="NODE=TEXT",
        help="cut this machine's power when TEXT appears in any output",
    )
    parser.add_argument("argv", nargs="+", metavar="COMMAND", help="after --")
    args = parser.parse_args(argv)
    kill = {int(node): text for node, _, text in (pair.partition("=") for pair in args.kill)}
    try:
        return run(args.nodes, args.argv, args.memory, args.netem, args.timeout, kill)
    except LabError as error:
        print(f"vm: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
