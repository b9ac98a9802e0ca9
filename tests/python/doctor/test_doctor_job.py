"""Comparing ranks and reading the reach matrix, on made-up jobs; the probe itself on loopback."""

import errno
import json
import threading
import time

import pytest

from torch_mcast.doctor import netif, udp
from torch_mcast.doctor.findings import Verdict, worst
from torch_mcast.doctor.job import compare, diagnose, reach
from torch_mcast.doctor.job import rendezvous as rendezvous_module
from torch_mcast.doctor.job.ranks import label, spans
from torch_mcast.doctor.job.reach import Heard, Probe
from torch_mcast.doctor.job.rendezvous import Rendezvous

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL


def interface(address="10.0.0.1", name="eth0", mtu=1500, subnet="10.0.0.0/24"):
    return {
        "name": name,
        "address": address,
        "mtu": mtu,
        "subnet": subnet,
        "loopback": name == "lo",
        "datagram": min(mtu, 9000) - 28,
    }


def rank(host="a", **changes):
    address = f"10.0.0.{ord(host)}"
    return {
        "host": host,
        "host_id": f"id-{host}",
        "version": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.2",
        "values": {"eager": "32768", "rcvbuf": "1", "interface": "", "ttl": "1", "chunk": "0"},
        "agreed": ["eager", "chunk"],
        "secret_check": "",
        "interface": interface(address),
        "loopback": interface("127.0.0.1", "lo", 65536, "127.0.0.0/8"),
        "findings": [],
        **changes,
    }


def values(**changes):
    return {**rank()["values"], **changes}


def job(*ranks):
    return dict(enumerate(ranks))


def verdicts(findings):
    return {f.check: f.verdict for f in findings}


def test_spans():
    assert spans([5, 1, 0, 2, 2]) == "0-2, 5"
    assert (label([3]), label([1, 2])) == ("rank 3", "ranks 1-2")


def test_equal_ranks_are_fine():
    findings = compare.compare(job(rank("a"), rank("b")), 2)
    assert worst(findings) is OK
    assert set(verdicts(findings)) == {"ranks", "versions", "settings", "hosts", "subnets", "mtu"}


def test_missing_ranks_are_named():
    finding = compare.presence({0: rank(), 2: rank()}, 5)
    assert finding.verdict is FAIL
    assert "ranks 1, 3-4 of 5" in finding.finding


def test_versions():
    assert compare.versions(job(rank(), rank(version="0.2.0")))[0].verdict is FAIL
    assert compare.versions(job(rank(), rank(torch="2.13.1")))[0].verdict is WARN
    assert compare.versions(job(rank(), rank(python="3.12.0")))[0].verdict is WARN


def test_the_newest_version_is_no_matter_of_letters():
    (finding,) = compare.versions(
        job(rank(version="0.9.0"), rank(version="0.10.0"), rank(version="?"))
    )
    assert finding.fix.startswith("pip install ") and finding.fix.endswith(
        ", with the sources of 0.10.0, on ranks 0, 2"
    )
    (finding,) = compare.versions(job(rank(torch="2.9.1+cpu"), rank(torch="2.13.0+cu130")))
    assert finding.fix.startswith("pip install torch==2.13.0+cu130 ")
    assert finding.fix.endswith("on rank 0")


def test_one_version_for_another_device_is_replaced():
    """pip accepts 2.13.0+cpu for 2.13.0: it only installs the other build if the label is given."""
    (finding,) = compare.versions(job(rank(torch="2.13.0+cpu"), rank(torch="2.13.0")))
    index = "--index-url https://download.pytorch.org/whl/cpu"
    assert finding.fix.startswith(f"pip install torch==2.13.0+cpu {index} && pip install ")
    assert finding.fix.endswith("on rank 1")


def test_settings_agreed_or_not():
    agreed = compare.settings(job(rank(), rank(), rank(values=values(eager="4096"))))
    assert [f.verdict for f in agreed] == [FAIL]
    assert "4096 on rank 2" in agreed[0].finding
    assert agreed[0].fix == 'export MCAST_EAGER="32768"  (on all ranks)'
    free = compare.settings(job(rank(), rank(values=values(rcvbuf="2"))))
    assert [f.verdict for f in free] == [WARN]
    said = "making a group raises an error"
    assert said in agreed[0].finding and said not in free[0].finding
    local = compare.settings(job(rank(), rank(values=values(interface="eth1"))))
    assert [f.verdict for f in local] == [OK]


