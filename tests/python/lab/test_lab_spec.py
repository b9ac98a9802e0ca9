"""Descriptions: units, checks, JSON, planning. No rights needed."""

import json

import pytest

from torch_mcast.lab import (
    BitErrors,
    Fault,
    Lab,
    LabSpec,
    Loss,
    build,
    counters,
    faults,
    topology,
    units,
)


@pytest.mark.parametrize(
    "text, bits",
    [
        ("1gbit", 10**9),
        ("2.5gbit", 25 * 10**8),
        ("100Mbit/s", 10**8),
        ("10gbps", 10**10),
        (5000, 5000),
        (None, None),
        ("none", None),
        ("0", None),
    ],
)
def test_rates(text, bits):
    assert units.parse_rate(text) == bits


@pytest.mark.parametrize(
    "text, size",
    [
        ("4096", 4096),
        ("4k", 4096),
        ("4KiB", 4096),
        ("256kb", 262144),
        ("64M", 1 << 26),
        ("1GiB", 1 << 30),
        ("0", 0),
        (17, 17),
    ],
)
def test_sizes(text, size):
    assert units.parse_size(text) == size


@pytest.mark.parametrize("size", [0, 1, 1000, 4096, 1 << 20, 3 << 20, 1 << 30])
def test_a_formatted_size_reads_back(size):
    assert units.parse_size(units.format_size(size).replace(" ", "")) == size


@pytest.mark.parametrize(
    "parse, text",
    [
        (units.parse_rate, "fast"),
        (units.parse_rate, "1 parsec"),
        (units.parse_size, "4q"),
        (units.parse_probability, "101%"),
        (units.parse_probability, -0.1),
    ],
)
def test_nonsense_is_refused(parse, text):
    with pytest.raises(ValueError):
        parse(text)


def test_fault_grammar():
    assert Fault.parse("loss", "1%") == Loss(0.01)
    assert Fault.parse(
        "loss", "0.2,host=h2+h3,direction=out,protocol=all,unit=superpacket"
    ) == Loss(0.2, hosts=["h2", "h3"], direction="out", protocol="all", unit="superpacket")
    with pytest.raises(ValueError, match="nonsense"):
        Fault.parse("loss", "1%,nonsense=1")
    with pytest.raises(ValueError, match="protocol"):
        BitErrors(0.1, protocol="all")


@pytest.mark.parametrize(
    "fields, words",
    [
        (dict(hosts=0), "at least one"),
        (dict(hosts=4, racks=[1, 2]), "add up"),
        (dict(hosts=4, aggregators=2, racks=[2, 2], aggregator_racks=[1]), "2 numbers from 0 to 2"),
        (dict(hosts=4, aggregators=1, racks=[2, 2], aggregator_racks=[3]), "1 numbers from 0 to 2"),
        (dict(host_rates={"h9": "1gbit"}), "h9"),
        (dict(faults=[Loss(0.1, hosts=["x"])]), "x"),
        (dict(multicast="maybe"), "maybe"),
        (dict(mtu=100), "mtu"),
    ],
)
def test_impossible_labs_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        LabSpec(**fields)


def test_switches_with_aggregators_prune_multicast_unless_told_otherwise():
    assert LabSpec(hosts=2).multicast == "flood"
    assert LabSpec(hosts=2, aggregators=1).multicast == "snooping"
    assert LabSpec(hosts=2, aggregators=1, multicast="flood").multicast == "flood"


def test_a_spec_survives_json():
    spec = LabSpec(
        hosts=3,
        aggregators=1,
        racks=[2, 2],
        rate="1gbit",
        uplink_rate="2gbit",
        host_rates={"h2": "100mbit"},
        faults=[Loss("1%"), BitErrors(0.5, hosts=["a1"])],
    )
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_aggregators_come_after_workers_and_fill_the_last_rack():
    hosts = topology.plan_hosts("x", LabSpec(hosts=3, aggregators=1, racks=[2, 2]))
    assert [(h.name, h.role, h.address, h.bridge) for h in hosts] == [
        ("h1", "worker", "10.99.0.1", "br1"),
        ("h2", "worker", "10.99.0.2", "br1"),
        ("h3", "worker", "10.99.0.3", "br2"),
        ("a1", "aggregator", "10.99.0.4", "br2"),
    ]


def test_aggregators_in_racks_and_at_the_spine_are_a_tree():
    lab = Lab(LabSpec(hosts=4, aggregators=3, racks=[2, 2], aggregator_racks=[1, 2, 0]))
    assert [host.bridge for host in lab.aggregators] == ["br1", "br2", "br0"]
    assert lab.env("h3")["MCAST_RACK"] == "rack2"
    assert lab.env("h3")["MCAST_AGGREGATORS"] == (
        "rack1/10.99.0.5:7117,rack2/10.99.0.6:7117,top/10.99.0.7:7117"
    )
    flat = Lab(LabSpec(hosts=3, aggregators=1, racks=[2, 2]))
    assert "MCAST_RACK" not in flat.env("h1")


def test_bit_error_probability_is_shared_by_the_places():
    rules = faults.rules([BitErrors(0.06)], silent=False)
    limits = [int(rule.split(" < ")[1].split()[0]) for rule in rules]
    assert sum(limits) == pytest.approx(0.06 * 10_000_000, rel=1e-3) and len(set(limits)) == 1


def test_wire_bytes_come_from_the_root_queue_and_queues_from_its_children():
    links = [
        {
            "ifname": "eth0",
            "stats64": {"tx": {"bytes": 900, "packets": 1}, "rx": {"bytes": 7, "packets": 2}},
        }
    ]
    qdiscs = [
        {"kind": "mq", "dev": "eth0", "root": True, "bytes": 1000, "packets": 3, "drops": 1},
        {"kind": "tbf", "dev": "eth0", "parent": "1:10", "bytes": 16},
        {"kind": "tbf", "dev": "eth0", "parent": "1:2", "bytes": 400},
        {"kind": "tbf", "dev": "eth0", "parent": "1:1", "bytes": 600},
    ]
    port = counters.parse(links, qdiscs)["eth0"]
    assert (port.tx_bytes, port.rx_bytes, port.wire_bytes, port.queue_drops) == (900, 7, 1000, 1)
    assert port.queues == [600, 400, 16]


@pytest.mark.parametrize(
    "cpus, text",
    [
        ([0], "00000001"),
        ([1, 31], "80000002"),
        ([32], "00000001,00000000"),
        ([0, 64], "00000001,00000000,00000001"),
    ],
)
def test_cpu_masks(cpus, text):
    assert build.cpu_mask(sum(1 << cpu for cpu in cpus)) == text
