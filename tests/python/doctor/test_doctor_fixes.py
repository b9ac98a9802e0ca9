"""The commands that the doctor gives: what they install or change, and for how long."""

import ast
import re
from pathlib import Path

import pytest

from torch_mcast.doctor import fixes


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.13.0", "torch==2.13.0"),
        ("2.13.0+cu130", "torch==2.13.0+cu130 --index-url https://download.pytorch.org/whl/cu130"),
        ("2.13.0+rocm7.1", "torch==2.13.0+rocm7.1 --index-url https://download.pytorch.org/whl/rocm7.1"),
        ("2.13.0a0+gitd922bae", "torch==2.13.0a0"),  # built from its sources
        ("of unknown version", "torch"),
        ("", "torch"),
    ],
)  # fmt: skip
def test_the_torch_to_install_is_for_the_same_device(version, words):
    assert fixes.torch(version) == f"pip install {words}"


def test_fixes_say_how_long_they_last_and_what_they_cost():
    for fix in (
        fixes.sysctl("a.b", 1, "the cost"),
        fixes.link("ip link set lo up", "the cost"),
        fixes.until_reboot("x", "y", "the cost"),
    ):
        assert "(until reboot; to keep it: " in fix and fix.endswith("; the cost)")
    assert "> /etc/sysctl.d/60-torch-mcast-b.conf" in fixes.sysctl("a.b", 1, "cost")
    limit = fixes.user_limit("nofile", 8, "the cost")
    assert "next login" in limit and "LimitNOFILE=" in limit and limit.endswith("; the cost)")
    assert fixes.stays("x", "y", "the cost") == "x  (stays, y; the cost)"
    assert fixes.for_shell("x", "the cost") == "x  (in this shell, for what it starts; the cost)"


CHANGES = re.compile(
    r"sysctl -w|ip (link set|addr add|route (add|replace))|iptables -I|nft insert|mount -|usermod|>>? ?/etc/"
    r"|ulimit|ethtool -K|ufw allow|firewall-cmd"
)
# Functions that state how long a change lasts; their last argument is its cost.
SAYING = {"link": 2, "until_reboot": 3, "sysctl": 3, "stays": 3, "for_shell": 2, "user_limit": 3}


def changes(node: ast.AST, said: bool = False) -> list[str]:
    """Returns the commands in a source that change a host and are not passed to a function that
    states their duration and cost, and calls of such functions without the cost."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("fixes.") in SAYING:
        said = True
        name = ast.unparse(node.func).removeprefix("fixes.")
        if len(node.args) < SAYING[name] or ast.unparse(node.args[-1]) in ("''", "None"):
            return [ast.unparse(node)]
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = ast.unparse(node)
        return [text] if CHANGES.search(text) and not said else []
    return [text for child in ast.iter_child_nodes(node) for text in changes(child, said)]


def test_all_that_changes_a_host_says_how_long_it_lasts_and_what_it_costs():
    package = Path(fixes.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        if path != Path(fixes.__file__):  # tested above and below
            found[path.name] = changes(ast.parse(path.read_text()))
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert {"engine.py", "tcp.py", "compare.py", "diagnose.py"} <= found.keys()


def test_a_command_that_does_not_say_it_is_found():
    def bare(source: str) -> int:
        return len(changes(ast.parse(source)))

    assert bare("fix = f'ip link set {dev} up'") == 1 == bare("say(f'sysctl -w {a}')")
    assert bare("fix = 'usermod x  (stays)'") == 1 == bare("fix = 'ulimit -n 9'")
    assert bare("fix = link(f'ip link set {dev} up' if up else '', cost)") == 0
    assert bare("fix = link('ip link set lo up')") == 1 == bare("fix = fixes.sysctl('a', 1, '')")


@pytest.mark.parametrize("manager", ["ufw", "firewalld", "nft", "iptables"])
@pytest.mark.parametrize(
    ("protocol", "opens"),
    [
        (
            "udp",
            "any program that joins such a group then receives what hosts of 10.1.0.0/24 send)",
        ),
        ("tcp", "hosts of 10.1.0.0/24 can then reach any program that listens on these ports)"),
        ("igmp", "hosts of any address may ask which groups this host has joined)"),
    ],
)
def test_openings_say_what_they_open(manager, protocol, opens):
    ports = (0, 0) if protocol == "igmp" else (42000, 42999)
    opening = fixes.Opening(protocol, "10.1.0.0/24", "eth0", ports)
    assert opening.command(manager, "inet filter input").endswith(f"; {opens}")