def test_settings_of_ranks_without_the_table_are_left_out():
    assert compare.settings(job(rank(), rank(values={}, agreed=[])))[0].verdict is OK


def test_ranks_with_different_secrets_are_named():
    assert compare.secrets(job(rank(), rank())) == []
    one, two = rank(secret_check="5f1c02aa"), rank(secret_check="00000001")
    (same,) = compare.secrets(job(one, rank(), one))
    assert same.verdict is OK and same.finding == "the same on ranks 0, 2"
    findings = compare.compare(job(one, two), 2)
    assert verdicts(findings)["secrets"] is FAIL
    (other,) = [f for f in findings if f.check == "secrets"]
    assert "2 secrets: one on rank 0; one on rank 1" in other.finding
    assert "5f1c02aa" not in json.dumps(other.to_json()), (
        "it says which of several runs are one job's"
    )


def test_a_job_whose_modes_differ_makes_no_group():
    ranks = [rank(values=values(security=mode), agreed=["security"]) for mode in ("off", "sealed")]
    (finding,) = compare.settings(job(*ranks))
    assert finding.verdict is FAIL and "sealed on rank 1" in finding.finding


def test_one_address_on_two_hosts():
    findings = compare.hosts(job(rank("a"), rank("b", interface=interface("10.0.0.97"))))
    assert [f.verdict for f in findings] == [OK, FAIL]
    assert "10.0.0.97" in findings[1].finding
    # Every host has that address, and ranks that use it are named by another row.
    lo = interface("127.0.0.1", "lo", 65536, "127.0.0.0/8")
    found = compare.hosts(job(rank("a", interface=lo), rank("b", interface=lo)))
    assert [f.verdict for f in found] == [OK]


def test_networks():
    apart = interface("10.9.0.2", subnet="10.9.0.0/24")
    (subnets, mtus) = compare.networks(job(rank("a"), rank("b", interface=apart)))
    assert (subnets.verdict, mtus.verdict) == (WARN, OK)
    small = interface("10.0.0.98", mtu=1400)
    (subnets, mtus) = compare.networks(job(rank("a"), rank("b", interface=small)))
    assert (subnets.verdict, mtus.verdict) == (OK, WARN)
    assert "all use 1400" in mtus.finding
    assert mtus.fix.startswith("ip link set eth0 mtu 1500")
    lo = interface("127.0.0.1", "lo", 65536, "127.0.0.0/8")
    found = compare.networks(job(rank("a"), rank("b", interface=lo)))
    assert found[0].verdict is FAIL
    assert 'MCAST_SOCKET_IFNAME="=eth0"' in found[0].fix
    assert compare.networks(job(rank("a"), rank("b", interface=None)))[0].verdict is FAIL
    # On one host none of it matters.
    assert worst(compare.networks(job(rank("a"), rank("a", interface=lo)))) is OK


@pytest.mark.parametrize(("ttl", "routed"), [("1", False), ("2", True)])
def test_networks_of_several_subnets_need_a_ttl_above_one(ttl, routed):
    apart = interface("10.9.0.2", subnet="10.9.0.0/24")
    facts = job(rank("a"), rank("b", interface=apart, values=values(ttl=ttl)))
    (subnets, _) = compare.networks(facts)
    assert ("MCAST_TTL=1 does not pass routers" in subnets.finding) == (not routed)
    assert ("or MCAST_TTL=8 with multicast routing" in subnets.fix) == (not routed)
    # Ranks without the extension have no table of settings, and send with a TTL of 1.
    bare = job(rank("a", values={}), rank("b", interface=apart, values={}))
    assert "MCAST_TTL=1" in compare.networks(bare)[0].finding


