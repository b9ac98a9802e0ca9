"""tools/lint_docs.py finds errors that are planted into a copy of this repository;
tools/check_docs.py finds names that are missing in a page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
sys.path.append(str(TOOLS))

import check_docs  # noqa: E402
import lint_docs  # noqa: E402
import lint_sources  # noqa: E402

HEADER = """class Lane {
  // lane_turn.cpp: a turn
  void turn(Nanos now);
  bool idle() const { return true; }
  static int count();
 private:
  void gone();
};
"""
HELD = "int f() {\n  return group->stats().size;\n}\n"
RELEASED = "int f() {\n  const WithoutGil nogil;\n  return group->stats().size;\n}\n"
TOO_LATE = "int f() {\n  use(group->stats());\n  const WithoutGil nogil;\n}\n"


# Check, file, text, the text planted instead (no text: at the end), and the resulting report.
PLANTED = [
    ("names", "docs/usage.md", "", "\n[a](gone.md)\n", r"docs/usage.md:\d+: no file gone.md"),
    ("names", "README.md", "", "\n`MCAST_" + "SLEEPY`\n", r"README.md:\d+: nothing reads \w+_SLEEPY"),
    ("names", "docs/usage.md", "", "\n`make tea`\n", r"docs/usage.md:\d+: make has no target tea"),
    ("errors", "docs/troubleshooting.md", "kind does not support send", "kind has no send",
     r'csrc/core/\S+\.cpp:\d+: "a group of this kind does not support send and recv" is not in docs/troubleshooting.md'),
    ("error_names", "docs/troubleshooting.md", "rank ... left the group without calling", "rank ... left without calling",
     r'csrc/core/base/errors.h:\d+: docs/troubleshooting.md has no cause of "left the group without calling .*"'),
    ("errors", "csrc/torch/work.cpp", "", '\nvoid f() {\n  fail("seven geese are missing");\n}\n',
     r'csrc/torch/work.cpp:\d+: "seven geese are missing" is not in docs/troubleshooting.md'),
    ("error_names", "csrc/core/base/errors.h", "X(rank_left_before, kClosed", "X(rank_left_before, kAborted",
     r"csrc/core/base/errors.h:\d+: docs/troubleshooting.md has no row: \| `rank_left_before` \| `aborted` \|.*"),
    ("error_names", "docs/troubleshooting.md", "| `aborted` | `aborted` |", "| `aborted` | aborted |",
     r"csrc/core/base/errors.h:\d+: docs/troubleshooting.md has no row: \| `aborted` \| `aborted` \|.*"),
    ("settings", "docs/settings.md", "| `chunk` |", "| `chunk`  |",
     r"csrc/core/base/config.h:\d+: docs/settings.md has no row: \| `chunk` \|.*"),
    ("settings", "csrc/core/base/config.h", 'D(partial, "MCAST_PARTIAL", 0,', 'D(partial, "MCAST_PARTIAL", 5,',
     r"csrc/core/base/config.h:\d+: docs/settings.md has no row: \| `partial` \| `MCAST_PARTIAL` \| 5 ms .*"),
    ("settings", "docs/settings.md", "", "| `speed` | `MCAST_SPEED` | 1 | 1 .. 2 |  | none |\n",
     r"csrc/core/base/config.h:1: 58 settings, of which 58 can be read; docs/settings.md has 59 rows"),
    ("counters", "csrc/core/base/counters.h", 'X(gaps, "chunks found', 'X(gaps, "holes found',
     r"csrc/core/base/counters.h:1: docs/counters.md has no row: \| `gaps` \| holes found .*; run python3 \S+"),
    ("counters", "docs/counters.md", "| `storm` |", "| `storms` |",
     r"csrc/core/base/refusal.h:1: docs/counters.md has no row: \| `storm` \| .*"),
    ("counters", "csrc/core/base/refusal.h", 'X(forged, "', 'X(forged, HELP "',
     r"csrc/core/base/refusal.h:1: 13 rows, of which 12 can be read"),
    ("protocol", "csrc/core/wire/protocol_version.h", "kProtocolVersion = ", "kProtocolVersion = 9",
     r"(docs/protocol|CHANGELOG).md:[13]: (not 9\d+|no row .* 9\d+: must .*|no heading ### Protocol 9\d+ \()"),
    ("protocol", "docs/protocol.md", "\n| 1 Credit |", "\n| 201 Credit |",
     r"docs/protocol.md:1: frame (1 is Credit in frame.h, None here|201 is None in frame.h, Credit here)"),
    ("attacks", "docs/security.md", "| 3 |", "| 13 |", r"docs/security.md:\d+: not attack 3"),
    ("attacks", "docs/security.md", "`Attacks.EverythingIsReplayed`", "`Attacks.NothingIsReplayed`",
     r"docs/security.md:\d+: no test Attacks.NothingIsReplayed"),
    ("refusals", "csrc/aggregation/server/admission.h", "  X(version, ", "  X(vision, ",
     r"csrc/aggregation/server/admission.h:\d+: docs/aggregators.md has no row for vision"),
    ("package_index", "docs/usage.md", "", "\npip install torch-" + "mcast\n",
     r"docs/usage.md:\d+: the package is on no index"),
    ("sections", "csrc/core/lane.h", "", HEADER, r"csrc/core/lane.h:[35]: (turn|count) is not in lane_turn.cpp"),
    ("unused_headers", "csrc/core/lane.h", "", "", r"csrc/core/lane.h:1: no product file includes it"),
    ("include_loops", "csrc/core/loop_a.h", "", '#include "loop_b.h"\n',
     r"csrc/core/loop_a.h:1: files include each other: csrc/core/loop_a.h, csrc/core/loop_b.h"),
    ("include_loops", "csrc/core/loop_b.h", "", '#include "loop_a.h"\n', r"csrc:1: 13 loops of .h/.cpp pairs, at most 12: .*"),
    ("python_lock", "csrc/torch/held.cpp", "", HELD, r"csrc/torch/held.cpp:1: f waits with Python's lock"),
    ("python_lock", "csrc/torch/late.cpp", "", TOO_LATE, r"csrc/torch/late.cpp:1: f waits with Python's lock"),
    ("imports", "torch_mcast/cli.py", "", "\n\ndef late():\n    from . import settings\n    return settings\n",
     r"torch_mcast/cli.py:\d+: relative import"),
    ("imports", "torch_mcast/_load.py", "", "\n\ndef late():\n    import torch_mcast.settings\n",
     r"torch_mcast/\w+.py:\d+: circular import: (torch_mcast.(_load|settings)( -> |$)){3}"),
    ("seeds", "tests/cpp/base/new_test.cpp", "", "TEST(New, Drawn) {\n  for (auto seed : seeds(3)) {\n  }\n}\n",
     r"tests/cpp/base/new_test.cpp:2: tools/soak.py does not run New.Drawn"),
    ("left_out", "tools/aarch64.sh", "ArenaPool.GivesPagesBack", "ArenaPool.TakesPagesBack",
     r"tools/aarch64.sh:\d+: no test ArenaPool.TakesPagesBack"),
]  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's texts in a separate working tree."""
    folder = tmp_path_factory.mktemp("copy")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    for name in check_docs.tracked(ROOT):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def failures(copy):
    """Returns the reports for a copy with all planted errors; without them there are none."""
    assert lint_docs.lint(copy).failures == []
    for _, name, old, new, _ in PLANTED:
        path = copy / name
        text = path.read_text() if path.exists() else ""
        assert old in text, f"{name} has no {old!r}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new, 1) if old else text + new)
    return lint_docs.lint(copy).failures


