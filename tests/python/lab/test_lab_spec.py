"""Descriptions: units, checks, JSON, planning. No rights needed."""

import argparse
import json

import pytest

from torch_mcast.lab import (
    BitErrors,
    Fault,
    Lab,
    LabSpec,
    Loss,
    build,
    cli,
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


@pytest.mark.parametrize(
    "rate, text",
    [
        (None, "unlimited"),
        (999, "999 bit/s"),
        (1500, "1.5 kbit/s"),
        (10**6, "1 Mbit/s"),
        (25 * 10**8, "2.5 Gbit/s"),
    ],
)
def test_rates_are_written_in_the_largest_unit(rate, text):
    assert units.format_rate(rate) == text


@pytest.mark.parametrize("text, share", [("1%", 0.01), ("100%", 1), (1, 1), (0, 0), ("0.25", 0.25)])
def test_probabilities(text, share):
    assert units.parse_probability(text) == share


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
        (dict(mtu=575), "mtu must be 576 to 65535"),
        (dict(mtu=65536), "mtu must be 576 to 65535"),
        (dict(hosts=4, racks=[4, 0]), "add up to 4 hosts"),
        (dict(hosts=3, aggregators=1, racks=[1, 2]), "add up to 4 hosts"),
        (dict(hosts=3, aggregators=1, racks=[2, 2], aggregator_racks=[1]), "add up to 3 hosts"),
        (dict(hosts=3, aggregators=1, racks=[3], aggregator_racks=[-1]), "1 numbers from 0 to 1"),
        (dict(ranks_per_host=0), "at least one"),
        (dict(aggregators=-1), "at least one"),
        (dict(hosts=251), "at most 250 hosts"),
        (dict(hosts=249, aggregators=2), "at most 250 hosts"),
        (dict(tx_queues=0), "tx_queues must be 1 to 64"),
        (dict(tx_queues=65), "tx_queues must be 1 to 64"),
    ],
)
def test_impossible_labs_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        LabSpec(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        dict(hosts=249, aggregators=1, mtu=576, tx_queues=64),
        dict(hosts=250, mtu=65535, racks=[1, 249]),
        dict(hosts=3, aggregators=1, racks=[3], aggregator_racks=[0]),
    ],
)
def test_the_largest_labs_are_taken(fields):
    spec = LabSpec(**fields)
    assert [len(topology.plan_hosts("x", spec)), topology.plan_hosts("x", spec)[-1].address] == [
        spec.hosts + spec.aggregators,
        f"10.99.0.{spec.hosts + spec.aggregators}",
    ]


@pytest.mark.parametrize(
    "fields, words",
    [
        (dict(kind="noise", probability=0.1), "kind"),
        (dict(kind="loss", probability=0.1, direction="up"), "direction"),
        (dict(kind="loss", probability=0.1, protocol="icmp"), "protocol"),
        (dict(kind="loss", probability=0.1, unit="bit"), "unit"),
    ],
)
def test_impossible_faults_are_refused(fields, words):
    with pytest.raises(ValueError, match=f"{words} .* is none of"):
        Fault(**fields)


def test_a_host_s_own_rate_counts_and_may_be_none():
    spec = LabSpec(hosts=3, rate="1gbit", host_rates={"h2": "none", "h3": "10mbit"})
    assert [spec.rate_of(name) for name in spec.host_names] == [10**9, None, 10**7]
    assert LabSpec(host_rates={"h1": "10mbit"}).rate_of("h2") is None


def test_each_rate_and_size_is_a_field_of_its_own():
    spec = LabSpec(
        rate="1gbit", uplink_rate="2gbit", multicast_rate="3mbit", burst="4k", queue="5k"
    )
    assert (spec.rate, spec.uplink_rate, spec.multicast_rate) == (10**9, 2 * 10**9, 3 * 10**6)
    assert (spec.burst, spec.queue) == (4096, 5120)
    plain = LabSpec(rate="1gbit")
    assert plain.uplink_rate is None and plain.multicast_rate is None


def options(line):
    parser = argparse.ArgumentParser()
    cli.add_spec_arguments(parser)
    return parser.parse_args(line.split())


def test_the_options_of_a_command_are_the_fields_of_a_lab():
    assert cli.spec_from(options("")) == LabSpec(hosts=4)
    assert LabSpec().burst == 256 << 10 and LabSpec().queue == 4 << 20 and LabSpec().mtu == 1500
    line = (
        "--hosts 4 --ranks-per-host 3 --aggregators 2 --engine --rate 1gbit --host-rate h2=10mbit "
        "--host-rate a1=none --mtu 9000 --burst 64k --queue 1M --racks 1,3 --aggregator-racks 2,0 --uplink-rate 2gbit "
        "--tx-queues 8 --multicast blocked --multicast-rate 5mbit --loss 1%,host=h2 --bit-errors 0.5"
    )
    assert cli.spec_from(options("--ipv6")) == LabSpec(hosts=4, ipv6=True)
    assert cli.spec_from(options(line)) == LabSpec(
        hosts=4, ranks_per_host=3, aggregators=2, engine_options=(), rate=10**9,
        host_rates={"h2": 10**7, "a1": None}, mtu=9000, burst=64 << 10, queue=1 << 20, racks=(1, 3),
        aggregator_racks=(2, 0), uplink_rate=2 * 10**9, tx_queues=8, multicast="blocked",
        multicast_rate=5 * 10**6, faults=(Loss(0.01, hosts=("h2",)), BitErrors(0.5)),
    )  # fmt: skip