def test_networks_compare_mtus_as_numbers():
    large = interface("10.0.0.98", "ib0", mtu=65520)
    facts = job(rank("a", interface=interface(mtu=9000)), rank("b", interface=large))
    (_, mtus) = compare.networks(facts)
    assert "all use 9000" in mtus.finding
    assert mtus.fix.startswith("ip link set eth0 mtu 65520") and "on rank 0" in mtus.fix


def test_networks_propose_the_interface_that_most_ranks_use():
    lo = interface("127.0.0.1", "lo", 65536, "127.0.0.0/8")
    ib = [rank(host, interface=interface(f"10.0.0.{n}", "ib0")) for n, host in ((2, "b"), (3, "c"))]
    facts = job(rank("a"), *ib, rank("d", interface=lo), rank("e", interface=lo))
    assert compare.prefer_interface(facts) == 'export MCAST_SOCKET_IFNAME="=ib0"'
    assert compare.prefer_interface(job(rank(interface=lo))).endswith('"=DEV"')


def test_rows_of_other_ranks_are_grouped():
    row = {"check": "cpus", "finding": "few", "verdict": "warn", "fix": "", "data": {}}
    fine = {**row, "verdict": "ok"}
    facts = job(rank(findings=[row]), rank(findings=[row]), rank(findings=[row, fine]))
    (finding,) = compare.of_others(facts)
    assert finding.check == "[1-2] cpus"


def test_plan_mirrors_the_engine():
    one = reach.plan(job(rank("a"), rank("a")))
    assert one["path"] == "loopback"
    two = reach.plan(job(rank("a"), rank("b", interface=interface("10.0.0.98", mtu=1400))))
    assert two["path"] == "interface"
    assert two["size"] == (1400 - 28 - 32) // 64 * 64 + 32
    assert reach.probe_size(1472, 256) == 288
    none = reach.plan(job(rank("a"), rank("b", interface=None)))
    assert none["ranks"] == [0]


def everything(ranks, but=()):
    return {
        r: Heard({s for s in ranks if (s, r) not in but}, {s for s in ranks if (s, r) not in but})
        for r in ranks
    }


def judge(facts, reports, algorithm="auto"):
    plan = {"ranks": sorted(facts), "path": "interface", "size": 1440}
    return diagnose.judge_reach(plan, reports, facts, algorithm)


HOSTS = job(rank("a"), rank("b"), rank("c"))


def test_full_reachability_is_ok():
    assert verdicts(judge(HOSTS, everything(HOSTS))) == {"reach": OK}


def test_one_host_hears_no_other():
    findings = judge(HOSTS, everything(HOSTS, {(0, 1), (2, 1)}))
    assert findings[0].verdict is WARN
    assert "rank 1 does not hear ranks 0, 2" in findings[0].finding
    assert "ring" in findings[0].finding
    assert "the host b (rank 1) hears no other host" in findings[1].finding
    assert "IGMP snooping without a querier" in findings[2].finding and len(findings) == 3


def test_one_host_is_not_heard():
    findings = judge(HOSTS, everything(HOSTS, {(1, 0), (1, 2)}))
    assert "the host b (rank 1) is heard by no other host" in findings[1].finding


def test_a_host_that_does_not_hear_itself_filters():
    findings = judge(HOSTS, everything(HOSTS, {(0, 1), (1, 1), (2, 1)}))
    assert [f.check for f in findings] == ["reach", "likely cause"]
    assert "not even from itself" in findings[1].finding


def test_no_multicast_at_all():
    pairs = {(s, r) for s in range(3) for r in range(3) if s != r}
    (_, cloud, querier) = judge(HOSTS, everything(HOSTS, pairs))  # and no host is blamed
    assert "cloud" in cloud.finding
    assert "IGMP snooping without a querier" in querier.finding


def test_full_datagrams_only_are_lost():
    reports = everything(HOSTS)
    reports[2].full.discard(0)
    findings = judge(HOSTS, reports)
    assert "MTU" in findings[1].finding
    assert "MCAST_MAX_MTU" in findings[1].fix


def test_other_subnet():
    far = rank("b", interface=interface("10.9.0.2", subnet="10.9.0.0/24"))
    findings = judge(job(rank("a"), far), everything([0, 1], {(0, 1), (1, 0)}))
    assert [f.check for f in findings] == ["reach", "likely cause"]
    assert "subnets" in findings[1].finding


