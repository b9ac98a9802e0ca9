#!/usr/bin/env python3
"""Checks how comments and commit subjects are worded.

    python3 tools/lint_words.py                       # comments; `make lint` runs this
    python3 tools/lint_words.py --list csrc/core/wire # also print each sentence found under this path
    python3 tools/lint_words.py --commits main..HEAD  # only the subjects of these commits

A plain English sentence starts with its subject or its verb. The tool counts sentences of comments that
open with a word of ODD instead ("What comes by multicast", "Of the transport", "Nothing of ours is
unconfirmed"), and prints their share per folder and the files that have most of them. It exits with 1 if
a folder is above its limit in LIMITS.

C and C++: // comments; consecutive lines form one comment, a comment behind code is one of its own.
Python: # comments in the same way, and docstrings. A sentence ends with . ! ? or : and a blank, or with
its paragraph; sentences of fewer than three words are not counted.

Commits: a subject has at most 72 characters and is not "wip"; merge commits are refused.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ODD = re.compile(r"(What|Who|Whom|Whoever|Whatever|Where|Of|Nothing|Those|That|Such|Which|By)\b")
SUFFIXES = (".h", ".cpp", ".c", ".py")
FOLDERS = ("csrc", "tests/cpp", "tests/fuzz", "benchmarks/cpp", "tests/python", "torch_mcast")
# Percent of a folder's sentences. 1 is the goal. A higher limit is the share of a folder that has not been
# rewritten yet, rounded up, so that it does not get worse.
LIMITS: dict[str, float] = {}
SHOWN = 10
SUBJECT_CHARACTERS = 72

# Code (// within a string does not start a comment), then the comment's text.
C_COMMENT = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)'|[^"/]|/(?!/))*)///*(.*)""")


class Sentence(NamedTuple):
    line: int  # where its comment starts
    text: str

    @property
    def odd(self) -> bool:
        return bool(ODD.match(self.text))


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Yields the paragraphs of a comment; an empty line or a list item starts one."""
    part: list[str] = []
    for line in lines:
        if part and (not line.strip() or re.match(r"\s*[-*] ", line)):
            yield " ".join(part)
            part = []
        if line.strip():
            part.append(re.sub(r"^[-*] ", "", line.strip()))
    if part:
        yield " ".join(part)


def sentences(comment: list[str]) -> Iterator[str]:
    """Yields the sentences of a comment's lines that have at least three words."""
    for paragraph in paragraphs(comment):
        for text in re.split(r"(?<=[.!?:])\s+", paragraph):
            if len(text.split()) >= 3:
                yield text


Comment = tuple[int, list[str]]


def joined(found: Iterator[tuple[int, bool, str]]) -> Iterator[Comment]:
    """Yields comments from (line number, stands alone on its line, text)."""
    start, block, last = 0, list[str](), 0
    for number, alone, text in found:
        if block and not (alone and number == last + 1):
            yield start, block
            block = []
        if not alone:
            yield number, [text]
            continue
        start = start if block else number
        block.append(text)
        last = number
    if block:
        yield start, block


def comments_of_c(source: str) -> Iterator[Comment]:
    def found() -> Iterator[tuple[int, bool, str]]:
        for number, line in enumerate(source.splitlines(), 1):
            if match := C_COMMENT.match(line):
                yield number, not match[1].strip(), match[2]

    yield from joined(found())


def comments_of_python(source: str) -> Iterator[Comment]:
    def found() -> Iterator[tuple[int, bool, str]]:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                alone = not token.line[: token.start[1]].strip()
                yield token.start[0], alone, token.string.lstrip("#")

    yield from joined(found())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text.splitlines()


def sentences_of(path: Path) -> list[Sentence]:
    read = comments_of_python if path.suffix == ".py" else comments_of_c
    found = read(path.read_text())
    return [Sentence(line, text) for line, comment in found for text in sentences(comment)]


def folder_of(name: str) -> str:
    """Returns csrc/core/x, csrc/x, or one of FOLDERS."""
    parts = Path(name).parts
    if parts[0] == "csrc":
        return "/".join(parts[: 3 if parts[1] == "core" else 2])
    return next(folder for folder in FOLDERS if name.startswith(folder + "/"))


def sources(root: Path) -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield str(path.relative_to(root))


def check_comments(root: Path, listed: str | None) -> int:
    count: Counter[str] = Counter()
    odd: Counter[str] = Counter()
    worst: Counter[str] = Counter()
    for name in sources(root):
        for sentence in sentences_of(root / name):
            count[folder_of(name)] += 1
            odd[folder_of(name)] += sentence.odd
            worst[name] += sentence.odd
            if sentence.odd and listed is not None and name.startswith(listed):
                print(f"{name}:{sentence.line}: {sentence.text}")
    failed = 0
    print(f"{'folder':24} {'sentences':>9} {'odd':>5} {'share':>7} {'limit':>7}")
    for folder in sorted(count):
        share, limit = 100 * odd[folder] / count[folder], LIMITS.get(folder, 1.0)
        above = share > limit
        failed += above
        row = f"{folder:24} {count[folder]:9} {odd[folder]:5} {share:6.1f}% {limit:6.1f}%"
        print(row + ("  too many" if above else ""))
    total, total_odd = count.total(), odd.total()
    print(f"{'all':24} {total:9} {total_odd:5} {100 * total_odd / max(1, total):6.1f}%")
    print("\nmost odd sentences:")
    for name, number in worst.most_common(SHOWN):
        if number:
            print(f"{number:5}  {name}")
    if failed:
        print(
            "\nStart the sentence with its subject or its verb. List the sentences of a folder:"
            " python3 tools/lint_words.py --list FOLDER"
        )
    return 1 if failed else 0


def fault_of_subject(subject: str, parents: int) -> str:
    """Returns the fault of a commit, or an empty string."""
    if parents > 1:
        return "is a merge commit; rebase instead"
    if re.match(r"wip\b|(fixup|squash)!", subject, re.I):
        return "is unfinished work; squash it"
    if len(subject) > SUBJECT_CHARACTERS:
        return f"has a subject of {len(subject)} characters, limit {SUBJECT_CHARACTERS}"
    return ""


def check_commits(root: Path, span: str) -> int:
    command = ["git", "-C", str(root), "log", "--format=%h%x09%p%x09%s", span]
    log = subprocess.run(command, capture_output=True, text=True)
    if log.returncode:
        print(f"cannot list the commits of {span}: {log.stderr.strip()}")
        return 1
    failed = 0
    lines = log.stdout.splitlines()
    for line in lines:
        commit, parents, subject = line.split("\t", 2)
        if fault := fault_of_subject(subject, len(parents.split())):
            print(f"commit {commit} {fault}: {subject}")
            failed = 1
    print(f"{len(lines)} commits checked")
    return failed


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=ROOT, metavar="DIR", help="working tree")
    parser.add_argument("--list", metavar="PREFIX", help="print odd sentences of these files")
    parser.add_argument("--commits", metavar="BASE..HEAD", help="check subjects of these commits")
    args = parser.parse_args()
    if args.commits:
        return check_commits(args.root, args.commits)
    return check_comments(args.root, args.list)


if __name__ == "__main__":
    sys.exit(main())
