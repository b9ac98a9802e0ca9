"""Several hosts as network namespaces: the doctor finds the faults that the test makes."""

import json
import os
from pathlib import Path

import pytest
from forked import Forked

from torch_mcast.lab import Lab, LabSpec
from torch_mcast.lab.launch import rank_env

DOCTOR = ["-m", "torch_mcast.doctor", "--json"]
CHOICES = str(Path(__file__).with_name("choices.py"))


def diagnose(lab):
    """Returns a function that runs the doctor on every host and returns (JSON of rank 0, exit codes)."""
    processes = []
    for host in lab.workers:
        env = {**os.environ, **rank_env(lab, host, 0, 29500), **lab.env(host)}
        processes.append(Forked(DOCTOR, env, inside=lab.namespaces(host)))
    outputs = [process.communicate(timeout=240) for process in processes]
    assert outputs[0][0], outputs[0][1]
    return json.loads(outputs[0][0]), [process.returncode for process in processes]


def rows(document):
    return {row["check"]: row for row in document["job"]["findings"]}


@pytest.fixture
def hosts(lab_rights):
    with Lab(LabSpec(hosts=2)) as lab:
        yield lab


def test_healthy(hosts):
    document, codes = diagnose(hosts)
    job = document["job"]
    assert job["reach"]["path"] == "interface"
    assert {row["verdict"] for row in job["findings"]} == {"ok"}
    assert codes == [0, 0]


def test_hosts_with_ipv6_only(lab_rights):
    with Lab(LabSpec(hosts=2, ipv6=True)) as lab:
        document, codes = diagnose(lab)
    assert document["job"]["reach"]["path"] == "interface"
    assert {row["verdict"] for row in document["job"]["findings"]} == {"ok"}
    assert codes == [0, 0]


def test_network_without_multicast(hosts):
    hosts.set_multicast("blocked")
    document, codes = diagnose(hosts)
    reach = rows(document)["reach"]
    assert reach["verdict"] == "warn"
    assert sorted(map(tuple, reach["data"]["pairs"])) == [(0, 1), (1, 0)]
    assert any("cloud" in row["finding"] for row in document["job"]["findings"])
    assert rows(document)["tcp between ranks"]["verdict"] == "ok"
    assert codes == [0, 0]  # the ring is used


def test_host_with_a_packet_filter(hosts):
    rule = ["INPUT", "-p", "udp", "-d", "224.0.0.0/4", "-j", "DROP"]
    hosts.run("h2", ["iptables", "-A", *rule])
    document, _ = diagnose(hosts)
    reach = rows(document)["reach"]
    assert sorted(map(tuple, reach["data"]["pairs"])) == [(0, 1), (1, 1)]
    assert "not even from itself" in rows(document)["likely cause"]["finding"]
    others = {row["check"]: row for row in document["job"]["others"]}
    assert others["[1] firewall"]["fix"].startswith("iptables -I INPUT -i eth0 -s ")


def test_switch_with_a_smaller_mtu(hosts):
    for host in ("h1", "h2"):
        hosts.run(host, ["ip", "link", "set", "eth0", "mtu", "4000"])
    document, _ = diagnose(hosts)
    assert rows(document)["reach"]["verdict"] == "warn"
    assert "MCAST_MAX_MTU" in rows(document)["likely cause"]["fix"]
    heard = document["job"]["reach"]["heard"]
    assert (heard["0"]["full"], heard["0"]["small"]) == ([0], [0, 1])


def test_engine_and_doctor_choose_the_same_interface(lab_rights):
    patterns = ["", "eth", "=lo", "^eth0", "nosuch,eth", "^=eth", "dual,eth", "^dual,eth", "veth"]
    with Lab(LabSpec(hosts=1, ranks_per_host=2)) as lab:
        # Two more: an ordinary one, and one that looks like a container's.
        lab.run("h1", ["ip", "link", "add", "dual0", "type", "veth", "peer", "name", "veth-x"])
        for name, address in (("dual0", "10.98.0.1/24"), ("veth-x", "10.97.0.1/24")):
            lab.run("h1", ["ip", "addr", "add", address, "dev", name])
            lab.run("h1", ["ip", "link", "set", name, "up"])
        host = lab.workers[0]
        ranks = [
            Forked(
                [CHOICES, *patterns],
                {**os.environ, **lab.env(host), **rank_env(lab, host, local, 29500)},
                inside=lab.namespaces(host),
            )
            for local in (0, 1)
        ]
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    for output in outputs:
        lines = output.splitlines()
        assert [line.split("|")[0] for line in lines] == patterns
        for line in lines:
            _, doctor, engine = line.split("|")
            assert engine.startswith(f"udp {doctor} "), line
