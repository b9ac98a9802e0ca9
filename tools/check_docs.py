"""Checks that what the documents name is there: files, links and their anchors, make targets, settings,
commands, test suites.

    python3 tools/check_docs.py              # README.md, CONTRIBUTING.md, docs/*.md and the like
    python3 tools/check_docs.py --names      # also classes, their members (Class::member), tests (Suite.Test)
    python3 tools/check_docs.py --also DIR   # what lies in another working tree counts as there

Prints "page:line: what is missing" and exits with 1 if anything is. tests/python/test_docs.py runs it.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Generated from the sources.
NOT_READ = {"docs/mutants.md", "docs/settings.md"}
# About the past: files, settings and classes may be gone. Links are held all the same.
HISTORY = {"CHANGELOG.md"}
# The first column of its tables has texts of errors, which look like anything.
TEXTS = "docs/troubleshooting.md"
# Made by builds and runs.
MADE = (
    "build",
    ".venv",
    "benchmarks/results",
    "torch_mcast/_build_info.py",
    "torch_mcast/mcast-aggregator",
    "torch_mcast/mcast-simulate",
)
# Names of users' files, and of what programs write for them.
USERS = {"script.py", "trace.json", "t.json", "ctest.xml"}
# Folders that a path may leave out at its start.
BASES = ("", "csrc/core", "docs", "tests", "torch_mcast", "torch_mcast/lab")

SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
ENDINGS = "cpp|h|py|pyi|md|sh|txt|toml|yml|yaml|json|cmake|png|c|xml"
FILE = re.compile(rf"[\w.-]+(?:/[\w.-]+)*\.(?:{ENDINGS})")
FOLDER = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
MAKE = re.compile(r"^make ([a-z][a-z0-9-]*)")
COMMAND = re.compile(r"(?:^|\s)torch-mcast ([a-z]+)")
SETTING = re.compile(r"\bMCAST_[A-Z_]+\b")
CLASS = re.compile(r"([A-Z][a-z]+[A-Z]\w*)(?:\(\))?")
MEMBER = re.compile(r"((?:\w+::)+)(~?\w+)(?:\([^)]*\))?")
SUITE_TEST = re.compile(r"[A-Z]\w*\.(?:[A-Z]\w*|\*)")
FILTER = re.compile(r"--gtest_filter=['\"]?([^\s'\"`]+)")
SUITES = re.compile(r"\[\w+\]\((?:\.\./)*(tests/cpp/\w+)\): ((?:`\w+`(?:, )?)+)")
# A class or an enumeration, its bases, and what stands in it: on its line, or up to the brace at its
# own indentation. Looks ahead, so that classes inside are found too.
BODY = re.compile(
    r"^(?=( *)(?:class|struct|enum(?: class)?) (\w+)(?: final)?(?: : ([^{;]*?))? \{"
    r"([^\n]*\};|.*?\n\1\}))",
    re.M | re.S,
)
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,|^INSTANTIATE_\w+\(\s*(\w+)", re.M)

ONE_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)", re.M)

Found = Iterator[tuple[int, str]]  # line, what is missing there


def tracked(root: Path) -> set[str]:
    """Files that git knows or would add, and all their folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    files = {name for name in listed.splitlines() if (root / name).exists()}
    return files | {str(parent) for name in files for parent in Path(name).parents}


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number, line, whether it is code (fenced or indented)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        else:
            yield number, line, fenced or line.startswith("    ")


