"""The report of one process or of a job: a JSON document, or text for a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from torch_mcast import __version__
from torch_mcast.doctor.findings import Finding, exit_code, worst
from torch_mcast.doctor.table import summary, table

SCHEMA = 1


def document(findings: list[Finding], job: dict[str, Any] | None) -> dict[str, Any]:
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
