"""tools/timed.py: the status of the command, and the CPU time of all that it has started."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "timed.py"
SPENT_S = 0.3
ORPHAN = f"""
import pathlib, sys, time
while time.process_time() < {SPENT_S}:
    pass
pathlib.Path(sys.argv[1]).touch()
"""
COMMAND = """
(setsid "$1" -S -c "$2" "$3" &)
until [ -e "$3" ]; do sleep 0.02; done
exit 3
"""


def test_the_time_of_orphans_counts(tmp_path):
    steps = tmp_path / "steps.tsv"
    command = ["sh", "-c", COMMAND, "sh", sys.executable, ORPHAN, str(tmp_path / "spent")]
    done = subprocess.run([sys.executable, TOOL, steps, "a step", *command], check=False)
    assert done.returncode == 3
    name, _, cpu_s = steps.read_text().split("\t")
    assert name == "a step" and float(cpu_s) >= SPENT_S
    told = subprocess.run(
        [sys.executable, TOOL, "--table", steps], capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines()[1].startswith("a step ")
    assert "sum of CPU seconds" in told
    assert re.fullmatch(r"5,000,000 additions in Python: \d+\.\d\d CPU s", told.splitlines()[-1])


def test_a_command_that_a_signal_ends_has_the_shell_s_status(tmp_path):
    done = subprocess.run(
        [sys.executable, TOOL, tmp_path / "steps.tsv", "x", "sh", "-c", "kill -TERM $$"],
        check=False,
    )
    assert done.returncode == 128 + 15
