"""Finds the launcher of this process: torchrun and those that set its variables, or Slurm's srun,
whose variables are translated."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch_mcast.doctor.findings import Finding, warn

_JOB = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
# Above the ports that the kernel assigns, and different for jobs that share a host.
_FIRST_PORT, _PORTS = 61000, 4000


def first_host(nodes: str) -> str:
    """Returns the first host of a Slurm list: gpu03 for "gpu[03-05,9],login1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes.strip())
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0]) if first else ""


def tasks_on(text: str, node: int) -> int:
    """Returns the tasks on a node from SLURM_STEP_TASKS_PER_NODE: "2(x3),1" is 2 on nodes 0 to 2
    and 1 on node 3."""
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            return 1
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return 1


def _number(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def of_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's variables for a task of a Slurm step; empty outside of a step, and for its
    only task."""
    rank, world = (
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    )
    # A batch script has the variables of its first task; only a step has a number.
    if _number(environment, "SLURM_STEP_ID") is None or rank is None or world is None or world < 2:
        return {}
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    job, step = (
        _number(environment, "SLURM_JOB_ID") or 0,
        _number(environment, "SLURM_STEP_ID") or 0,
    )
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks_on(per_node, _number(environment, "SLURM_NODEID") or 0)),
        "MASTER_ADDR": first_host(nodes),
        "MASTER_PORT": str(_FIRST_PORT + (job * 7 + step) % _PORTS),
    }


def job_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with torchrun's variables. Existing values take precedence."""
    if all(environment.get(name) for name in _JOB):
        return dict(environment)
    slurm = of_slurm(environment)
    given = {
        name: environment[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in environment
    }
    return {**environment, **slurm, **(given if slurm else {})}


def in_job(environment: Mapping[str, str]) -> bool:
    return all(environment.get(name) for name in _JOB)


def judge_allocation(environment: Mapping[str, str]) -> list[Finding]:
    """Warns in an allocation of several tasks that was not started by srun: the other hosts are not
    checked."""
    tasks = _number(environment, "SLURM_NTASKS") or 1
    nodes = _number(environment, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1
    if in_job(environment) or "SLURM_JOB_ID" not in environment or max(tasks, nodes) < 2:
        return []
    text = f"an allocation of {nodes} nodes, of which this command checks only one"
    fix = "srun --ntasks-per-node=1 torch-mcast doctor"
    return [warn("launcher", text, fix, nodes=nodes, tasks=tasks)]
