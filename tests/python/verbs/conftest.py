"""Virtual machines with Soft-RoCE."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nodes import Nodes

from torch_mcast.lab import vm_image
from torch_mcast.lab.vm import VmCluster

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def driver() -> str:
    """The C++ driver: of `make test-cpp` where that was run, else built here."""
    missing = vm_image.missing_tools()
    if missing:
        pytest.skip(f"the virtual machines need: apt install {' '.join(missing)}")
    build = ROOT / "build" / "cpp"
    if not (build / "build.ninja").exists():
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DMCAST_BUILD_TESTS=ON"], check=True
        )
    targets = ["mcast_verbs_driver", "mcast_verbs_contract"]
    subprocess.run(["cmake", "--build", build, "-j", "2", "--target", *targets], check=True)
    return str(build / "mcast_verbs_driver")


@pytest.fixture(scope="session")
def machines() -> Callable[..., Nodes]:
    """machines(n, command, timeout, kill={node: text}, **of VmCluster): runs it, returns Nodes."""

    def run(count: int, command: list[str], timeout: float, kill=None, **keywords) -> Nodes:
        waiting = dict(kill or {})

        def watch(node: int, line: str) -> None:
            for victim, text in list(waiting.items()):
                if text in line:
                    del waiting[victim]
                    cluster.kill(victim)

        cluster = VmCluster(count, command, on_line=watch, cwd=str(ROOT), **keywords)
        with cluster:
            nodes = Nodes(cluster.wait(timeout))
        assert not nodes.result.timed_out, nodes.text()
        return nodes

    return run


@pytest.fixture(scope="session")
def two_runs(driver: str, machines: Callable[..., Nodes]) -> tuple[Nodes, Nodes]:
    """The driver's checks in two machines, booted once: of every size, and with 5 % of the packets lost."""
    script = (
        'driver=$1; "$driver" check || exit 1; echo LOSSY; '
        "tc qdisc add dev eth0 root netem loss 5% || exit 98; "
        "export MCAST_VM_SHARE=$MCAST_VM_SHARE/lossy; mkdir -p $MCAST_VM_SHARE; "
        '"$driver" check 1000 1000003'
    )
    nodes = machines(2, ["sh", "-c", script, "sh", driver], 280, env={"MCAST_TRANSPORT": "verbs"})
    assert nodes.result.code == 0, nodes.text()
    return nodes.before("LOSSY"), nodes.after("LOSSY")
