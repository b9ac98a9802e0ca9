"""`torch-mcast doctor`: runs the checks and prints the report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from torch_mcast.doctor.checks import run_all
from torch_mcast.doctor.context import Context, gather
from torch_mcast.doctor.findings import Finding, exit_code, worst
from torch_mcast.doctor.table import summary, table

SCHEMA = 1


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="torch-mcast doctor",
        description="Checks this machine for torch-mcast; under torchrun, all ranks against each "
        "other. Exit code: 0 ok or warnings, 1 a failure.",
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


def document(findings: list[Finding], job: dict[str, Any] | None) -> dict[str, Any]:
    from torch_mcast import __version__

    everything = list(findings)
    if job is not None:
        everything += [Finding.from_json(row) for row in job["findings"]]
        for rank in job["ranks"]:
            everything += [Finding.from_json(row) for row in rank["findings"]]
    verdict = worst(everything)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "host": os.uname().nodename,
        "verdict": verdict.value,
        "exit_code": exit_code(verdict),
        "findings": [f.to_json() for f in findings],
        "job": job,
    }


def width() -> int:
    return shutil.get_terminal_size((130, 24)).columns


def colour() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def show(findings: list[Finding], as_json: bool) -> int:
    if as_json:
        print(json.dumps(document(findings, None), indent=2))
    else:
        print(table(findings, width(), colour()))
        print(f"\n{summary(findings)}")
    return exit_code(worst(findings))


def main(arguments: list[str] | None = None) -> int:
    parsed = parser().parse_args(arguments)
    context: Context = gather()
    findings = run_all(context)
    if not parsed.local and under_launcher(context.environment):
        from torch_mcast.doctor import job

        return job.run(context, findings, parsed.timeout, parsed.json)
    return show(findings, parsed.json)
