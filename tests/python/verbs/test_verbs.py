"""Collectives and training over real verbs, between virtual machines with Soft-RoCE."""

from __future__ import annotations

import re
import sys

import pytest
from nodes import result_of

# A pair of machines takes a minute to boot; tests/cpp/verbs runs the transport over a device in memory.
pytestmark = pytest.mark.all_tier
VERBS = {"MCAST_TRANSPORT": "verbs"}


def check_verbs(nodes):
    """Checks that every node succeeded, with verbs and multicast, and that the device saw the traffic."""
    assert nodes.result.code == 0, nodes.text()
    for values in nodes.values:
        assert values["transport"].startswith("verbs rxe0:1 RoCE"), values["transport"]
        assert values["path"] == "multicast", values["reason"]
        assert int(values["datagrams_received"]) > 0
        # Every datagram and every message is at least one packet of the device.
        assert int(values["device_sent_pkts"]) > int(values["datagrams_sent"])
        assert int(values["device_rcvd_pkts"]) > int(values["datagrams_received"])
        assert values["failures"] == "0"


def test_two_nodes_every_size(four_runs):
    nodes = four_runs[0]
    check_verbs(nodes)
    for output in nodes.outputs:
        assert [line for line in output.splitlines() if line.startswith("checked=")] == [
            f"checked={size}" for size in (0, 1, 1000, 65536, 1000003, 8 << 20)
        ]
    for values in nodes.values:  # every node is a root of the 8 MiB; small data was copied
        assert 0 < int(values["gathered_datagrams"]) < int(values["datagrams_sent"])


def test_two_nodes_losses_are_repaired_by_rdma_read(four_runs):
    nodes = four_runs[1]
    check_verbs(nodes)
    assert nodes.total("repair_reads") > 0
    assert nodes.total("repair_read_bytes") > 0
    assert nodes.total("fetch_grants_sent") > 0


def test_two_nodes_sealed(four_runs):
    nodes = four_runs[2]
    check_verbs(nodes)
    assert nodes.total("repair_bytes_sent") > 0, "losses are repaired by messages"
    for name in ("repair_reads", "fetch_grants_sent", "gathered_datagrams", "corrupt"):
        assert nodes.total(name) == 0


def test_auto_takes_verbs_between_hosts_that_all_have_it(driver, machines):
    nodes = machines(2, [driver, "check", "70000"], env={"MCAST_TRANSPORT": "auto"})
    check_verbs(nodes)
    for values in nodes.values:
        assert values["transport_reason"] == "every rank of 2 hosts has an RDMA device"


def test_auto_takes_sockets_where_one_node_has_no_device(four_runs):
    nodes = four_runs[3]
    for values in nodes.values:
        assert values["transport"].startswith("udp eth0")
        assert "no verbs on rank 1" in values["transport_reason"]
        assert "this host has no RDMA device" in values["transport_reason"]


def test_asking_for_verbs_where_one_node_has_none_fails_on_all(driver, machines):
    without = 'if [ "$NODE" = 2 ]; then rdma link delete rxe0; fi; exec "$@"'
    nodes = machines(2, ["sh", "-c", without, "sh", driver, "check", "0"], env=VERBS)
    for output, node in zip(nodes.outputs, nodes.result.nodes, strict=True):
        assert node.code == 1, nodes.text()
        assert "cannot use verbs: this host has no RDMA device" in output
        assert "rank 1 on host node2" in output


def test_pytorch_job(machines):
    job = "tests/python/verbs/job.py"
    nodes = machines(2, [sys.executable, job], memory_mb=2500, env={**VERBS, "PYTHONPATH": "."})
    assert nodes.result.code == 0, nodes.text()
    for output in nodes.outputs:
        result = result_of(output)
        assert result["transport"].startswith("verbs rxe0:1 RoCE")
        assert result["transport_reason"] == "the setting transport is verbs"
        assert result["path"] == "multicast"
        assert sum(calls.get("fallback", 0) for calls in result["calls"].values()) == 0
        assert sum(calls.get("engine", 0) for calls in result["calls"].values()) >= 5
        assert result["sent_packets"] > result["counters"]["datagrams_sent"] > 0
        assert result["counters"]["gathered_datagrams"] > 0


@pytest.mark.parametrize("loss", ["", "loss 1%", "loss 5%"])
def test_three_nodes(driver, machines, loss):
    nodes = machines(3, [driver, "check"], netem=loss, env=VERBS)
    check_verbs(nodes)
    if loss:
        assert nodes.total("repair_reads") + nodes.total("remulticast_chunks") > 0


def test_a_killed_node_is_named(driver, machines):
    env = {**VERBS, "MCAST_LIVENESS_LIMIT": "8000"}
    nodes = machines(3, [driver, "until-lost"], kill={3: "under way"}, env=env)
    for node, values in zip(nodes.result.nodes[:2], nodes.values[:2], strict=True):
        assert node.code == 0, nodes.text()
        assert "rank 2" in values["error"]
        assert float(values["error_after"]) < 30  # the configured limit, on a slow machine


def test_the_contract_suite_on_a_device(contract, machines):
    nodes = machines(1, [contract])
    assert nodes.result.code == 0, nodes.text()
    ran = re.search(r"^\[=+\] (\d+) tests from 1 test suite ran", nodes.outputs[0], re.MULTILINE)
    assert ran and int(ran[1]) >= 24 and f"[  PASSED  ] {ran[1]} tests." in nodes.outputs[0]


def test_the_fsdp_example_runs_unchanged(machines):
    command = [sys.executable, "examples/train_fsdp.py", "--steps", "2", "--width", "48"]
    env = {**VERBS, "PYTHONPATH": ".", "MCAST_DEBUG": "info"}
    command += ["--layers", "1", "--heads", "2", "--context", "32", "--batch", "2"]
    nodes = machines(2, command, memory_mb=2500, env=env)
    assert nodes.result.code == 0, nodes.text()
    for output in nodes.outputs:
        assert "path multicast (the probe reached every rank)" in output
        assert ", verbs rxe0:1 RoCE" in output
