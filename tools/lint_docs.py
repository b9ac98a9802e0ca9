#!/usr/bin/env python3
"""Checks the documents against the sources, and rules of the sources that no compiler knows.

    python3 tools/lint_docs.py                 # all checks; `make lint` runs this
    python3 tools/lint_docs.py --only settings # one check
    python3 tools/lint_docs.py --root DIR      # another working tree

Prints "file:line: what is wrong" for each failure, then how many comparisons each check made, and exits
with 1 if one failed. A check that makes fewer comparisons than its minimum fails too: its pattern no longer
matches the files that it reads. The sources are read as text; nothing is imported or built.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lint_sources
import reference
from check_docs import ROOT, Tree, looked_at
from lint_sources import Report, line_of

ERRORS = "docs/troubleshooting.md"
# Calls that create an error or a warning from a text.
RAISES = re.compile(
    r"\b(?:Status(?:::system)?|TORCH_CHECK\w*|TORCH_WARN\w*|C10_THROW_ERROR|throw_status|fail"
    r"|log)\("
)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# A row of the table in config.h: D(name, "ENV", default, minimum, maximum, agreed, lane, "help" "help").
SETTING_ROW = re.compile(
    r'^  ([UDS])\((\w+), "(\w+)", (.*?), (true|false), (true|false),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)',
    re.M | re.S,
)

# A row of the table in errors.h: X(name, kCode, "text" "text").
ERROR_ROW = re.compile(r'^  X\((\w+), k(\w+),\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', re.M)


def pieces(text: str) -> list[str]:
    """Returns the parts of an error text of three words or more, without the advice after a semicolon."""
    found = []
    for piece in re.split(r"%\w+|\{#?\w+\}", text.split(";")[0]):
        piece = " ".join(piece.split()).strip(" :,.'()\"")
        if len(piece.split()) >= 3:
            found.append(piece)
    return found


def fixed_parts(source: str) -> list[tuple[int, str]]:
    """Returns line and piece of each error text in a source."""
    source = re.sub(r"//[^\n]*", "", source)
    parts = []
    for match in RAISES.finditer(source):
        statement = source[match.start() : source.find(";\n", match.start())]
        for literal in LITERAL.findall(re.sub(r'"\s*\n\s*"', "", statement)):
            text = re.sub(r"\\(.)", r"\1", literal)
            parts += [(line_of(source, match.start()), piece) for piece in pieces(text)]
    return parts


def words_of(page: str) -> str:
    return " ".join(page.replace("`", " ").split())


def names(tree: Tree, report: Report) -> None:
    for page, number, what in looked_at(tree, names=True):
        report.check(not what, f"{page}:{number}", what)


def errors(tree: Tree, report: Report) -> None:
    page = words_of(tree.read(ERRORS))
    for name in tree.names(r"csrc/.*\.cpp"):
        if "sim/network" in name:  # only tests see its texts
            continue
        for number, part in fixed_parts(tree.read(name)):
            report.check(part in page, f"{name}:{number}", f'"{part}" is not in {ERRORS}')


def number_of(text: str) -> float:
    """Returns the value of a number in a table: 32768, 1u << 30, 0.5."""
    left, _, shift = re.sub(r"(?<=\d)(?:u|ull)\b", "", text).partition("<<")
    return int(left) << int(shift) if shift else float(left)


def setting_rows(source: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns line and row of each setting, as the extension's settings() has them."""
    table = re.sub(r"\\$", "", source, flags=re.M)
    rows = []
    for match in SETTING_ROW.finditer(table):
        kind, name, env, values, agreed, _, literals = match.groups()
        default, *bounds = values.split(", ") if kind != "S" else [values.strip('"')]
        row: dict[str, Any] = {"kind": kind, "name": name, "env": env, "agreed": agreed == "true"}
        row["default"] = default if kind == "S" else str(number_of(default))
        row["min"], row["max"] = map(number_of, bounds or ("0", "0"))
        row["help"] = re.sub(r"\\(.)", r"\1", "".join(LITERAL.findall(literals)))
        rows.append((line_of(table, match.start()), row))
    return rows


