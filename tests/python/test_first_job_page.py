"""The scripts and commands of docs/first-job.md give the outputs that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first-job.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)

pytestmark = pytest.mark.all_tier


def block(kind: str, word: str) -> str:
    (found,) = (text for language, text in BLOCKS if language == kind and word in text)
    return found


@pytest.fixture
def shell(tmp_path):
    """Runs commands in a folder with the two scripts of the page. Returns the exit code, and both
    outputs together."""
    (tmp_path / "first.py").write_text(block("python", "dist.broadcast"))
    (tmp_path / "late.py").write_text(block("python", "time.sleep"))
    names = ("MCAST_SHARED_MEMORY", "MCAST_SOCKET_IFNAME")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"

    def run(commands: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-euc", commands], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=240, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


# Two ranks print at once, so that a line of one may come before the end of the other's.
LINE = re.compile(
    r"sum: \d+, path: [\w ]+ \([\w ]+\)|(?:broadcast|all_reduce): \d+ by the engine, \d+ by the fallback"
    r"|rank \d+ sent \d+ bytes by multicast"
)


def lines(text: str) -> list[str]:
    """Returns the output of first.py, in any order. Bytes of headers differ by a few datagrams."""
    found = LINE.findall(text)
    assert found, text
    return sorted(re.sub(r"(\d+)\d{5} bytes", r"\1 x 10^5 bytes", line) for line in found)


ONE_HOST = block("sh", "LOCAL=")
NETWORK = block("sh", "MCAST_SHARED_MEMORY=off")


def test_first_script_runs_on_one_host_as_shown(shell):
    code, output = shell(ONE_HOST)
    assert code == 0, output
    assert lines(output) == lines(block("text", "path: shared memory")), output


def test_first_script_runs_over_the_network_path_as_shown(shell):
    code, output = shell(f"{ONE_HOST.rpartition('torchrun')[0]}\n{NETWORK}")
    assert code == 0, output
    assert lines(output) == lines(block("text", "path: multicast")), output


def test_error_of_a_late_rank_is_the_one_that_is_shown(shell):
    (command,) = re.findall(r"^`(torchrun \$LOCAL .* late\.py)`", PAGE, re.M)
    settings = f"{ONE_HOST.rpartition('torchrun')[0]}\n{NETWORK.partition('torchrun')[0]}"
    code, output = shell(f"{settings}\n{command}")
    assert code != 0
    shown = " ".join(block("text", "DistBackendError").split())
    # Times to a tenth of a second depend on the machine.
    pattern = re.sub(r"after 5\\\.0", r"after 5\\.\\d", re.escape(shown))
    assert re.search(pattern, " ".join(output.split())), output
