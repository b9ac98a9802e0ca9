"""`torch-mcast doctor`: runs the checks and prints the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from torch_mcast.doctor import job
from torch_mcast.doctor.checks import run_all
from torch_mcast.doctor.context import Context, gather
from torch_mcast.doctor.report import show


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="torch-mcast doctor",
        description="Checks this machine for torch-mcast; under torchrun, all ranks against each "
        "other. Exit code: 0 ok or warnings, 1 a failure. `doctor watch`: who joins multicast groups.",
    )
    p.add_argument("--json", action="store_true", help="a JSON document instead of the table")
    p.add_argument("--local", action="store_true", help="this machine only, also under torchrun")
    p.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="longest wait for other ranks, seconds (default 30)",
    )
    return p


def under_launcher(environment: Mapping[str, str]) -> bool:
    return all(environment.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["watch"]:
        from torch_mcast.doctor import watch

        return watch.main(arguments[1:])
    parsed = parser().parse_args(arguments)
    context: Context = gather()
    findings = run_all(context)
    if not parsed.local and under_launcher(context.environment):
        return job.run(context, findings, parsed.timeout, parsed.json)
    return show(findings, parsed.json)