def anchors(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    found: set[str] = set()
    for _, line, code in lines_of(text):
        if not code and (match := re.match(r"#+ (.*)", line)):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


class Tree:
    """What there is, in one working tree or several."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.files = set().union(*(tracked(root) for root in roots))
        # "base/config" is base/config.h and base/config.cpp.
        self.stems = {file.rsplit(".", 1)[0] for file in self.files if "." in Path(file).name[1:]}
        makefile = self.text(r"Makefile")
        self.targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.M))
        self.settings = set(
            SETTING.findall(
                self.text(
                    r"(csrc|tests|tools|torch_mcast|cmake)/.*|Makefile|CMakeLists\.txt|\w+\.py"
                )
            )
        )
        table = re.search(r"^COMMANDS = \{(.*?)^\}", self.text(r"torch_mcast/cli\.py"), re.M | re.S)
        self.commands = set(re.findall(r'^\s+"(\w+)":', table[1], re.M)) if table else set()
        self.words = set(re.findall(r"\w+", self.text(r"(csrc|torch_mcast|tests|tools)/.*\.\w+")))
        core = re.sub(r"//.*", "", self.text(r"(csrc|tests/cpp)/.*\.(cpp|h)"))
        spaces = re.findall(r"^namespace ([\w:]+) \{", core, re.M)
        self.namespaces = {part for name in spaces for part in name.split("::")}
        self.bodies: dict[str, set[str]] = {}  # by class, the words in it
        self.bases: dict[str, set[str]] = {}
        for _, name, bases, body in BODY.findall(core):
            self.bodies.setdefault(name, set()).update(re.findall(r"~?\w+", body))
            self.bases.setdefault(name, set()).update(re.findall(r"\w+", bases))
        self.tests = {".".join(pair) for pair in ONE_TEST.findall(core)}
        self.tops = {Path(name).parts[0] for name in self.files if name != "."}
        self.tops |= {
            Path(name).name for name in self.files if re.fullmatch(r"csrc/core/\w+", name)
        }

    def text(self, pattern: str) -> str:
        """All files whose whole name the pattern matches, together."""
        return "\n".join(
            (root / name).read_text(errors="replace")
            for root in self.roots
            for name in sorted(self.files)
            if re.fullmatch(pattern, name) and (root / name).is_file()
        )

    def suites(self, folder: str) -> set[str]:
        found = TEST.findall(self.text(rf"{folder}/.*\.(cpp|h)"))
        return {name for pair in found for name in pair if name}

    def has_member(self, qualifiers: list[str], member: str) -> bool:
        """Whether the last of `qualifiers`, or a base of it, has the member. What other libraries have
        is not asked."""
        name = qualifiers[-1]
        if name in self.bodies:
            bases = self.bases[name] & self.bodies.keys() - {name}
            return member in self.bodies[name] or any(self.has_member([b], member) for b in bases)
        if name in self.namespaces:
            return member in self.words
        return qualifiers[0].islower() and qualifiers[0] not in self.namespaces

    def has_test(self, pattern: str) -> bool:
        """Whether a test matches; patterns as in --gtest_filter."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self.tests)

    def has(self, name: str, page: Path) -> bool:
        """Whether a document at `page` may name this file or folder."""
        name = name.rstrip("/")
        if name in USERS or name.startswith(MADE):
            return True
        if "/" not in name:
            return any(Path(file).name == name for file in self.files)
        if Path(name).parts[0] not in self.tops:  # no path of ours: "a/b" in prose, /proc, ...
            return True
        paths = [str(Path(base) / name) for base in (*BASES, page.parent)]
        return any(path in self.files or path in self.stems for path in paths)


def missing_links(tree: Tree, page: Path, text: str) -> Found:
    root = tree.roots[0]
    for number, line, code in lines_of(text):
        for target in [] if code else LINK.findall(line):
            name, _, anchor = target.partition("#")
            path = (root / page.parent / name).resolve() if name else root / page
            if re.match(r"[a-z]+:", target):
                continue
            if os.path.relpath(path, root) not in tree.files:
                yield number, f"no file {target}"
            elif anchor and anchor not in anchors(path.read_text()):
                yield number, f"no heading {target}"


def missing_names(tree: Tree, piece: str) -> Iterator[str]:
    if (match := CLASS.fullmatch(piece)) and match[1] not in tree.words:
        yield f"no class {match[1]}"
    match = MEMBER.fullmatch(piece)
    if match and not tree.has_member(match[1].split("::")[:-1], match[2]):
        yield f"no {match[1]}{match[2]}"
    patterns = [piece] if SUITE_TEST.fullmatch(piece) else []
    for value in FILTER.findall(piece):
        patterns += [pattern for pattern in re.split("[:-]", value) if pattern]
    for pattern in patterns:
        if not tree.has_test(pattern):
            yield f"no test {pattern}"


def missing_in_code(tree: Tree, page: Path, text: str, names: bool) -> Found:
    for number, line, code in lines_of(text):
        if str(page) == TEXTS and line.startswith("| "):
            line = line.split(" | ", 1)[-1]
        pieces = [line.strip()] if code else SPAN.findall(line)
        for piece in pieces:
            for target in MAKE.findall(piece):
                if target not in tree.targets:
                    yield number, f"make has no target {target}"
            for command in COMMAND.findall(piece):
                if command not in tree.commands:
                    yield number, f"torch-mcast has no command {command}"
            if str(page) in HISTORY:
                continue
            for setting in SETTING.findall(piece):
                if setting not in tree.settings:
                    yield number, f"nothing reads {setting}"
            if (FILE.fullmatch(piece) or FOLDER.fullmatch(piece)) and not tree.has(piece, page):
                yield number, f"no file {piece}"
            if names:
                yield from ((number, what) for what in missing_names(tree, piece))


def missing_suites(tree: Tree, text: str) -> Found:
    for folder, suites in SUITES.findall(" ".join(text.split("\n"))):
        for suite in sorted(set(re.findall(r"\w+", suites)) - tree.suites(folder)):
            yield 1, f"{folder} has no suite {suite}"


def pages(root: Path) -> list[Path]:
    found = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob(".github/**/*.md")]
    found.append(root / "benchmarks/README.md")
    return sorted(p.relative_to(root) for p in found if str(p.relative_to(root)) not in NOT_READ)


def check(roots: list[Path], names: bool = False) -> list[str]:
    """What the pages of the first tree name and no tree has."""
    tree = Tree(roots)
    wrong = []
    for page in pages(roots[0]):
        text = (roots[0] / page).read_text()
        for found in (
            missing_links(tree, page, text),
            missing_in_code(tree, page, text, names),
            missing_suites(tree, text),
        ):
            wrong += [f"{page}:{number}: {what}" for number, what in found]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", action="store_true", help="also the classes that pages name")
    parser.add_argument("--also", action="append", type=Path, default=[], metavar="DIR")
    arguments = parser.parse_args()
    wrong = check([ROOT, *(path.resolve() for path in arguments.also)], arguments.names)
    print("\n".join(wrong) or "all that the documents name is there")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
