"""Measures of the sources that anyone can take: lines of files and functions, fields and private
methods of classes.

    python3 tools/measures.py                   # csrc, torch_mcast and tests
    python3 tools/measures.py csrc/core/shm     # these files and folders only

Prints the ten worst of each kind and exits with 1 if one is beyond its limit, or if a function of a .cpp
file ends that was not measured. Fields and methods have no limit: one cuts classes where it is reached, not
where they have a joint.

How it counts. A function reaches from the first line of its signature to its last brace; lambdas in
it are part of it. Fields are the data members of a class, struct or union that are not static; those
of a struct within it are counted there. Methods are private by their section, constructors and
overrides included, what is deleted not. Classes of tests are not measured, nor are Python's: worlds
and fakes have a knob for each test. C++ is read by its braces, without a compiler: it must be
formatted (a body's brace stands after a blank, a brace of values does not or follows a "=").
Preprocessor lines are skipped, so what a macro writes counts as nothing.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("csrc", "torch_mcast", "tests")
LIMITS = {
    "lines of a file": 800,
    "lines of a function": 60,
    "fields of a class": None,
    "private methods of a class": None,
}
SHOWN = 10

# Parts that are not code, in C++. Quotes within numbers (1'000) do not start a character.
NO_CODE = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<end>[^()\\\s]*)\(.*?\)(?P=end)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*\#(?:\\\n|[^\n])*",
    re.S | re.M,
)
TEMPLATE = re.compile(r"^template\s*<")
RECORD = re.compile(r"^(?:(?:typedef|static|inline|const|constexpr)\s+)*(?:class|struct|union)\b")
ENUM = re.compile(r"^(?:(?:typedef|static|const|constexpr)\s+)*enum\b")
NAMESPACE = re.compile(r"^(?:inline\s+)?(?:namespace\b|extern\s*$)")
NO_FIELD = re.compile(r"^(?:using|typedef|friend|static|static_assert|extern)\b")


class Measure(NamedTuple):
    kind: str
    value: int
    path: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.value:5}  {self.path}:{self.line} {self.name}"


def blank(match: re.Match[str]) -> str:
    """Replaces a match by as much space, and as many lines; a literal stays one value."""
    text = match.group()
    space = re.sub(r"[^\n]", " ", text)
    return "0" + space[1:] if text[0] in "\"'R" else space


def without_templates(text: str) -> str:
    """Removes the contents of angle brackets. Operators have blanks around them."""
    text = re.sub(r"\s(?:<<|>>|<=|>=|<|>|->)\s", " ", text.replace("->", " "))
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def without_parentheses(text: str) -> str:
    """Replaces each pair of parentheses and its contents by @."""
    before = None
    while before != text:
        before, text = text, re.sub(r"\([^()]*\)", "@", text)
    return text


def plain(head: str) -> str:
    """Removes template, attributes and alignment from a declaration."""
    head = re.sub(r"\[\[.*?\]\]|alignas\([^()]*\)", "", head).strip()
    while TEMPLATE.match(head):
        depth, end = 1, head.index("<") + 1
        while depth and end < len(head):
            depth += {"<": 1, ">": -1}.get(head[end], 0)
            end += 1
        head = head[end:].strip()
    return head


@dataclass
class Scope:
    kind: str  # namespace, record, enum, function, values
    line: int = 0  # start of its first statement, its signature
    name: str = ""
    access: str = "public"
    fields: int = 0
    private: int = 0
    statement: list[str] = field(default_factory=list)  # so far; braces within it are empty
    begun: int = 0  # its line
    depth: int = 0  # of parentheses in it

    def head(self) -> str:
        return "".join(self.statement).strip()

    def reset(self) -> None:
        self.statement.clear()
        self.begun = self.depth = 0


def kind_of(head: str, inside: Scope) -> str:
    """Returns the kind of the block that a brace after `head` opens."""
    text = plain(head)
    if inside.depth == 0 and RECORD.match(text) and "(" not in text and "=" not in text:
        return "record"
    if inside.depth == 0 and ENUM.match(text):
        return "enum"
    if inside.kind not in ("namespace", "record") or inside.depth > 0:
        return "values"
    if NAMESPACE.match(text):
        return "namespace"
    if not head or not inside.statement[-1].isspace():
        return "values"
    if "operator" in text:
        return "function"
    bare = without_parentheses(without_templates(text))
    # A "=" before any parenthesis starts an initializer.
    return "function" if "@" in bare and "=" not in bare else "values"


def name_of(kind: str, head: str) -> str:
    text = plain(head)
    if kind == "record":
        words = re.findall(r"\w+", re.split(r"(?<!:):(?!:)", without_templates(text))[0])
        names = [w for w in words if w not in ("class", "struct", "union", "final", "static")]
        return names[-1] if names else "(unnamed)"
    if text.startswith(("TEST", "TYPED_TEST")):
        return re.sub(r"\s+", " ", text)
    found = re.search(r"([\w:~]*(?:operator\W+|[\w~]+))\s*\(", without_templates(text))
    return found.group(1) if found else text[:40]


def members(statement: str) -> tuple[int, int]:
    """Returns the fields and methods that a statement of a class declares."""
    text = plain(statement)
    if not text or NO_FIELD.match(text):
        return 0, 0
    if RECORD.match(text) or ENUM.match(text):
        if "{}" not in text:
            return (0, 0) if re.match(r"^\w+(?:\s+\w+)?\s+\w+$", text) else (1, 0)
        tail = text.rsplit("{}", 1)[1].strip()
        return (tail.count(",") + 1, 0) if tail else (0, 0)
    if "operator" in text:
        return 0, int("delete" not in text)
    text = without_templates(text)
    if re.search(r"\(\s*\*", text):
        return 1, 0
    bare = without_parentheses(text)
    if "@" in bare.split("=")[0]:
        return 0, int(not re.search(r"=\s*delete", bare))
    return bare.count(",") + 1, 0


class Source:
    """One C++ file, read by its braces."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = NO_CODE.sub(blank, text)
        self.scopes = [Scope("namespace")]
        self.measures: list[Measure] = []

    def read(self) -> list[Measure]:
        line = 1
        for at, c in enumerate(self.text):
            line += c == "\n"
            self.step(c, at, line)
        if len(self.scopes) != 1:
            raise ValueError(f"{self.path}: braces that are not closed")
        return self.measures

    def step(self, c: str, at: int, line: int) -> None:
        top = self.scopes[-1]
        if c == "{":
            self.open(line)
        elif c == "}":
            self.close(line)
        elif c == ";" and top.depth == 0:
            self.end_statement(top)
        elif c == ":" and top.kind == "record" and top.head() in ("public", "private", "protected"):
            top.access = top.head()
            top.reset()
        else:
            top.depth += {"(": 1, ")": -1}.get(c, 0)
            if not c.isspace() and top.begun == 0:
                top.begun = line
            if top.begun:
                top.statement.append(c)

    def end_statement(self, top: Scope) -> None:
        if top.kind == "record":
            fields, methods = members(top.head())
            top.fields += fields
            top.private += methods if top.access == "private" else 0
        top.reset()

    def open(self, line: int) -> None:
        top = self.scopes[-1]
        head = top.head()
        kind = kind_of(head, top)
        access = "private" if re.match(r"class\b", plain(head)) else "public"
        self.scopes.append(Scope(kind, top.begun or line, name_of(kind, head), access))

    def close(self, line: int) -> None:
        closed = self.scopes.pop()
        top = self.scopes[-1]
        if closed.kind == "record" and not self.path.startswith("tests/"):
            self.note("fields of a class", closed.fields, closed)
            self.note("private methods of a class", closed.private, closed)
        if closed.kind == "function":
            self.note("lines of a function", line - closed.line + 1, closed)
            if top.kind == "record" and top.access == "private":
                top.private += 1
        # A body ends the statement; after a class, an enum or values a name and a semicolon may
        # follow.
        in_body = top.kind in ("values", "function") and top.depth == 0
        follows = closed.kind in ("record", "enum") or (closed.kind == "values" and not in_body)
        if follows:
            top.statement.append("{}")
        else:
            top.reset()

    def note(self, kind: str, value: int, scope: Scope) -> None:
        self.measures.append(Measure(kind, value, self.path, scope.line, scope.name))


