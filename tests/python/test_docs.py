"""The documents name files, links, make targets, settings, commands and test suites that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402

CODE = """
namespace mcast::wire {
class Limiter {
  void stop();  // and later go()
};
class SkewLimiter final : public Limiter {
 public:
  enum class Kind { kFast, kSlow };
  struct Row {
    int bytes;
  };
  void poll();
};
bool parse_row(int);
}  // namespace mcast::wire
"MCAST_EAGER"
"""


@pytest.fixture
def page(tmp_path):
    """A tree with one page, and a function that writes it and returns what is missing."""

    def check(text: str, names: bool = False) -> list[str]:
        for name, content in {
            "Makefile": "demo: build\n\techo\n",
            "README.md": text,
            "benchmarks/README.md": "# Benchmarks\n\n## One host\n",
            "csrc/core/base/config.h": CODE,
            "tests/cpp/wire/codec_test.cpp": "TEST(Frames, RoundTrip) {\nTEST_F(Frames,\n       Cut) {\n",
            "torch_mcast/cli.py": 'COMMANDS = {\n    "doctor": ("torch_mcast.doctor", "check"),\n}\n',
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        return check_docs.check([tmp_path], names)

    return check


def test_each_of_the_ten_nastiest_attacks_has_a_test_by_name():
    page = (ROOT / "docs/security.md").read_text()
    section = page.partition("## The ten nastiest attacks\n")[2].partition("\n## ")[0]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if re.match(r"\| \d", line)
    ]
    assert [row[0] for row in rows] == [str(number) for number in range(1, 11)]
    tree = check_docs.Tree([ROOT])
    python = set(re.findall(r"^def (test_\w+)", tree.text(r"tests/python/.*\.py"), re.M))
    for row in rows:
        named = re.findall(r"`([^`]+)`", row[3])
        assert named and all(name in tree.tests | python for name in named), row


def test_all_that_the_documents_name_is_there():
    assert check_docs.check([ROOT], names=True) == []


def numbered(path: str, pattern: str) -> dict[int, str]:
    return {
        int(number): name for name, number in re.findall(pattern, (ROOT / path).read_text(), re.S)
    }


def test_the_protocol_page_has_the_numbers_of_the_sources():
    """A second implementation has the page only."""
    page = (ROOT / "docs/protocol.md").read_text()
    version = re.search(
        r"kProtocolVersion = (\d+)", (ROOT / "csrc/core/engine/rendezvous.h").read_text()
    )
    assert page.splitlines()[2].startswith(f"Version {version[1]} (")
    assert f"| `protocol` | {version[1]}: must be equal |" in page
    assert f"### Protocol {version[1]} (" in (ROOT / "CHANGELOG.md").read_text()

    frames = numbered("csrc/core/wire/frame.h", r"\bk(\w+)\s*=\s*(\d+),")
    told = {int(n): name for n, name in re.findall(r"^\| (\d+) (\w+) \| ", page, re.M)}
    assert len(frames) >= 50 and told == frames

    kinds = re.findall(
        r"X\(\w+, (\d+), \"(\w+)\"", (ROOT / "csrc/core/wire/descriptor.h").read_text()
    )
    text = re.search(r"kind \(([^)]*)\)", page)[1].replace("-", "_")
    assert text.split(", ") == [f"{number} {name}" for number, name in kinds]

    elements = (ROOT / "csrc/core/base/element.h").read_text().split("enum class Reduction")[0]
    for name, number in re.findall(r"k(\w+) = (\d+),", elements):
        assert f"{number} {name.lower()}" in page


def test_many_pages_are_read():
    found = {str(path) for path in check_docs.pages(ROOT)}
    assert {"README.md", "CONTRIBUTING.md", "docs/protocol.md", "benchmarks/README.md"} <= found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`csrc/core/base/config.h`, `base/config.h`, `tests/cpp/wire`, `config.h`", ""),
        ("`base/config`", ""),
        ("`base/conf`", "no file base/conf"),
        ("`base/gone.h`", "no file base/gone.h"),
        ("`tests/cpp/gone`", "no file tests/cpp/gone"),
        ("`gone.h`", "no file gone.h"),
        ("`/proc/self/fd`, `and/or`, `build/cpp/x.json`", ""),
        ("[a](benchmarks/README.md#one-host) [b](https://example.org/x) [c](#here)\n\n# Here", ""),
        ("[a](gone.md)", "no file gone.md"),
        ("[a](benchmarks/README.md#two-hosts)", "no heading benchmarks/README.md#two-hosts"),
        ("[a](#there)\n\n# Here", "no heading #there"),
        ("`make demo`\n\n    make demo   # words", ""),
        ("`make tea`", "make has no target tea"),
        ("    make tea", "make has no target tea"),
        ("```\nmake tea\n```", "make has no target tea"),
        ("`MCAST_EAGER=1`", ""),
        ("`MCAST_LAZY`", "nothing reads MCAST_LAZY"),
        ("    torch-mcast doctor\n\n`torch-mcast --help`", ""),
        ("`torch-mcast nurse`", "torch-mcast has no command nurse"),
        ("[wire](tests/cpp/wire): `Frames`; more", ""),
        ("[wire](../elsewhere): `Frames`", "no file ../elsewhere"),
        ("[wire](tests/cpp/wire): `Frames`,\n`Bodies`", "tests/cpp/wire has no suite Bodies"),
    ],
)
def test_what_is_missing_is_said(page, text, missing):
    found = " ".join(page(text))
    assert missing in found
    assert bool(missing) == bool(found)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (
            "`SkewLimiter`, `SkewLimiter::poll()`, `wire::SkewLimiter::poll`, `SkewLimiter::stop`",
            "",
        ),
        ("`SkewLimiter::Row`, `Row::bytes`, `Kind::kSlow`, `wire::parse_row(1)`", ""),
        ("`c10d::Backend`, `std::move`", ""),
        ("`BlockSender`", "no class BlockSender"),
        ("`SkewLimiter::rush()`", "no SkewLimiter::rush"),
        ("`SkewLimiter::go`", "no SkewLimiter::go"),
        ("`Kind::kTired`", "no Kind::kTired"),
        ("`Row::poll`", "no Row::poll"),
        ("`Sender::poll`", "no Sender::poll"),
        ("`wire::parse_line`", "no wire::parse_line"),
        ("`Frames.RoundTrip`, `Frames.Cut`, `Frames.*`, `README.md`", ""),
        ("`Frames.Lost`", "no test Frames.Lost"),
        ("`Bodies.*`", "no test Bodies.*"),
        ("`x/y --gtest_filter='Frames.*:*Round*'`", ""),
        ("    x --gtest_filter=Frames.Lost", "no test Frames.Lost"),
        ("`x --gtest_filter='Frames.*-*Lost*'`", "no test *Lost*"),
    ],
)
def test_names_are_looked_for_if_told_to(page, text, missing):
    assert not page(text)
    found = " ".join(page(text, names=True))
    assert missing in found
    assert bool(missing) == bool(found)
