"""The lab's tests use its own pytest plugin and small network programs."""

import contextlib
import subprocess
import sys
from pathlib import Path

import lab_fixtures
import pytest

# Loaded by name: pytest takes plugins from the top-level conftest only, and this folder also runs
# alone.
_clusters, lab = lab_fixtures._clusters, lab_fixtures.lab
lab_rights, loopback = lab_fixtures.lab_rights, lab_fixtures.loopback

TRAFFIC = [sys.executable, str(Path(__file__).with_name("traffic.py"))]


class Traffic:
    """Datagrams between hosts of a lab."""

    def __init__(self, where):
        self.lab = where

    def send(self, source, receivers, count=200, size=1000, group=None):
        """Returns [(distinct datagrams received, damaged ones)] per receiver."""
        extra = [group] if group else []
        sinks = [
            self.lab.popen(
                host,
                [*TRAFFIC, "sink", "5000", str(count), *extra],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for host in receivers
        ]
        for sink in sinks:
            assert sink.stdout.readline() == "ready\n"
        target = group or self.lab.host(receivers[0]).address
        self.lab.run(source, [*TRAFFIC, "send", target, "5000", str(count), str(size)])
        results = []
        for sink in sinks:
            out, _ = sink.communicate(timeout=60)
            results.append(tuple(map(int, out.split())))
        return results

    @contextlib.contextmanager
    def echo(self, host):
        """Starts an echo service in a host. Returns once it listens."""
        with self.lab.popen(
            host, [*TRAFFIC, "echo", "7000"], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "ready\n"
            yield
            process.kill()

    def answers(self, source, target):
        """Returns whether target's echo service replies to source within a second."""
        return (
            self.lab.run(
                source, [*TRAFFIC, "ask", self.lab.host(target).address, "7000"], check=False
            ).returncode
            == 0
        )


@pytest.fixture
def traffic():
    return Traffic
