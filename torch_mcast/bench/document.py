"""The result of a run as one JSON document: the figures, the machine, the software, and notes.

It is written after every case, so that a stopped run keeps its results. `schema` is increased when
the meaning of a field changes; `complete` is false until all cases are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_mcast.bench import rows
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.system import package_root
from torch_mcast.lab.units import format_rate, format_size

SCHEMA = 3
_SECRET = "MCAST_SECRET"
_PREFIXES = ("MCAST_", "GLOO_", "OMPI_")
_PACKAGE = Path(__file__).resolve().parents[1]


def extension() -> Path | None:
    """Finds the built extension without importing anything (that would import torch)."""
    return next(iter(sorted(_PACKAGE.glob("_C.*.so"))), None)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine() -> dict[str, Any]:
    """Describes the machine, as far as it matters to a reader. Call it before the run, for
    `load_before`."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
    }


def build() -> dict[str, str | None]:
    """Identifies the build: the extension's hash, and the commit if there is a checkout."""
    file = extension()
    done = None
    if (Path(package_root()) / ".git").exists():
        command = ["git", "-C", package_root(), "describe", "--always", "--dirty", "--abbrev=12"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            done = None  # git is missing
    return {
        "extension_sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file else None,
        "commit": done.stdout.strip() if done and done.returncode == 0 else None,
    }


def environment() -> dict[str, str]:
    """Returns the variables that influence the measurement; for a secret only that it is set."""
    found = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(_PREFIXES)}
    return {name: "(set)" if name == _SECRET else text for name, text in found.items()}


def common(of_ranks: list[dict[str, str]]) -> dict[str, str]:
    """Returns the variables of rank 0, with "(differs)" if another rank has another value or none."""
    return {
        name: text if all(each.get(name) == text for each in of_ranks) else "(differs)"
        for name, text in of_ranks[0].items()
    }


def lab_text(spec: LabSpec) -> str:
    """Describes a lab for the headline: the parameters that every figure of the run depends on."""
    text = (
        f"{spec.hosts} hosts x {spec.ranks_per_host} ranks in a lab, {format_rate(spec.rate)}, "
        f"MTU {spec.mtu}, port queue {format_size(spec.queue)}"
    )
    if spec.rate:
        text += ", ranks told the rate (MCAST_LINK_RATE)"
    if spec.multicast_rate:
        text += f", multicast {format_rate(spec.multicast_rate)}"
    for fault in spec.faults:
        text += f", {fault.kind} {fault.probability:g} ({fault.direction}, {fault.unit})"
    return text


@dataclass
class Document:
    """One run. `rows` is the list that grows while it runs."""

    where: str
    command: str
    rows: list[dict[str, Any]]
    peer: str | None  # of the ratios, None if there is no peer
    repetitions: int
    spec: LabSpec | None = None
    rate: int | None = None
    mtu: int = 1500
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    rank_environment: dict[str, str] = field(default_factory=dict)
    path: Path | None = None  # file to write to

    def __post_init__(self) -> None:
        self._machine, self._build = machine(), build()
        self._began = time.monotonic()

    def as_json(self, complete: bool) -> dict[str, Any]:
        if self.peer:
            rows.add_ratios(self.rows, self.peer)
        rows.add_best_ratios(self.rows)
        return {
            "schema": SCHEMA,
            "complete": complete,
            "title": f"torch-mcast bench: {self.where}{rows.path_text(self.rows)}",
            "caption": f"medians of n timings ({self.repetitions} requested) of the slowest rank, with "
            "the backends interleaved; ratio > 1: faster; ratios are taken per repetition, with quartiles",
            "command": self.command,
            "date": time.strftime("%Y-%m-%d"),
            "seconds": round(time.monotonic() - self._began, 1),
            "machine": self._machine,
            "build": self._build,
            "environment": environment(),
            "rank_environment": self.rank_environment,
            "versions": self.versions,
            "peer": self.peer,
            "notes": self.notes + self._findings(),
            "rows": self.rows,
            "lab": self.spec.to_json() if self.spec else None,
        }

    def _findings(self) -> list[str]:
        burst = self.spec.burst if self.spec else 0
        return [
            *rows.partial_notes(self.rows),
            *rows.few_notes(self.rows, self.repetitions),
            *rows.above_bound_notes(self.rows, self.rate, self.mtu, burst),
            *rows.rival_notes(self.rows, self.peer),
            *rows.engine_notes(self.rows),
            *rows.exposed_notes(self.rows, self.peer),
        ]

    def save(self, complete: bool = False) -> None:
        """Replaces the file atomically, so that a reader never sees a partial one."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.write_text(json.dumps(self.as_json(complete), indent=1) + "\n")
        draft.rename(self.path)