def test_one_host_only():
    facts = job(rank("a"), rank("a"))
    findings = judge(facts, everything(facts, {(0, 1)}))
    assert "packet filter" in findings[1].finding


@pytest.mark.parametrize(("algorithm", "verdict"), [("multicast", FAIL), ("ring", OK)])
def test_the_verdict_on_missing_multicast_depends_on_the_algorithm(algorithm, verdict):
    assert worst(judge(HOSTS, everything(HOSTS, {(0, 1)}), algorithm)) is verdict


def test_a_rank_that_does_not_report_is_named():
    reports = everything(HOSTS)
    del reports[1]
    findings = judge(HOSTS, reports)
    assert (findings[0].verdict, findings[0].data) == (FAIL, {"ranks": [1]})


def test_a_rank_that_could_not_take_part():
    reports = everything(HOSTS, {(0, 2), (1, 2), (2, 2), (2, 0), (2, 1)})
    reports[2].problem = "cannot take part: No buffer space available"
    findings = judge(HOSTS, reports)
    assert "rank 2: cannot take part" in findings[0].finding


def test_matrix():
    reports = everything([0, 1, 2], {(0, 1)})
    reports[2].full.discard(0)
    del reports[0]
    lines = diagnose.matrix(reports, [0, 1, 2]).splitlines()
    assert lines[1].split() == ["rank", "0", "?", "x", "s"]
    assert lines[2].split() == ["rank", "1", "?", ".", "."]
    assert diagnose.matrix({}, list(range(100))) == ""


def test_many_pairs_are_cut_short():
    text = diagnose.name_pairs([(0, r) for r in range(1, 31)])
    assert text.endswith("and 18 more ranks")


def test_refused_connections():
    plan = {"ranks": [0, 1]}
    facts = job(rank("a"), rank("b"))
    assert diagnose.judge_tcp(plan, {0: Heard(), 1: Heard()}, facts).verdict is OK
    finding = diagnose.judge_tcp(plan, {0: Heard(refused={1: "10.0.0.98: no answer"})}, facts)
    assert finding.verdict is FAIL
    assert "rank 0 to 1 (10.0.0.98: no answer)" in finding.finding
    assert finding.fix.startswith(
        "export MCAST_PORT_RANGE="
    )  # else all TCP ports would have to be opened
    facts[1]["values"] = values(port_range="42000-42999")
    finding = diagnose.judge_tcp(plan, {0: Heard(refused={1: "10.0.0.98: no answer"})}, facts)
    assert "-i eth0 -s 10.0.0.0/24 -p tcp --dport 42000:42999 -j ACCEPT" in finding.fix
    assert finding.fix.endswith("(on b)")
    facts[1]["findings"] = [{"check": "firewall", "data": {"manager": "ufw"}}]
    assert diagnose.let_in(1, facts, "udp").startswith(
        "ufw allow in on eth0 proto udp from 10.0.0.0/24"
    )


class Store:
    """A TCPStore of one process."""

    def __init__(self):
        self.data, self.lock = {}, threading.Lock()

    def set(self, key, value):
        self.data[key] = value

    def get(self, key):
        return self.data[key]

    def check(self, keys):
        return all(key in self.data for key in keys)

    def add(self, key, amount):
        with self.lock:
            self.data[key] = self.data.get(key, 0) + amount
            return self.data[key]


def test_rendezvous_does_not_wait_beyond_its_deadline():
    rendezvous = Rendezvous(Store(), 0, 3)
    rendezvous.publish("facts/1", {"a": [1]})
    assert rendezvous.collect("facts", range(3), time.monotonic()) == {1: {"a": [1]}}
    assert rendezvous.fetch("verdict", time.monotonic()) is None