@pytest.mark.parametrize("check", sorted({row[0] for row in PLANTED}))
def test_planted_errors_are_found(failures, check):
    for reported in (row[4] for row in PLANTED if row[0] == check):
        assert any(re.fullmatch(reported, failure) for failure in failures), failures


def test_only_planted_errors_are_reported(failures):
    for failure in failures:
        assert any(re.fullmatch(row[4], failure) for row in PLANTED), failure


def test_every_check_has_a_planted_error():
    assert {row[0] for row in PLANTED} == lint_docs.CHECKS.keys()


def test_a_check_that_sees_too_little_fails(monkeypatch):
    monkeypatch.setattr(lint_docs, "RAISES", re.compile(r"no_such_call\("))
    monkeypatch.setattr(lint_sources, "WAITS", re.compile(r"no_such_call\("))
    assert lint_docs.lint(ROOT, ["errors", "python_lock"]).failures == [
        "tools/lint_docs.py:1: errors: only 0 comparisons, expected 500 or more",
        "csrc/torch/backend.cpp:1: only 0 functions seen to wait",
    ]


def test_the_program_needs_no_package_and_ends_with_1_on_a_failure(copy, failures):
    command = [sys.executable, "-S", str(TOOLS / "lint_docs.py"), "--only", "settings"]
    good = subprocess.run(command, capture_output=True, text=True)
    assert (good.returncode, good.stderr) == (0, "")
    assert re.fullmatch(r"\d+ comparisons, 0 failed \(settings \d+\)\n", good.stdout)
    wrong = subprocess.run([*command, "--root", str(copy)], capture_output=True, text=True)
    assert wrong.returncode == 1 and wrong.stdout.startswith("csrc/core/base/config.h:")
    assert " comparisons, 3 failed (settings " in wrong.stdout