def test_a_lab_of_ipv6_has_no_address_of_ipv4():
    spec = LabSpec(hosts=17, aggregators=1, ipv6=True)
    hosts = topology.plan_hosts("x", spec)
    assert [hosts[0].address, hosts[16].address, hosts[17].address] == [
        "fd99::1",
        "fd99::11",
        "fd99::12",
    ]
    assert hosts[17].endpoint(7117) == "[fd99::12]:7117"
    assert not any("10.99" in line or "224." in line for line in topology.host_lines(hosts[0]))
    assert LabSpec.from_json(spec.to_json()) == spec
    for other in ({"multicast": "blocked"}, {"multicast_rate": "1mbit"}):
        with pytest.raises(ValueError, match="IPv4 labs only"):
            LabSpec(ipv6=True, **other)


def test_a_shaper_has_the_rate_the_burst_and_the_queue():
    spec = LabSpec(rate="8mbit", burst=20000, queue=70000)
    shaped = "tbf rate 8000000bit burst 20000b limit 70000b"
    assert topology.shaper_lines("eth0", spec.rate, spec, 1) == [
        f"qdisc replace dev eth0 root {shaped}"
    ]
    assert topology.shaper_lines("eth0", spec.rate, spec, 2) == [
        "qdisc replace dev eth0 root handle 1: mq",
        f"qdisc replace dev eth0 parent 1:1 {shaped}",
        f"qdisc replace dev eth0 parent 1:2 {shaped}",
    ]
    assert "pfifo" in topology.shaper_lines("eth0", None, spec, 1)[0]


@pytest.mark.parametrize(
    "mode, snooping, flood", [("flood", 0, "on"), ("snooping", 1, "on"), ("blocked", 0, "off")]
)
def test_switches_treat_multicast_as_the_mode_says(mode, snooping, flood):
    spec = LabSpec(hosts=2, racks=[1, 1])
    ip_lines, bridge_lines = topology.multicast_lines(mode, spec, ["port-h1", "up1"])
    for bridge in ("br0", "br1", "br2"):
        line = f"link set {bridge} type bridge mcast_snooping {snooping} mcast_querier {snooping}"
        assert line in ip_lines
    assert bridge_lines == [
        f"link set dev {port} mcast_flood {flood}" for port in ("port-h1", "up1")
    ]


def test_a_limit_of_multicast_is_given_in_bits():
    assert faults.limit_rule(2_000_000, 20000).startswith(
        "ip daddr 224.0.0.0/4 ip protocol udp limit rate over 250000 bytes/second burst 20000 bytes"
    )


def test_an_aggregator_is_told_the_rate_of_its_own_link():
    lab = Lab(LabSpec(hosts=1, aggregators=2, rate="1gbit", host_rates={"a1": "10gbit"}))
    rates = [lab.aggregation.command(host)[-2:] for host in lab.aggregators]
    assert rates == [["--rate", "10000000000"], ["--rate", "1000000000"]]
    unshaped = Lab(LabSpec(hosts=1, aggregators=1))
    assert "--rate" not in unshaped.aggregation.command(unshaped.host("a1"))


def test_ranks_are_told_the_rate_of_the_lab():
    assert Lab(LabSpec(hosts=1, rate="1gbit")).env("h1")["MCAST_LINK_RATE"] == "1000000000"
    assert "MCAST_LINK_RATE" not in Lab(LabSpec(hosts=1)).env("h1")


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


def test_each_rack_has_an_uplink_to_the_spine():
    spec = LabSpec(hosts=3, racks=[1, 2])
    assert topology.bridges(spec) == ["br0", "br1", "br2"]
    assert [(u.rack, u.bridge, u.lower, u.upper) for u in topology.plan_uplinks(spec)] == [
        (1, "br1", "up1", "rack1"),
        (2, "br2", "up2", "rack2"),
    ]
    assert topology.plan_uplinks(LabSpec(hosts=3)) == []


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
        {"kind": "clsact", "dev": "eth0", "parent": "ffff:fff1", "bytes": 77},
        {"kind": "fq_codel", "dev": "eth0", "root": True, "bytes": 88},
        {"kind": "tbf", "dev": "gone", "root": True, "bytes": 99},
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
