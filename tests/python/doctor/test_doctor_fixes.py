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
        ("2.13.0a0+gitd922bae", "torch==2.13.0a0"),  # of its own sources
        ("of unknown version", "torch"),
        ("", "torch"),
    ],
)  # fmt: skip
def test_the_torch_to_install_is_for_the_same_device(version, words):
    assert fixes.torch(version) == f"pip install {words}"


def test_fixes_say_how_long_they_last():
    for fix in (
        fixes.sysctl("a.b", 1),
        fixes.link("ip link set lo up"),
        fixes.until_reboot("x", "y", "z"),
    ):
        assert "(until reboot; to keep it: " in fix
    assert "> /etc/sysctl.d/60-torch-mcast-b.conf" in fixes.sysctl("a.b", 1)
    assert "next login" in fixes.user_limit(
        "nofile", 8, "cost"
    ) and "LimitNOFILE=" in fixes.user_limit("nofile", 8, "")


CHANGES = re.compile(
    r"sysctl -w|ip (link set|addr add|route add)|iptables -I|nft insert|mount -t|usermod"
)


def changes(node: ast.AST, said: bool = False) -> list[str]:
    """Commands in a source that change a host and neither say how long that lasts nor are given to a function
    that says it."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("link", "until_reboot", "sysctl"):
        said = True
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        text = ast.unparse(node)
        lasts = said or "until reboot" in text or "stays" in text
        return [text] if CHANGES.search(text) and not lasts else []
    return [text for child in ast.iter_child_nodes(node) for text in changes(child, said)]


def test_all_that_changes_a_host_says_how_long_it_lasts():
    package = Path(fixes.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        if path != Path(fixes.__file__):  # what is tested above
            found[path.name] = changes(ast.parse(path.read_text()))
    assert {name: texts for name, texts in found.items() if texts} == {}
    assert {"engine.py", "tcp.py", "compare.py", "diagnose.py"} <= found.keys()


def test_a_command_that_does_not_say_it_is_found():
    def bare(source: str) -> int:
        return len(changes(ast.parse(source)))

    assert bare("fix = f'ip link set {dev} up'") == 1 == bare("say(f'sysctl -w {a}')")
    assert bare("fix = link(f'ip link set {dev} up' if up else '')") == 0
    assert bare("fix = 'usermod x  (stays)'") == 0