def test_methods_of_a_section_are_looked_for_in_its_sources():
    assert lint_sources.declared(HEADER) == [
        (3, "turn", ["lane_turn.cpp"]),
        (5, "count", ["lane_turn.cpp"]),
    ]


def test_a_wait_after_the_lock_is_released_is_right():
    for text, held in ((HELD, True), (RELEASED, False), (TOO_LATE, True)):
        (_, (_, name, lines)) = lint_sources.functions(text)
        assert name == "f" and lint_sources.holds_lock(lines) == held


def test_a_circle_is_found_inside_functions_too():
    known = {"p.a", "p.b", "p.c"}
    sources = {
        "p.a": "import p.b",
        "p.b": "def late():\n    from p import c\n    return c",
        "p.c": "from p.a import name",
    }
    graph = {name: lint_sources.imported(source, known) for name, source in sources.items()}
    assert lint_sources.circle(graph) == ["p.a", "p.b", "p.c", "p.a"]
    assert lint_sources.circle(graph | {"p.c": {}}) == []


# -- tools/check_docs.py ------------------------------------------------------------------------------

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

# Text of a page, the reported line, and the missing name (none: "").
TEXTS = [
    ("`csrc/core/base/config.h`, `base/config.h`, `tests/cpp/wire`, `config.h`", 0, ""),
    ("`base/config`", 0, ""),
    ("`base/conf`", 0, "no file base/conf"),
    ("`base/gone.h`", 0, "no file base/gone.h"),
    ("`tests/cpp/gone`", 0, "no file tests/cpp/gone"),
    ("`gone.h`", 0, "no file gone.h"),
    ("`/proc/self/fd`, `and/or`, `build/cpp/x.json`", 0, ""),
    ("[a](benchmarks/README.md#one-host) [b](https://example.org/x) [c](#here)\n\n# Here", 0, ""),
    ("[a](gone.md)", 0, "no file gone.md"),
    ("[a](benchmarks/README.md#two-hosts)", 0, "no heading benchmarks/README.md#two-hosts"),
    ("[a](#there)\n\n# Here", 0, "no heading #there"),
    ("`make demo`\n\n    make demo   # words", 0, ""),
    ("`make tea`", 0, "make has no target tea"),
    ("    make milk", 0, "make has no target milk"),
    ("```\nmake honey\n```", 1, "make has no target honey"),
    ("`MCAST_EAGER=1`", 0, ""),
    ("`MCAST_LAZY`", 0, "nothing reads MCAST_LAZY"),
    ("    torch-mcast doctor\n\n`torch-mcast --help`", 0, ""),
    ("`torch-mcast medic`", 0, ""),
    ("`torch-mcast nurse`", 0, "torch-mcast has no command nurse"),
    ("[wire](tests/cpp/wire): `Frames`; more", 0, ""),
    ("[wire](../elsewhere): `Frames`", 0, "no file ../elsewhere"),
]
NAMES = [
    ("`SkewLimiter`, `SkewLimiter::poll()`, `wire::SkewLimiter::poll`, `SkewLimiter::stop`", 0, ""),
    ("`SkewLimiter::Row`, `Row::bytes`, `Kind::kSlow`, `wire::parse_row(1)`", 0, ""),
    ("`c10d::Backend`, `std::move`", 0, ""),
    ("`BlockSender`", 0, "no class BlockSender"),
    ("`SkewLimiter::rush()`", 0, "no SkewLimiter::rush"),
    ("`SkewLimiter::go`", 0, "no SkewLimiter::go"),
    ("`Kind::kTired`", 0, "no Kind::kTired"),
    ("`Row::poll`", 0, "no Row::poll"),
    ("`Sender::poll`", 0, "no Sender::poll"),
    ("`wire::parse_line`", 0, "no wire::parse_line"),
    ("`Frames.RoundTrip`, `Frames.Cut`, `Frames.*`, `README.md`", 0, ""),
    ("`Frames.Lost`", 0, "no test Frames.Lost"),
    ("`Bodies.*`", 0, "no test Bodies.*"),
    ("`x/y --gtest_filter='Frames.*:*Round*'`", 0, ""),
    ("    x --gtest_filter=Frames.Found", 0, "no test Frames.Found"),
    ("`x --gtest_filter='Frames.*-*Lost*'`", 0, "no test *Lost*"),
]


