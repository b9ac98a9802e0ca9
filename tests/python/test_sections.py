"""A header that says in which source its methods are ("// group_turn.cpp: ...") tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SECTION = re.compile(r"\s*// (\w+\.cpp(?:, \w+\.cpp)*)(?:: .*)?$")
END = re.compile(r"(?:\s*(?:public|private|protected):| ?};)")
METHOD = re.compile(r"  (?:static |virtual )?[\w:<>,*& ]+?[ *&](\w+)\(")


def declared(text: str) -> list[tuple[int, str, list[str]]]:
    """Line, name and sources of each method that stands in a section and has no body there."""
    found = []
    sources: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if match := SECTION.match(line):
            sources = match.group(1).split(", ")
        elif END.match(line):
            sources = []
        elif sources and (match := METHOD.match(line)):
            whole = " ".join(lines[number - 1 : number + 4]).split(";")[0]
            if "{" not in whole and "= 0" not in whole:
                found.append((number, match.group(1), sources))
    return found


def wrong(header: Path) -> list[str]:
    found = []
    for number, name, sources in declared(header.read_text()):
        texts = [header.parent / source for source in sources]
        if not any(p.exists() and f"::{name}(" in p.read_text() for p in texts):
            found.append(f"{header.name}:{number}: {name} is not in {', '.join(sources)}")
    return found


def test_sections_of_headers_name_the_source():
    headers = sorted((ROOT / "csrc").rglob("*.h"))
    assert sum(len(declared(header.read_text())) for header in headers) > 100
    assert [line for header in headers for line in wrong(header)] == []


def test_a_method_that_has_moved_is_found(tmp_path):
    header = tmp_path / "lane.h"
    header.write_text(
        "class Lane {\n  // lane_turn.cpp: what a turn does\n  void turn(Nanos now);\n"
        "  bool idle() const { return true; }\n  static int count();\n private:\n  void gone();\n};\n"
    )
    (tmp_path / "lane_turn.cpp").write_text("void Lane::turn(Nanos now) {}\n")
    assert wrong(header) == ["lane.h:5: count is not in lane_turn.cpp"]
    (tmp_path / "lane_turn.cpp").write_text("int Lane::count() {}\n")
    assert wrong(header) == ["lane.h:3: turn is not in lane_turn.cpp"]
