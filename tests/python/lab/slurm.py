"""A Slurm cluster on the hosts of a lab: the distribution's slurmctld on the first host and a slurmd on each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from torch_mcast.lab import Lab

LIMIT_S = 60
# Messages are not signed (auth/none, cred/none), so munged is not needed: the namespaces have no other users.
CONFIG = """ClusterName=lab
SlurmctldHost=h1({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=60
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def configure(lab: Lab, folder: Path) -> Path:
    """Writes the cluster's slurm.conf and returns its path."""
    for name in ("state", *(f"spool.{host.name}" for host in lab.workers)):
        (folder / name).mkdir(parents=True, mode=0o755)
    nodes = "\n".join(
        f"NodeName={host.name} NodeAddr={host.address} CPUs=1" for host in lab.workers
    )
    file = folder / "slurm.conf"
    file.write_text(CONFIG.format(address=lab.workers[0].address, folder=folder, nodes=nodes))
    # Its own choice between versions looks for a mounted cgroup hierarchy; this one is not used.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return file


def wait_for_nodes(lab: Lab, env: dict[str, str], daemons: list[subprocess.Popen[bytes]]) -> None:
    """Returns when both nodes are idle; AssertionError with Slurm's words if that takes too long."""
    end = time.monotonic() + LIMIT_S
    wanted = sorted(f"{host.name} idle" for host in lab.workers)
    while True:
        asked = lab.popen(
            "h1", ["sinfo", "-h", "-N", "-o", "%N %T"], env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        text = asked.communicate(timeout=LIMIT_S)[0]
        if sorted(text.splitlines()) == wanted:
            return
        ended = [daemon.args for daemon in daemons if daemon.poll() is not None]
        assert not ended and time.monotonic() < end, f"{ended} {text}"
        time.sleep(0.1)  # Slurm has no event for it


@contextlib.contextmanager
def cluster(lab: Lab, folder: Path) -> Iterator[dict[str, str]]:
    """The variables with which Slurm's commands find the cluster."""
    env = {"SLURM_CONF": str(configure(lab, folder))}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(host: str, *words: str) -> None:
        with (folder / f"{Path(words[0]).name}.{host}.log").open("wb") as log:
            daemons.append(
                lab.popen(host, list(words), env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    try:
        start("h1", "slurmctld", "-D", "-i")
        for host in lab.workers:
            start(host.name, "slurmd", "-D", "-N", host.name)
        wait_for_nodes(lab, env, daemons)
        yield env
    finally:
        for daemon in daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in daemons:
            try:
                daemon.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
