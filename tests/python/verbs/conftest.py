"""Virtual machines with Soft-RoCE."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import vm_image
from nodes import Nodes
from vm import VmCluster

from torch_mcast.secret import text_of

ROOT = Path(__file__).parents[3]
# Ends machines that hang. It measures nothing: beside other work they may take minutes to boot.
GUARD_S = 1800


def built(program: str) -> str:
    """Builds a program of tests/cpp/verbs_device, with the objects of `make test-cpp` if that was run."""
    missing = vm_image.missing_tools()
    if missing:
        pytest.skip(f"the virtual machines need: apt install {' '.join(missing)}")
    build = ROOT / "build" / "cpp"
    if not (build / "build.ninja").exists():
        subprocess.run(
            ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DMCAST_BUILD_TESTS=ON"], check=True
        )
    subprocess.run(["cmake", "--build", build, "-j", "2", "--target", program], check=True)
    return str(build / program)


@pytest.fixture(scope="session")
def driver() -> str:
    return built("mcast_verbs_driver")


@pytest.fixture(scope="session")
def contract() -> str:
    return built("mcast_verbs_contract")


@pytest.fixture(scope="session")
def machines() -> Callable[..., Nodes]:
    """machines(n, command, kill={node: text}, **of VmCluster): runs it, returns Nodes."""

    def run(count: int, command: list[str], kill=None, **keywords) -> Nodes:
        waiting = dict(kill or {})

        def watch(node: int, line: str) -> None:
            for victim, text in list(waiting.items()):
                if text in line:
                    del waiting[victim]
                    cluster.kill(victim)

        cluster = VmCluster(count, command, on_line=watch, cwd=str(ROOT), **keywords)
        with cluster:
            nodes = Nodes(cluster.wait(GUARD_S))
        assert not nodes.result.timed_out, nodes.text()
        return nodes

    return run


@pytest.fixture(scope="session")
def four_runs(driver: str, machines: Callable[..., Nodes]) -> tuple[Nodes, ...]:
    """Runs the driver's checks in two machines, booted once: with every size, with 5 % of the
    packets lost, the same in a sealed group, and with a device on the first machine only."""
    script = (
        'driver=$1; share=$MCAST_VM_SHARE; "$driver" check || exit 1; echo LOSSY; '
        "tc qdisc add dev eth0 root netem loss 5% || exit 98; "
        "export MCAST_VM_SHARE=$share/lossy; mkdir -p $MCAST_VM_SHARE; "
        '"$driver" check 1000 1000003 || exit 1; echo SEALED; '
        "export MCAST_VM_SHARE=$share/sealed; mkdir -p $MCAST_VM_SHARE; "
        'MCAST_SECURITY=sealed MCAST_SECRET=$SECRET "$driver" check 1000 1000003 || exit 1; '
        "echo ALONE; "
        "tc qdisc del dev eth0 root || exit 98; "
        'if [ "$NODE" = 2 ]; then rdma link delete rxe0 || exit 98; fi; '
        "export MCAST_VM_SHARE=$share/alone MCAST_TRANSPORT=auto; mkdir -p $MCAST_VM_SHARE; "
        '"$driver" check 70000'
    )
    env = {"MCAST_TRANSPORT": "verbs", "MCAST_JOB": "verbs", "SECRET": text_of(b"\x5e" * 32)}
    nodes = machines(2, ["sh", "-c", script, "sh", driver], env=env)
    assert nodes.result.code == 0, nodes.text()
    lossy, rest = nodes.after("LOSSY"), nodes.after("SEALED")
    return (
        nodes.before("LOSSY"),
        lossy.before("SEALED"),
        rest.before("ALONE"),
        rest.after("ALONE"),
    )