def expected_of(rows: list[tuple[str, int, str]]) -> tuple[str, list[str]]:
    """Returns a page of all texts, and the expected report."""
    page, reported = "", []
    for text, offset, missing in rows:
        if missing:
            reported.append(
                f"README.md:{lint_sources.line_of(page, len(page)) + offset}: {missing}"
            )
        page += text + "\n\n"
    return page, reported


@pytest.fixture
def page(tmp_path):
    """Returns a function that writes the page of a tree and returns the names it misses."""

    def check(text: str, names: bool = False) -> list[str]:
        for name, content in {
            "Makefile": "demo: build\n\techo\n",
            "README.md": text,
            "benchmarks/README.md": "# Benchmarks\n\n## One host\n",
            "csrc/core/base/config.h": CODE,
            "tests/cpp/wire/codec_test.cpp": "TEST(Frames, RoundTrip) {\nTEST_F(Frames,\n       Cut) {\n",
            "torch_mcast/cli.py": 'COMMANDS = {\n    "doctor": ("torch_mcast.doctor", "check"),\n}\n'
            'DEPRECATED = {"medic": "doctor"}\n',
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        return check_docs.check([tmp_path], names)

    return check


def test_missing_names_are_reported_with_their_line(page):
    text, reported = expected_of(TEXTS)
    assert sorted(page(text)) == sorted(reported)


def test_a_missing_suite_is_reported(page):
    text = "[wire](tests/cpp/wire): `Frames`,\n`Bodies`"
    assert page(text) == ["README.md:1: tests/cpp/wire has no suite Bodies"]


def test_classes_and_tests_are_looked_for_on_request(page):
    text, reported = expected_of(NAMES)
    assert page(text) == []
    assert sorted(page(text, names=True)) == sorted(reported)


def test_many_pages_are_read():
    found = {str(path) for path in check_docs.pages(ROOT)}
    assert {"README.md", "CONTRIBUTING.md", "docs/protocol.md", "benchmarks/README.md"} <= found