def measure_python(path: str, text: str) -> list[Measure]:
    return [
        Measure(
            "lines of a function", node.end_lineno - node.lineno + 1, path, node.lineno, node.name
        )
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
    ]


def measure(path: Path) -> list[Measure]:
    text = path.read_text()
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    of_file = Measure("lines of a file", text.count("\n"), name, 1, "")
    if path.suffix in (".h", ".cpp", ".c"):
        return [of_file, *Source(name, text).read()]
    return [of_file, *measure_python(name, text)]


def unmeasured(found: list[Measure]) -> Iterator[str]:
    """Yields the lines of .cpp files where a brace in the first column ends neither a function nor
    a namespace."""
    ends: dict[str, set[int]] = {}
    for m in found:
        lines = ends.setdefault(m.path, set())
        if m.kind == "lines of a function":
            lines.add(m.line + m.value - 1)
    for path, lines in ends.items():
        if path.endswith(".cpp"):
            text = (ROOT / path).read_text()
            code = NO_CODE.sub(blank, text).split("\n")
            for number, line in enumerate(text.split("\n"), 1):
                end = code[number - 1].rstrip() == "}" and "namespace" not in line
                if end and number not in lines:
                    yield f"{path}:{number}: what ends here was not measured"


def sources(places: list[Path]) -> Iterator[Path]:
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".h", ".cpp", ".c", ".py") and "__pycache__" not in path.parts:
                yield path


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path, help="files or folders")
    places = parser.parse_args().places or [ROOT / folder for folder in FOLDERS]
    found = [m for path in sources([p.resolve() for p in places]) for m in measure(path)]
    lost = list(unmeasured(found))
    beyond = len(lost)
    print("".join(f"{line}\n" for line in lost), end="")
    for kind, limit in LIMITS.items():
        worst = sorted((m for m in found if m.kind == kind), key=lambda m: -m.value)
        over = 0 if limit is None else sum(m.value > limit for m in worst)
        beyond += over
        print(f"{kind}: " + ("no limit" if limit is None else f"at most {limit}, {over} beyond"))
        for m in worst[: max(SHOWN, over)]:
            print(m)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
