"""Checks whether systemd would accept a unit; systemd need not run."""

from __future__ import annotations

import subprocess
from pathlib import Path


def verify(unit: Path) -> None:
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (0, "")
