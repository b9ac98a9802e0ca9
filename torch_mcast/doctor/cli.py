"""`torch-mcast doctor`: runs the checks and prints the report."""

from __future__ import annotations

import argparse
import os
import sys

from torch_mcast.doctor import job
from torch_mcast.doctor.checks import run_all
from torch_mcast.doctor.context import Context, gather
from torch_mcast.doctor.job.rendezvous import say
from torch_mcast.doctor.launcher import in_job, job_of, judge_allocation
from torch_mcast.doctor.report import show


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="torch-mcast doctor",
        description="Checks whether this machine is ready for torch-mcast. Under torchrun or srun it also "
        "checks all ranks against each other. Exit code: 0 ok or warnings, 1 a failure. "
        "`torch-mcast doctor watch` shows which hosts join multicast groups.",
    )
    p.add_argument("--json", action="store_true", help="print a JSON document instead of the table")
    p.add_argument("--local", action="store_true", help="check only this machine, even in a job")
    p.add_argument(
        "--gpu",
        action="store_true",
        help="fail if no GPU can be used [rows about GPUs where there are some]",
    )
    p.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="longest wait for other ranks [30]",
    )
    return p


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["watch"]:
        from torch_mcast.doctor import watch

        return watch.main(arguments[1:])
    parsed = parser().parse_args(arguments)
    environment = job_of(os.environ)
    if parsed.local:
        environment = {n: v for n, v in environment.items() if n not in ("RANK", "MASTER_ADDR")}
    together = in_job(environment)
    if together and environment["RANK"] == "0":
        say(f"checking {os.uname().nodename}")
    context: Context = gather(environment)
    context.gpu = parsed.gpu
    findings = run_all(context)
    if together:
        return job.run(context, findings, parsed.timeout, parsed.json)
    if not parsed.local:
        findings += judge_allocation(environment)
    return show(findings, parsed.json)
