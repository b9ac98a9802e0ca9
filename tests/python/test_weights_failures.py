"""torch_mcast.weights with workers that die or are slow while a version is sent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from forked import Forked
from ranks import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "weights_to_engines.py"
ENV = {
    **os.environ,
    "MCAST_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
}
HAS_RECONFIGURE = hasattr(dist, "_reconfigure")


class Job:
    def __init__(self, folder: Path, scenario: str) -> None:
        self.folder, self.scenario, self.port = folder, scenario, free_port()
        self.ranks = [self.start(rank) for rank in range(4)]

    def start(self, rank: int) -> Forked:
        words = [
            str(Path(__file__).with_name("weights_job.py")),
            str(rank),
            "4",
            str(self.port),
            str(self.folder),
        ]
        return Forked([*words, self.scenario], ENV)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, [rank.text() for rank in self.ranks]
            time.sleep(0.01)

    def end(self) -> list[str]:
        """What each rank has written."""
        said = [rank.communicate(60) for rank in self.ranks[1:]]
        (self.folder / "end").touch()
        said.insert(0, self.ranks[0].communicate(60))
        return ["".join(each) for each in said]


@pytest.mark.not_everywhere
@pytest.mark.skipif(HAS_RECONFIGURE, reason="torch has reconfigure")
def test_a_dead_worker_is_an_error_by_name_before_reconfigure(tmp_path):
    job = Job(tmp_path, "killed")
    said = job.end()
    assert job.ranks[1].returncode == -signal.SIGKILL
    assert said[0].startswith("sent 1\nerror weights: version 2 was not sent, after"), said[0]
    assert re.search(r"rank 1 was lost: .*has no reconfigure \(2\.14 and later have it\)", said[0])
    assert "stopped waiting" not in said[0]  # the others are not to blame
    for text in said[2:]:
        assert text.startswith("has 1\nerror weights: ") and "version 2" in text, text
        assert "has no reconfigure" in text or "does not respond" in text, text


needs_reconfigure = [
    pytest.mark.not_everywhere if HAS_RECONFIGURE else pytest.mark.all_tier,
    pytest.mark.not_everywhere,
    pytest.mark.skipif(not HAS_RECONFIGURE, reason="torch has no reconfigure"),
]


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=needs_reconfigure) for name in ("killed", "slow")]
)
def test_a_worker_is_left_out_and_joins_again(tmp_path, scenario):
    job = Job(tmp_path, scenario)
    job.wait_for("version2")
    if scenario == "killed":
        assert job.ranks[1].wait(60) == -signal.SIGKILL
        job.ranks[1] = job.start(1)
    said = job.end()
    assert re.match(r"sent 1\nsent 2, left out \{1: .*\}\nsent 3\n", said[0]), said
    assert said[1].split("\n")[: 1 if scenario == "killed" else 2][-1] == "has 3", said
    for text in said[2:]:
        assert text.startswith("has 1\nhas 2\nhas 3\n"), said


def test_the_example_ends_with_two_workers_killed():
    # Started as users start it.
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--workers", "3", "--size", "32M"],
        env={**ENV, "MCAST_SHARED_MEMORY": "off"}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("was killed") == 2
    assert re.search(r"workers \[\d\] have all 4 steps", done.stdout), done.stdout
    for step in range(1, 5):
        assert f"trainer: sent step {step} as version" in done.stdout
    if HAS_RECONFIGURE:
        assert done.stdout.count("trainer: left out rank") == 2
    else:
        errors = re.findall(r"trainer: WeightsError after ([\d.]+) s: .*", done.stdout)
        assert len(errors) == 2 == done.stdout.count("made a new group"), done.stdout
        assert done.stdout.count("has no reconfigure") >= 2