def settings(tree: Tree, report: Report) -> None:
    spec = importlib.util.spec_from_file_location("settings", ROOT / "torch_mcast/settings.py")
    assert spec and spec.loader
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    table, page = "csrc/core/base/config.h", "docs/settings.md"
    rows = setting_rows(tree.read(table))
    of_page = [line for line in tree.read(page).splitlines() if line.startswith("| `")]
    for number, row in rows:
        line = writer.markdown([row]).splitlines()[-1]
        report.check(line in of_page, f"{table}:{number}", f"{page} has no row: {line}")
    count = len(re.findall(r"^  [UDS]\(", tree.read(table), re.M))
    same = len(rows) == count == len(of_page)
    what = f"{count} settings, of which {len(rows)} can be read; {page} has {len(of_page)} rows"
    report.check(same, f"{table}:1", what)


def counters(tree: Tree, report: Report) -> None:
    """docs/counters.md has each counter and each cause of a refusal, with its help."""
    name = "docs/counters.md"
    page = tree.read(name)
    for header in ("counters.h", "refusal.h"):
        source = tree.read(f"csrc/core/base/{header}")
        rows = reference.macro_rows(source)
        count = len(re.findall(r"^  X\(", source, re.M))
        what = f"{count} rows, of which {len(rows)} can be read"
        report.check(len(rows) == count, f"csrc/core/base/{header}:1", what)
        for row in reference.macro_table(source):
            what = f"{name} has no row: {row}; run python3 tools/reference.py"
            report.check(row in page, f"csrc/core/base/{header}:1", what)


def error_rows(source: str) -> list[tuple[int, str, str]]:
    """Returns line, text and row of the page of each error that has a name: | `name` | `code` |
    `text` |."""
    table = re.sub(r"\\$", "", source, flags=re.M)
    rows = []
    for match in ERROR_ROW.finditer(table):
        name, kind, literals = match.groups()
        code = re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower()
        text = re.sub(r"\\(.)", r"\1", "".join(LITERAL.findall(literals)))
        shown = re.sub(r"\{#?(\w+)\}", r"<\1>", text)
        rows.append((line_of(table, match.start()), text, f"| `{name}` | `{code}` | `{shown}` |"))
    return rows


def error_names(tree: Tree, report: Report) -> None:
    """The page has each row of the table, and its text again in a table with cause and command."""
    table = "csrc/core/base/errors.h"
    before, _, rest = tree.read(ERRORS).partition("## Names of errors\n")
    section, _, after = rest.partition("\n## ")
    of_page = [line for line in section.splitlines() if line.startswith("| `")]
    causes = words_of(before + after)
    rows = error_rows(tree.read(table))
    for number, text, row in rows:
        report.check(row in of_page, f"{table}:{number}", f"{ERRORS} has no row: {row}")
        for piece in pieces(text):
            there = piece in causes
            report.check(there, f"{table}:{number}", f'{ERRORS} has no cause of "{piece}"')
    count = len(re.findall(r"^  X\(", tree.read(table), re.M))
    same = len(rows) == count == len(of_page)
    what = f"{count} errors, of which {len(rows)} can be read; {ERRORS} has {len(of_page)} rows"
    report.check(same, f"{table}:1", what)


def numbered(text: str, pattern: str) -> dict[int, str]:
    return {int(number): name for name, number in re.findall(pattern, text, re.S)}


def protocol(tree: Tree, report: Report) -> None:
    """The page has the numbers of the sources: a second implementation only has the page."""
    name = "docs/protocol.md"
    page = tree.read(name)
    found = re.search(r"kProtocolVersion = (\d+)", tree.read("csrc/core/wire/protocol_version.h"))
    version = found[1] if found else "(none in protocol_version.h)"
    report.check(
        page.splitlines()[2].startswith(f"Version {version} ("), f"{name}:3", f"not {version}"
    )
    row = f"| `protocol` | {version}: must be equal |"
    report.check(row in page, f"{name}:1", f"no row {row}")
    heading = f"### Protocol {version} ("
    report.check(heading in tree.read("CHANGELOG.md"), "CHANGELOG.md:1", f"no heading {heading}")

    frames = numbered(tree.read("csrc/core/wire/frame.h"), r"\bk(\w+)\s*=\s*(\d+),")
    rows = {int(number): kind for number, kind in re.findall(r"^\| (\d+) (\w+) \| ", page, re.M)}
    for number in sorted(frames | rows):
        ours, theirs = frames.get(number), rows.get(number)
        report.check(
            ours == theirs, f"{name}:1", f"frame {number} is {ours} in frame.h, {theirs} here"
        )

    kinds = re.findall(r"X\(\w+, (\d+), \"(\w+)\"", tree.read("csrc/core/wire/descriptor.h"))
    text = re.search(r"kind \(([^)]*)\)", page)
    listed = text[1].replace("-", "_").split(", ") if text else []
    report.check(
        listed == [" ".join(kind) for kind in kinds], f"{name}:1", f"kinds: {listed}, {kinds}"
    )
    elements = tree.read("csrc/core/base/element.h").split("enum class Reduction")[0]
    for element, number in re.findall(r"k(\w+) = (\d+),", elements):
        row = f"{number} {element.lower()}"
        report.check(row in page, f"{name}:1", f"no element {row}")


