"""Rules of packet filters, judged for the packets that a job sends. The rulesets were printed by
the tools of Debian 12 (ufw 0.36.2, firewalld 1.3.3, of which the input chains are kept), for eth0
with 10.1.0.1/24, by default and after the commands that the doctor gives ("-open")."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from torch_mcast.doctor import udp
from torch_mcast.doctor.checks import firewall
from torch_mcast.doctor.filters import iptables, nft
from torch_mcast.doctor.filters.rules import Network, Packets, ask
from torch_mcast.doctor.findings import Verdict
from torch_mcast.doctor.fixes import GROUPS6, Opening
from torch_mcast.doctor.netif import Interface

RULESETS = Path(__file__).parent / "rulesets"
ETH = Interface("eth0", 2, "10.1.0.1", 24, 1500, up=True, multicast=True)
TCP = (42000, 42999)
NOTHING = "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n"


def chains(name: str) -> dict:
    path = next(RULESETS.glob(f"{name}.*"))
    if path.suffix == ".txt":
        return iptables.read(path.read_text())
    return iptables.read(NOTHING) | nft.read(path.read_text(), "eth0", frozenset())


def rows(of: dict, narrow: bool = True) -> dict:
    return {f.data.get("packets", "all"): f for f in firewall.judge(of, ETH, TCP, narrow)}


def test_what_rules_of_ipv6_must_let_in_is_listed():
    six = Interface("eth0", 2, "fd00:1::7", 64, 1500, up=True, multicast=True)
    context = SimpleNamespace(chosen=six, ports=TCP)
    (row,) = firewall.run(context)
    assert row.verdict is Verdict.OK and row.data["read"] is False
    for words in ("fd00:1::/64 on eth0", "UDP to ff15::6d63:6173:7400:0/104, ports 20000 to 29999",
                  "TCP, ports 42000 to 42999", "MLD"):  # fmt: skip
        assert words in row.finding
    assert ipaddress.ip_address(udp.random_group(True)) in ipaddress.ip_network(GROUPS6)


def test_no_rules_let_all_in():
    (row,) = firewall.judge(iptables.read(NOTHING), ETH, TCP, True)
    assert row.verdict is Verdict.OK
    assert "lets in multicast (239.0.0.0/8, ports 20000 to 29999), IGMP queries, TCP" in row.finding


def test_ufw_drops_all_although_it_lets_ssdp_in():
    assert "-d 239.255.255.250/32 -p udp" in (RULESETS / "ufw.txt").read_text()
    found = rows(chains("ufw"))
    assert {name: row.verdict for name, row in found.items()} == dict.fromkeys(
        ("multicast", "IGMP", "TCP"), Verdict.WARN
    )
    assert found["multicast"].fix.startswith(
        "ufw allow in on eth0 proto udp from 10.1.0.0/24 to 239.0.0.0/8 port 20000:29999  ("
    )
    assert "policy drop" in found["multicast"].finding


def test_firewalld_rejects_at_its_end():
    found = rows(chains("firewalld"))
    assert [row.verdict for row in found.values()] == [Verdict.WARN] * 3
    assert found["TCP"].fix.startswith("firewall-cmd --permanent --zone=$(")
    assert 'source address="10.1.0.0/24" port port="42000-42999" protocol="tcp"' in found["TCP"].fix
    assert "source" not in found["IGMP"].fix  # queriers may have no address


@pytest.mark.parametrize("name", ["ufw-open", "firewalld-open"])
def test_the_commands_given_let_a_job_in(name):
    (row,) = rows(chains(name)).values()
    assert row.verdict is Verdict.OK and row.finding.startswith("lets in multicast"), row


def test_without_a_range_of_ports_tcp_asks_for_one_first():
    fix = rows(chains("ufw"), narrow=False)["TCP"].fix
    assert fix.startswith("export MCAST_PORT_RANGE=")


def packets(**more) -> Packets:
    fields = {
        "name": "multicast", "protocol": "udp", "to": Network("239.0.0.0/8"), "source": Network("10.1.0.0/24"),
        "interface": "eth0", "ports": (20000, 29999), "multicast": True,
    }  # fmt: skip
    return Packets(**{**fields, **more})


def outcome(rules: str, **more) -> str:
    text = "-P INPUT ACCEPT\n" if "-P INPUT" not in rules else ""
    answer = ask(iptables.read(text + rules), packets(**more))
    return "accept" if answer.accepted else "drop" if answer.dropped else "unknown"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("-A INPUT -d 224.0.0.0/4 -j DROP", "drop"),
        ("-A INPUT -d 239.0.0.0/8 -p udp -j REJECT --reject-with icmp-port-unreachable", "drop"),
        ("-A INPUT -d 239.7.0.0/16 -j DROP", "unknown"),  # some groups
        ("-A INPUT -d 224.0.0.251/32 -j DROP", "accept"),
        ("-A INPUT -p tcp -j DROP", "accept"),
        ("-A INPUT ! -i eth0 -j DROP", "accept"),
        ("-A INPUT ! -i lo -j DROP", "drop"),
        ("-A INPUT -i eth+ -j DROP", "drop"),
        ("-A INPUT -s 10.1.0.0/16 -j ACCEPT\n-A INPUT -j DROP", "accept"),
        ("-A INPUT -s 10.1.0.7/32 -j ACCEPT\n-A INPUT -j DROP", "unknown"),  # one host
        ("-A INPUT -s 10.2.0.0/16 -j ACCEPT\n-A INPUT -j DROP", "drop"),
        ("-A INPUT -p udp -m udp --dport 20000:30000 -j ACCEPT\n-A INPUT -j DROP", "accept"),
        ("-A INPUT -p udp -m udp --dport 20000:25000 -j ACCEPT\n-A INPUT -j DROP", "unknown"),
        ("-A INPUT -p udp -m udp --dport 19000:20000 -j ACCEPT\n-A INPUT -j DROP", "unknown"),
        ("-A INPUT -p udp -m udp --dport 19000:19999 -j ACCEPT\n-A INPUT -j DROP", "drop"),
        ("-A INPUT -p udp -m udp --dport 29999:30000 -j ACCEPT\n-A INPUT -j DROP", "unknown"),
        ("-A INPUT -p udp -m udp --dport 30000 -j ACCEPT\n-A INPUT -j DROP", "drop"),
        ("-A INPUT -i eth1+ -j DROP", "accept"),
        ("-A INPUT -p udp -m multiport --dports 53,20000:29999 -j ACCEPT\n-A INPUT -j DROP", "accept"),
        ("-A INPUT -m pkttype --pkt-type multicast -j DROP", "drop"),
        ("-A INPUT -m addrtype --dst-type LOCAL -j DROP", "accept"),
        ("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A INPUT -j DROP", "drop"),
        ("-A INPUT -m state --state NEW,ESTABLISHED -j ACCEPT\n-A INPUT -j DROP", "accept"),
        ("-A INPUT -m limit --limit 5/min -j DROP", "unknown"),
        ("-A INPUT -m recent --rcheck --name bad -j DROP", "unknown"),
        ("-A INPUT -m socket -j DROP", "unknown"),
        ("-A INPUT -m comment --comment \"a drop for all\" -p icmp -j DROP", "accept"),
        ("-A INPUT -j LOG --log-prefix \"x \"\n-A INPUT -p udp -j ACCEPT\n-A INPUT -j DROP", "accept"),
        ("-N c\n-A INPUT -j c\n-A INPUT -j DROP\n-A c -i lo -j ACCEPT\n-A c -j RETURN", "drop"),
        ("-N c\n-A INPUT -j c\n-A c -p udp -j DROP", "drop"),
        ("-N c\n-A INPUT -g c\n-A INPUT -j DROP\n-A c -i lo -j DROP", "accept"),  # then the policy
        ("-N a\n-A INPUT -j a\n-A a -j a", "unknown"),
        ("-A INPUT -j NFQUEUE --queue-num 0", "unknown"),
        ("-P INPUT DROP", "drop"),
    ],
)  # fmt: skip
def test_rules_of_iptables(rules, expected):
    assert outcome(rules) == expected


def ruleset(*rules: list, policy: str = "accept", **chain) -> str:
    base = {"family": "inet", "table": "t"}
    made = {"name": "in", "type": "filter", "hook": "input", "prio": 0, "policy": policy, **chain}
    place = {key: chain[key] for key in ("family", "table") if key in chain}
    rows = [{"chain": {**base, **made}}]
    rows += [
        {
            "set": {
                **base,
                "name": "ports",
                "type": "inet_service",
                "elem": [22, {"range": [20000, 29999]}],
            }
        }
    ]
    rows += [
        {"rule": {**base, **place, "chain": made["name"], "handle": n, "expr": r}}
        for n, r in enumerate(rules)
    ]
    return json.dumps({"nftables": rows})


def match(left: dict, right, op: str = "==") -> dict:
    return {"match": {"op": op, "left": left, "right": right}}


def payload(protocol: str, field: str) -> dict:
    return {"payload": {"protocol": protocol, "field": field}}


GROUPS = {"prefix": {"addr": "224.0.0.0", "len": 4}}
STATE = {"ct": {"key": "state"}}
ACCEPT, DROP = {"accept": None}, {"drop": None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ruleset(policy="drop"), "drop"),
        (ruleset([match(payload("ip", "daddr"), GROUPS), DROP]), "drop"),
        (ruleset([match(payload("ip", "daddr"), GROUPS, "!="), DROP]), "accept"),
        (ruleset([match(payload("ip6", "daddr"), "ff02::1"), DROP]), "accept"),
        (ruleset([match(payload("udp", "dport"), "@ports"), ACCEPT], policy="drop"), "accept"),
        (ruleset([match(payload("udp", "dport"), "@gone"), ACCEPT], policy="drop"), "unknown"),
        (ruleset([match(payload("tcp", "dport"), "@ports"), ACCEPT], policy="drop"), "drop"),
        (ruleset([match(payload("udp", "dport"), {"set": [53, 5353]}), ACCEPT], policy="drop"), "drop"),
        (ruleset([match({"meta": {"key": "iifname"}}, "eth*"), ACCEPT], policy="drop"), "accept"),
        (ruleset([match({"meta": {"key": "iifname"}}, "eth1*"), ACCEPT], policy="drop"), "drop"),
        (ruleset([match(payload("ip", "protocol"), "udp"), ACCEPT], policy="drop"), "accept"),
        (ruleset([match(payload("ip", "protocol"), "tcp"), ACCEPT], policy="drop"), "drop"),
        (ruleset([match(payload("ip", "ttl"), 1), ACCEPT], policy="drop"), "unknown"),
        (ruleset([match(payload("ip", "daddr"), {"range": ["239.0.0.0", "239.255.255.255"]}), DROP]), "drop"),
        (ruleset([match(payload("ip", "saddr"), {"range": ["10.1.0.0", "10.1.0.9"]}), DROP]), "unknown"),
        (ruleset([match({"meta": {"key": "pkttype"}}, "multicast"), ACCEPT], policy="drop"), "accept"),
        (ruleset([match({"meta": {"key": "nfproto"}}, "ipv6"), DROP]), "accept"),
        (ruleset([match(STATE, ["established", "related"], "in"), ACCEPT], policy="drop"), "drop"),
        (ruleset([{"vmap": {"key": STATE, "data": {"set": [["established", ACCEPT], ["new", DROP]]}}}]), "drop"),
        (ruleset([{"limit": {"rate": 5, "per": "second"}}, DROP]), "unknown"),
        (ruleset([{"xt": None}, DROP]), "unknown"),
        (ruleset([{"counter": {"packets": 0, "bytes": 0}}, {"reject": None}]), "drop"),
        (ruleset([DROP], family="ip6"), "accept"),
        (ruleset([DROP], hook="output"), "accept"),
        (ruleset([DROP], hook="ingress", family="netdev", dev="eth1"), "accept"),
    ],
)  # fmt: skip
def test_rules_of_nftables(text, expected):
    answer = ask(nft.read(text, "eth0", frozenset()), packets())
    assert ("accept" if answer.accepted else "drop" if answer.dropped else "unknown") == expected


def test_each_base_chain_must_accept():
    two = iptables.read("-P INPUT DROP") | nft.read(ruleset([ACCEPT]), "eth0", frozenset())
    assert ask(two, packets()).dropped
    assert "iptables INPUT" in ask(two, packets()).blame


def test_tables_that_iptables_answers_for_are_left_out():
    assert nft.read(ruleset([DROP]), "eth0", frozenset({("inet", "t")})) == {}


def test_queriers_may_be_outside_the_subnet():
    let_in = "".join(
        f"-A INPUT -s 10.1.0.0/24 -p {name} -j ACCEPT\n" for name in ("udp", "tcp", "igmp")
    )
    found = rows(iptables.read("-P INPUT DROP\n" + let_in))
    assert found.keys() == {"IGMP"}
    assert found["IGMP"].finding.startswith("not known whether it lets in IGMP queries")


def test_rules_that_nobody_may_read_are_not_known():
    (row,) = firewall.judge(None, ETH, TCP, True)
    assert row.verdict is Verdict.OK and row.finding.startswith("not known")


def test_a_rule_for_some_is_not_known_and_no_warning():
    found = rows(iptables.read("-P INPUT ACCEPT\n-A INPUT -m limit --limit 5/min -j DROP"))
    assert {row.verdict for row in found.values()} == {Verdict.OK}
    assert "--limit 5/min" in found["multicast"].finding


@pytest.mark.parametrize("manager", ["ufw", "firewalld", "nft", "iptables"])
@pytest.mark.parametrize("protocol", ["udp", "tcp", "igmp"])
def test_openings_are_narrow_and_say_how_long_they_last(manager, protocol):
    ports = (0, 0) if protocol == "igmp" else TCP
    text = Opening(protocol, "10.1.0.0/24", "eth0", ports).command(manager, "inet filter input")
    assert "eth0" in text and protocol in text and ("stays" in text or "until reboot" in text)
    assert ("10.1.0.0/24" in text) == (protocol != "igmp")
    for port in TCP:
        assert (str(port) in text) == (protocol != "igmp")


def test_legacy_and_newer_rules_are_apart(monkeypatch):
    """Both kinds of iptables have chains of the same name."""
    texts = {
        ("iptables", "-S"): "-P INPUT ACCEPT\n-N c\n-A INPUT -j c\n-A c -j ACCEPT",
        ("iptables", "--version"): "iptables v1.8.9 (nf_tables)",
        ("iptables-legacy", "-S"): "-P INPUT ACCEPT\n-N c\n-A INPUT -j c\n-A c -p udp -j DROP",
        ("nft", "-j", "list", "ruleset"): ruleset(),
    }
    monkeypatch.setattr(firewall, "_output", lambda *command: texts[command])
    names = type("Names", (), {"read_text": lambda self: "filter\n"})()
    monkeypatch.setattr(firewall, "_LEGACY", names)
    answer = ask(firewall.read_chains("eth0"), packets())
    assert answer.dropped and answer.blame.startswith("iptables-legacy c")


@pytest.mark.parametrize(("readable", "expected"), [(True, "accept"), (False, "drop")])
def test_iptables_answers_for_its_own_table_of_nftables(readable, expected, monkeypatch, tmp_path):
    """The newer kind of iptables keeps its rules in nftables, with matches that nft cannot read."""
    texts = {
        ("iptables", "-S"): NOTHING if readable else None,
        ("iptables", "--version"): "iptables v1.8.9 (nf_tables)",
        ("nft", "-j", "list", "ruleset"): ruleset([DROP], family="ip", table="filter"),
    }
    monkeypatch.setattr(firewall, "_output", lambda *command: texts[command])
    monkeypatch.setattr(firewall, "_LEGACY", tmp_path / "none")
    answer = ask(firewall.read_chains("eth0"), packets())
    assert answer.outcomes == {expected}


NO_NFT = {
    ("iptables", "-S"): NOTHING,
    ("iptables", "--version"): "iptables v1.8.9 (legacy)",
    ("nft", "-j", "list", "ruleset"): None,
}


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """Returns a function that makes a kernel with these modules, or with these built in."""

    def make(texts: dict, modules: str = "", built_in: str | None = "", legacy: str = "") -> None:
        for name, text in {"_MODULES": modules, "_BUILT_IN": built_in, "_LEGACY": legacy}.items():
            path = tmp_path / name
            if text is not None:
                path.write_text(text)
            monkeypatch.setattr(firewall, name, path)
        monkeypatch.setattr(firewall, "_NF_TABLES", tmp_path / "none")
        monkeypatch.setattr(firewall, "_output", lambda *command: texts.get(command))

    return make


def test_without_nft_its_rules_are_not_known(kernel):
    def told() -> str:
        found = rows(firewall.read_chains("eth0"))
        assert {row.verdict for row in found.values()} == {Verdict.OK}
        return next(iter(found.values())).finding

    kernel(NO_NFT, modules="nf_tables 1 0 - Live 0x0\n")
    assert told().startswith("not known whether it lets in multicast")
    assert "nft lists none (is it installed?)" in told()
    kernel(NO_NFT, built_in="kernel/net/netfilter/nf_tables.ko\n")
    assert told().startswith("not known")
    kernel(NO_NFT, built_in=None)  # the list of built-in modules is missing
    assert told().startswith("not known")
    kernel({**NO_NFT, ("iptables", "--version"): "iptables v1.8.9 (nf_tables)"})
    assert told().startswith("not known")
    kernel(NO_NFT, modules="ip_tables 1 0 - Live 0x0\n")
    assert told().startswith("lets in multicast")


def test_a_certain_drop_counts_even_if_other_rules_were_not_read(kernel):
    kernel({**NO_NFT, ("iptables", "-S"): "-P INPUT DROP"}, modules="nf_tables 1 0 - Live 0x0\n")
    found = rows(firewall.read_chains("eth0"))
    assert {row.verdict for row in found.values()} == {Verdict.WARN}
    assert found["TCP"].fix.startswith("iptables -I INPUT")


def test_legacy_rules_that_cannot_be_read_are_not_known(kernel):
    texts = {**NO_NFT, ("iptables", "--version"): "iptables v1.8.9 (nf_tables)"}
    texts[("nft", "-j", "list", "ruleset")] = ruleset()
    kernel(texts, legacy="filter\n")
    assert "iptables-legacy" in rows(firewall.read_chains("eth0"))["multicast"].finding
    kernel(texts, legacy="nat\n")
    assert rows(firewall.read_chains("eth0"))["all"].finding.startswith("lets in")


def test_the_manager_of_rules_is_found_without_the_right_to_read_them(
    kernel, monkeypatch, tmp_path
):
    kernel({})
    ufw, firewalld = tmp_path / "ufw.conf", tmp_path / "firewalld.pid"
    monkeypatch.setattr(firewall, "_UFW", ufw)
    monkeypatch.setattr(firewall, "_FIREWALLD", firewalld)
    assert firewall.manager_here("eth0") == "iptables"
    firewalld.write_text("7")
    assert firewall.manager_here("eth0") == "firewalld"
    ufw.write_text("# /etc/ufw/ufw.conf\nENABLED=no\n")
    assert firewall.manager_here("eth0") == "firewalld"
    ufw.write_text("ENABLED=yes\n")
    assert firewall.manager_here("eth0") == "ufw"
    kernel({("iptables", "-S"): (RULESETS / "ufw.txt").read_text()})
    ufw.unlink()
    assert firewall.manager_here("eth0") == "ufw"


def test_the_tools_of_this_machine_are_understood():
    if (found := firewall.read_chains("lo")) is not None:
        assert all(chain.policy in ("", "accept", "drop") for chain in found.values())
