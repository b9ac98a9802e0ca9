"""tools/soak.py: however a run of seeds ends, it is counted, and its seed is stored to be repeated.
Scripts replace the programs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "soak.py"
SUITES = re.findall(r'^    \("(\w+)", "(\S+)", ', TOOL.read_text(), re.MULTILINE)
PROGRAMS = sorted({program for program, _ in SUITES})
NOTE = 'echo "MCAST_TEST_SEED=77 --gtest_filter=A.B" > "$MCAST_TEST_NOTE"\n'


def soak(folder, script, limit_s=60, bad="shm"):
    """Returns exit status, output and remaining files of a run in which the program `bad` is this
    script."""
    for program in PROGRAMS:
        file = folder / f"mcast_test_{program}"
        file.write_text("#!/bin/sh\n" + (script if program == bad else ""))
        file.chmod(0o755)
    command = [sys.executable, TOOL, "--minutes", "0.02", "--jobs", str(len(SUITES) + 2)]
    command += ["--build", folder, "--out", folder / "out", "--limit", f"{limit_s}"]
    done = subprocess.run(command, capture_output=True, text=True)
    files = [file.read_text() for file in (folder / "out").glob(f"{bad}-*.log")]
    return done.returncode, done.stdout + done.stderr, files


def test_runs_that_pass_leave_nothing(tmp_path):
    code, said, files = soak(tmp_path, NOTE)
    assert code == 0 and not files and not (tmp_path / "out").exists(), said
    assert re.fullmatch(r"\d+ runs of seeded suites in 0\.02 minutes, 0 failed\n", said), said


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("echo MCAST_TEST_SEED=77: wrong bytes; exit 1", "exit status 1"),
        (NOTE + "echo about to read; kill -SEGV $$", "exit status -11"),
        (NOTE + "kill -KILL $$", "exit status -9"),  # without output
        (NOTE + "exec sleep 1000", "no end after 5 s"),
    ],
    ids=["says so", "crashes", "is killed", "hangs"],
)
def test_a_failed_run_is_stored_with_its_seed(tmp_path, script, end):
    code, said, files = soak(tmp_path, script, 5 if "no end" in end else 60)
    assert code == 1 and files, said
    for text in files:
        assert end in text and "MCAST_TEST_SEED=77" in text, text
        assert re.match(r"MCAST_TEST_BASE=\d+ mcast_test_shm --gtest_filter='\S+'\n", text), text
    again = re.findall(r"^  MCAST_TEST_SEED=77 mcast_test_shm --gtest_filter='\S+'$", said, re.M)
    assert len(again) == len(files) == int(re.search(r"(\d+) failed$", said, re.M)[1]), said


def test_a_plan_of_the_swarm_is_kept(tmp_path):
    script = "echo hosts 3 > swarm-77.plan; echo a law is broken; exit 1"
    code, said, files = soak(tmp_path, script, bad="sim")
    kept = tmp_path / "out" / "swarm-77.plan"
    assert code == 1 and files and kept.read_text() == "hosts 3\n", said
    again = f"MCAST_SWARM_PLAN={kept} mcast_test_sim --gtest_filter='Swarm.GivenPlanBreaksNoLaw'"
    assert again in said, said