def test_rendezvous_of_a_restarted_job_has_nothing_of_the_earlier_ranks():
    about = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    first = rendezvous_module.connect(about, 30.0)
    about["MASTER_PORT"] = str(first.store.underlying_store.port)
    first.publish("facts/0", 1)
    # Ranks that torchrun starts meet at its agent's store, which lives longer than they do.
    about["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    same = rendezvous_module.connect({**about, "TORCHELASTIC_RESTART_COUNT": "0"}, 30.0)
    assert same.fetch("facts/0", time.monotonic()) == 1
    again = rendezvous_module.connect({**about, "TORCHELASTIC_RESTART_COUNT": "1"}, 30.0)
    assert again.fetch("facts/0", time.monotonic()) is None


def test_rendezvous_refuses_a_rank_beyond_the_world():
    about = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with pytest.raises(ValueError, match="RANK=2 is not below WORLD_SIZE=2"):
        rendezvous_module.connect(about, 1.0)


def test_a_long_wait_names_the_missing_ranks(capsys, monkeypatch):
    monkeypatch.setattr(rendezvous_module, "_TELL_S", 0.0)
    rendezvous = Rendezvous(Store(), 0, 3)
    rendezvous.publish("facts/1", 1)
    assert rendezvous.collect(
        "facts", range(3), time.monotonic() + 0.2, "waiting for the facts"
    ) == {1: 1}
    out, err = capsys.readouterr()
    assert out == "" and "waiting for the facts of ranks 0, 2, 0 s at most" in err


def test_the_last_to_arrive_opens_the_gate():
    rendezvous = Rendezvous(Store(), 0, 2)
    rendezvous.arrive("sent", 2)
    assert not rendezvous.passed("sent")
    rendezvous.arrive("sent", 2)
    assert rendezvous.passed("sent")


def test_all_ports_of_a_range_are_tried(monkeypatch):
    tried = set()

    def taken(address, family, backlog):
        tried.add(address[1])
        raise OSError(errno.EADDRINUSE, "taken")

    monkeypatch.setattr(udp.socket, "create_server", taken)
    with pytest.raises(OSError, match="all ports from 42000 to 42002 are taken"):
        udp.listen("127.0.0.1", (42000, 42002))
    assert tried == {42000, 42001, 42002}
    with pytest.raises(OSError, match="all ports from 7 to 7"):
        udp.listen("127.0.0.1", (7, 7))


@pytest.fixture
def loopback():
    return netif.find_loopback(netif.list_interfaces())


def open_probe(plan, number, loopback):
    return Probe(plan, number, loopback, {"loopback": loopback.address}, 1, 1 << 20)


def run_probes(probes, peers):
    rendezvous, reports = Rendezvous(Store(), 0, len(probes)), {}

    def one(number):
        reports[number] = probes[number].run(
            peers,
            lambda: rendezvous.arrive("sent", len(probes)),
            lambda: rendezvous.passed("sent"),
            20.0,
        )

    threads = [threading.Thread(target=one, args=(n,)) for n in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


def test_probe_on_loopback(loopback):
    plan = reach.plan(job(rank("a"), rank("a"), rank("a")))
    probes = {n: open_probe(plan, n, loopback) for n in range(3)}
    with probes[0], probes[1], probes[2]:
        reports = run_probes(probes, {n: p.addresses() for n, p in probes.items()})
    for report in reports.values():
        assert report == Heard({0, 1, 2}, {0, 1, 2})
        assert Heard.from_json(report.to_json()) == report


def test_probe_tells_a_silent_rank_and_a_closed_port(loopback):
    plan = reach.plan(job(rank("a"), rank("a"), rank("a")))
    probes = {n: open_probe(plan, n, loopback) for n in range(3)}
    peers = {n: p.addresses() for n, p in probes.items()}
    probes.pop(2).__exit__()  # it was ready, and died
    with probes[0], probes[1]:
        reports = run_probes(probes, peers)
    for report in reports.values():
        assert report.full == {0, 1}
        assert report.refused == {2: "127.0.0.1: Connection refused"}


def test_probe_takes_no_datagram_of_another_job(loopback):
    plan = reach.plan(job(rank("a")))
    with open_probe(plan, 0, loopback) as probe, udp.open_sender(loopback) as stranger:
        for payload in (b"", b"x" * plan["size"], bytes(reach._SMALL)):
            stranger.sendto(payload, (plan["group"], plan["port"]))
        reports = run_probes({0: probe}, {0: probe.addresses()})
    assert reports[0] == Heard({0}, {0})