def attacks(tree: Tree, report: Report) -> None:
    """Each of the ten most dangerous attacks names a test that exists."""
    name = "docs/security.md"
    before, _, rest = tree.read(name).partition("## The ten nastiest attacks\n")
    tests = set(re.findall(r"^def (test_\w+)", tree.text(r"tests/python/.*\.py"), re.M))
    tests |= tree.tests
    first = line_of(before, len(before)) + 1
    wanted = 1
    for number, line in enumerate(rest.partition("\n## ")[0].splitlines(), first):
        if re.match(r"\| \d", line):
            cells = line.strip("| ").split(" | ")
            report.check(cells[0] == str(wanted), f"{name}:{number}", f"not attack {wanted}")
            wanted += 1
            named = re.findall(r"`([^`]+)`", cells[3])
            report.check(bool(named), f"{name}:{number}", "names no test")
            for test in named:
                report.check(test in tests, f"{name}:{number}", f"no test {test}")
    report.check(wanted == 11, f"{name}:{first}", f"{wanted - 1} attacks")


def refusals(tree: Tree, report: Report) -> None:
    """docs/aggregators.md has every reason for which an aggregator refuses a group."""
    table = "csrc/aggregation/server/admission.h"
    for match in re.finditer(r"^  X\((\w+), ", tree.read(table), re.M):
        number = line_of(tree.read(table), match.start())
        there = f"| `{match[1]}` | " in tree.read("docs/aggregators.md")
        report.check(there, f"{table}:{number}", f"docs/aggregators.md has no row for {match[1]}")


def package_index(tree: Tree, report: Report) -> None:
    """The package is in no index, so no page may tell users to install it by its name."""
    wrong = re.compile(r"pip install\b[^`\n]*\btorch[-_]mcast\b(?![/'\w-])")
    for name in tree.names(r".*\.(py|md|cpp|h|sh)"):
        text = tree.read(name)
        match = wrong.search(text) if name != "tools/lint_docs.py" else None
        where = line_of(text, match.start()) if match else 1
        report.check(not match, f"{name}:{where}", "the package is on no index")


Check = Callable[[Tree, Report], None]
# By name: the check, and the minimum of comparisons that it makes.
CHECKS: dict[str, tuple[Check, int]] = {
    "names": (names, 1800),
    "errors": (errors, 500),
    "error_names": (error_names, 40),
    "settings": (settings, 50),
    "counters": (counters, 100),
    "protocol": (protocol, 60),
    "attacks": (attacks, 40),
    "refusals": (refusals, 10),
    "package_index": (package_index, 1000),
    "sections": (lint_sources.sections, 150),
    "unused_headers": (lint_sources.unused_headers, 300),
    "include_loops": (lint_sources.include_loops, 500),
    "python_lock": (lint_sources.python_lock, 280),
    "imports": (lint_sources.imports, 125),
    "seeds": (lint_sources.seeds, 50),
    "left_out": (lint_sources.left_out, 18),
}


def lint(root: Path, only: list[str] | None = None) -> Report:
    tree = Tree([root])
    report = Report()
    for name in only or CHECKS:
        check, minimum = CHECKS[name]
        report.begin(name)
        check(tree, report)
        if (made := report.counts[name]) < minimum:
            report.failures.append(
                f"tools/lint_docs.py:1: {name}: only {made} comparisons, expected {minimum} or more"
            )
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=CHECKS, help="may be repeated")
    parser.add_argument("--root", type=Path, default=ROOT, help="[this working tree]")
    given = parser.parse_args()
    report = lint(given.root.resolve(), given.only)
    for failure in report.failures:
        print(failure)
    counts = ", ".join(f"{name} {count}" for name, count in report.counts.items())
    total = sum(report.counts.values())
    print(f"{total} comparisons, {len(report.failures)} failed ({counts})")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
