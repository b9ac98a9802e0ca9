"""Checks that what the documents name is there: files, links and their anchors, make targets,
settings, commands, test suites.

    python3 tools/check_docs.py              # README.md, CONTRIBUTING.md, docs/*.md and the like
    python3 tools/check_docs.py --names      # also classes, their members (Class::member), tests (Suite.Test)
    python3 tools/check_docs.py --also DIR   # files of another working tree count as present

Prints "page:line: what is missing" and exits with 1 if a name is missing. `make lint` runs it as
part of tools/lint_docs.py.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Generated from the sources.
NOT_READ = {"docs/mutants.md", "docs/settings.md"}
# About the past: files, settings and classes may be gone. Links are checked.
HISTORY = {"CHANGELOG.md"}
# The first column of its tables has error texts, which may look like any name.
TEXTS = "docs/troubleshooting.md"
# Created by builds and runs.
MADE = (
    "build",
    ".venv",
    "benchmarks/results",
    "torch_mcast/_build_info.py",
    "torch_mcast/mcast-aggregator",
    "torch_mcast/mcast-simulate",
)
# Names of users' files, and of files that programs write for them.
USERS = {"script.py", "first.py", "late.py", "trace.json", "t.json", "ctest.xml"}
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
# A class or an enumeration, its bases, and its contents: on its line, or up to the brace at its own
# indentation. Looks ahead, so that classes inside are found too.
BODY = re.compile(
    r"^(?=( *)(?:class|struct|enum(?: class)?) (\w+)(?: final)?(?: : ([^{;]*?))? \{"
    r"([^\n]*\};|.*?\n\1\}))",
    re.M | re.S,
)
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,|^INSTANTIATE_\w+\(\s*(\w+)", re.M)

ONE_TEST = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)", re.M)

# For each name: its line, and the part that is missing ("" if none).
Found = Iterator[tuple[int, str]]


def tracked(root: Path) -> set[str]:
    """Returns the files that git knows or would add, and all their folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    files = {name for name in listed.splitlines() if (root / name).exists()}
    return files | {str(parent) for name in files for parent in Path(name).parents}


