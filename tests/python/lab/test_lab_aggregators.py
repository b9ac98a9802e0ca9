"""Aggregators in a lab: they run, the ranks get their addresses, and a test can kill, stop and
restart one."""

from __future__ import annotations

import signal
import subprocess

import pytest
from waiting import until

from torch_mcast.aggregator import NoAggregator
from torch_mcast.lab import Lab, LabError, LabSpec

pytestmark = pytest.mark.usefixtures("lab_rights")


@pytest.fixture(scope="module")
def two():
    with Lab(LabSpec(hosts=1, aggregators=2, aggregator_options=("--quota", "64M"))) as lab:
        yield lab


def test_they_run_with_the_labs_options_and_ranks_know_them(two):
    for host in two.aggregators:
        status = two.aggregation.status(host)
        assert status["address"] == f"{host.address}:7117"
        assert status["limits"]["quota"] == 64 << 20
    addresses = ",".join(f"{host.address}:7117" for host in two.aggregators)
    assert two.env("h1")["MCAST_AGGREGATORS"] == addresses
    assert "MCAST_AGGREGATORS" not in two.env("a1")
    reach = f"exec 3<>/dev/tcp/{two.host('a1').address}/7117 && echo reached"
    assert "reached" in two.run("h1", ["bash", "-c", reach]).stdout


def test_killed_restarted_and_ended_in_order(two):
    two.aggregation.kill("a1")
    assert not two.aggregation.running("a1")
    with pytest.raises(NoAggregator):
        two.aggregation.status("a1")
    two.aggregation.restart("a1", "--jobs", "3")
    assert two.aggregation.status("a1")["limits"]["jobs"] == 3
    assert two.aggregation.end("a1") == 0
    assert "draining" in two.aggregation.log("a1")
    with pytest.raises(LabError, match="no aggregator runs in a1"):
        two.aggregation.stop("a1")
    two.aggregation.restore()
    assert two.aggregation.status("a1")["limits"]["jobs"] == 16


def test_stopped_it_is_silent_until_it_goes_on(two):
    two.aggregation.stop("a2")
    socket = "import socket,sys; s=socket.create_connection((sys.argv[1], 7117)); s.settimeout(1)\n"
    code = socket + "s.sendall(bytes([4,0,0,0])+b'junk'); s.recv(1)"
    asked = subprocess.run(
        two.inside("h1", ["python3", "-c", code, two.host("a2").address]), capture_output=True
    )
    assert b"timed out" in asked.stderr.lower() or b"timeout" in asked.stderr.lower()
    two.aggregation.go_on("a2")
    until(
        lambda: two.aggregation.status("a2")["refused"]["malformed"],
        "the malformed frame is counted",
    )


def test_one_that_cannot_start_fails_the_lab_with_its_log():
    lab = Lab(LabSpec(hosts=1, aggregators=1, aggregator_options=("--quota", "none")))
    with pytest.raises(LabError, match=r"the aggregator of a1 ended with 2: .*--quota"):
        lab.up()


def test_they_go_with_the_lab():
    with Lab(LabSpec(hosts=1, aggregators=1)) as lab:
        process = lab.aggregation._processes["a1"]
    assert process.wait(10) == -signal.SIGKILL