def lines_of(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields number, line, and whether it is code (fenced or indented)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        else:
            yield number, line, fenced or line.startswith("    ")


@cache
def anchors(text: str) -> set[str]:
    """Returns the anchors of a page, as GitHub derives them from its headings."""
    found: set[str] = set()
    for _, line, code in lines_of(text):
        if not code and (match := re.match(r"#+ (.*)", line)):
            heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


class Tree:
    """Files of one working tree or several. Derived data is computed at its first use."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.files = set().union(*(tracked(root) for root in roots))
        self._texts: dict[Path, str] = {}

    @cached_property
    def stems(self) -> set[str]:
        """Returns names without ending: "base/config" is base/config.h and base/config.cpp."""
        return {file.rsplit(".", 1)[0] for file in self.files if "." in Path(file).name[1:]}

    @cached_property
    def base_names(self) -> set[str]:
        return {Path(file).name for file in self.files}

    @cached_property
    def targets(self) -> set[str]:
        return set(re.findall(r"^([a-z][a-z0-9-]*):", self.text(r"Makefile"), re.M))

    @cached_property
    def settings(self) -> set[str]:
        places = r"(csrc|tests|tools|torch_mcast|cmake)/.*|Makefile|CMakeLists\.txt|\w+\.py"
        return set(SETTING.findall(self.text(places)))

    @cached_property
    def commands(self) -> set[str]:
        """Commands, and old names that still work: the changelog names both."""
        source = self.text(r"torch_mcast/cli\.py")
        table = re.search(r"^COMMANDS = \{(.*?)^\}", source, re.M | re.S)
        names = re.findall(r'^\s+"(\w+)":', table[1], re.M) if table else []
        old = re.search(r"^DEPRECATED = \{(.*?)\}", source, re.M | re.S)
        return {*names, *re.findall(r'"(\w+)":', old[1] if old else "")}

    @cached_property
    def words(self) -> set[str]:
        return set(re.findall(r"\w+", self.text(r"(csrc|torch_mcast|tests|tools)/.*\.\w+")))

    @cached_property
    def core(self) -> str:
        """Returns C++ sources and tests without comments."""
        return re.sub(r"//.*", "", self.text(r"(csrc|tests/cpp)/.*\.(cpp|h)"))

    @cached_property
    def namespaces(self) -> set[str]:
        spaces = re.findall(r"^namespace ([\w:]+) \{", self.core, re.M)
        return {part for name in spaces for part in name.split("::")}

    @cached_property
    def classes(self) -> dict[str, tuple[set[str], set[str]]]:
        """Returns by class the words in it and in the list of its bases."""
        found: dict[str, tuple[set[str], set[str]]] = {}
        for _, name, bases, body in BODY.findall(self.core):
            words, above = found.setdefault(name, (set(), set()))
            words.update(re.findall(r"~?\w+", body))
            above.update(re.findall(r"\w+", bases))
        return found

    @cached_property
    def tests(self) -> set[str]:
        return {".".join(pair) for pair in ONE_TEST.findall(self.core)}

    @cached_property
    def tops(self) -> set[str]:
        """Returns the folders and files with which a path may begin."""
        tops = {Path(name).parts[0] for name in self.files if name != "."}
        return tops | {
            Path(name).name for name in self.files if re.fullmatch(r"csrc/core/\w+", name)
        }

    def names(self, pattern: str) -> list[str]:
        """Returns the files of the first tree whose whole name matches the pattern."""
        found = [name for name in sorted(self.files) if re.fullmatch(pattern, name)]
        return [name for name in found if (self.roots[0] / name).is_file()]

    def read(self, name: str, root: Path | None = None) -> str:
        path = (root or self.roots[0]) / name
        if path not in self._texts:
            self._texts[path] = path.read_text(errors="replace")
        return self._texts[path]

    def text(self, pattern: str) -> str:
        """Returns the joined text of all files whose whole name matches the pattern."""
        return "\n".join(
            self.read(name, root)
            for root in self.roots
            for name in sorted(self.files)
            if re.fullmatch(pattern, name) and (root / name).is_file()
        )

    def suites(self, folder: str) -> set[str]:
        found = TEST.findall(self.text(rf"{folder}/.*\.(cpp|h)"))
        return {name for pair in found for name in pair if name}

    def has_member(self, qualifiers: list[str], member: str) -> bool:
        """Returns whether the last of `qualifiers`, or a base of it, has the member. Members of
        other libraries are not checked."""
        name = qualifiers[-1]
        if name in self.classes:
            words, above = self.classes[name]
            bases = above & self.classes.keys() - {name}
            return member in words or any(self.has_member([b], member) for b in bases)
        if name in self.namespaces:
            return member in self.words
        return qualifiers[0].islower() and qualifiers[0] not in self.namespaces

    def has_test(self, pattern: str) -> bool:
        """Returns whether a test matches; patterns as in --gtest_filter."""
        return any(fnmatch.fnmatchcase(name, pattern) for name in self.tests)

    def has(self, name: str, page: Path) -> bool:
        """Returns whether a document at `page` may name this file or folder."""
        name = name.rstrip("/")
        if name in USERS or name.startswith(MADE):
            return True
        if "/" not in name:
            return name in self.base_names
        if Path(name).parts[0] not in self.tops:  # not a path of ours: "a/b" in prose, /proc, ...
            return True
        paths = [str(Path(base) / name) for base in (*BASES, page.parent)]
        return any(path in self.files or path in self.stems for path in paths)


def links(tree: Tree, page: Path, text: str) -> Found:
    root = tree.roots[0]
    for number, line, code in lines_of(text):
        for target in [] if code else LINK.findall(line):
            name, _, anchor = target.partition("#")
            path = (root / page.parent / name).resolve() if name else root / page
            if re.match(r"[a-z]+:", target):
                continue
            relative = os.path.relpath(path, root)
            if relative not in tree.files:
                yield number, f"no file {target}"
            elif anchor and anchor not in anchors(tree.read(relative)):
                yield number, f"no heading {target}"
            else:
                yield number, ""


def class_names(tree: Tree, piece: str) -> Iterator[str]:
    if match := CLASS.fullmatch(piece):
        yield "" if match[1] in tree.words else f"no class {match[1]}"
    if match := MEMBER.fullmatch(piece):
        there = tree.has_member(match[1].split("::")[:-1], match[2])
        yield "" if there else f"no {match[1]}{match[2]}"
    patterns = [piece] if SUITE_TEST.fullmatch(piece) else []
    for value in FILTER.findall(piece):
        patterns += [pattern for pattern in re.split("[:-]", value) if pattern]
    for pattern in patterns:
        yield "" if tree.has_test(pattern) else f"no test {pattern}"


def code_names(tree: Tree, page: Path, text: str, names: bool) -> Found:
    for number, line, code in lines_of(text):
        if str(page) == TEXTS and line.startswith("| "):
            line = line.split(" | ", 1)[-1]
        pieces = [line.strip()] if code else SPAN.findall(line)
        for piece in pieces:
            for target in MAKE.findall(piece):
                yield number, "" if target in tree.targets else f"make has no target {target}"
            for command in COMMAND.findall(piece):
                there = command in tree.commands
                yield number, "" if there else f"torch-mcast has no command {command}"
            if str(page) in HISTORY:
                continue
            for setting in SETTING.findall(piece):
                yield number, "" if setting in tree.settings else f"nothing reads {setting}"
            if FILE.fullmatch(piece) or FOLDER.fullmatch(piece):
                yield number, "" if tree.has(piece, page) else f"no file {piece}"
            if names:
                yield from ((number, what) for what in class_names(tree, piece))


def suites(tree: Tree, text: str) -> Found:
    for folder, named in SUITES.findall(" ".join(text.split("\n"))):
        there = tree.suites(folder)
        for suite in sorted(set(re.findall(r"\w+", named))):
            yield 1, "" if suite in there else f"{folder} has no suite {suite}"


def pages(root: Path) -> list[Path]:
    found = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob(".github/**/*.md")]
    found.append(root / "benchmarks/README.md")
    return sorted(p.relative_to(root) for p in found if str(p.relative_to(root)) not in NOT_READ)


def looked_at(tree: Tree, names: bool = False) -> Iterator[tuple[Path, int, str]]:
    """Yields every name in the pages of the first tree: page, line, and the part that no tree has
    ("" if it exists)."""
    for page in pages(tree.roots[0]):
        text = tree.read(str(page))
        for found in (
            links(tree, page, text),
            code_names(tree, page, text, names),
            suites(tree, text),
        ):
            yield from ((page, number, what) for number, what in found)


def check(roots: list[Path], names: bool = False) -> list[str]:
    """Returns the names in the pages of the first tree that no tree has."""
    found = looked_at(Tree(roots), names)
    return [f"{page}:{number}: {what}" for page, number, what in found if what]


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
