#!/usr/bin/env python3
"""Makes the reference pages that repeat the sources: docs/cli.md, and the table of
docs/counters.md.

    python3 tools/reference.py           # write both
    python3 tools/reference.py --check   # exit 1 if one differs from the sources

tests/python/test_reference.py runs the check. Options of the commands come from their argparse
parsers, those of the aggregator and the engine, which are C++ programs, from their --help: the
package must be built.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
END = "<!-- end -->"

# Command lines whose options are shown; subcommands of argparse are found from them.
LINES = (
    "doctor",
    "doctor watch",
    "bench",
    "estimate",
    "estimate gpu",
    "estimate offload",
    "simulate",
    "simulate figures",
    "simulate validate",
    "simulate swarm",
    "aggregator",
    "aggregator status",
    "engine run",
    "engine drain",
    "engine status",
    "engine install",
    "lab",
    "settings",
    "secret",
)
# C++ programs, and their descriptions.
PROGRAMS = {
    "aggregator": "Folds (adds up) reductions of groups that name this host in `MCAST_AGGREGATORS`, "
    "until SIGTERM.",
    "engine run": "Runs the network of this host's processes with `MCAST_ENGINE=host`, until SIGTERM.",
    "engine drain": "Takes no new clients. The engine ends when the last one has gone or after the limit.",
}

PROGRAM_OPTION = re.compile(r"^  (--[^\n]+)\n      ([^\n]+)\n      default: ([^\n]+)$", re.M)
STRING = r'"(?:[^"\\]|\\.)*"'
ROW = re.compile(rf"^  X\((\w+),\s*((?:{STRING}\s*)+)[,)]", re.M)


class Captured(BaseException):
    """Carries the parser of a command out of it. Not an Exception, which commands catch."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def _capture(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
    raise Captured(parser)


def parser_of(line: str) -> argparse.ArgumentParser:
    """Returns the parser of a command line such as "doctor watch"."""
    cli = importlib.import_module("torch_mcast.cli")
    command, *arguments = line.split()
    module = importlib.import_module(cli.COMMANDS[command][0])
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{module.__name__}.cli")
    usual = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = _capture  # type: ignore[method-assign, assignment]
    try:
        module.main(arguments)
    except Captured as captured:
        return captured.parser
    finally:
        argparse.ArgumentParser.parse_args = usual  # type: ignore[method-assign]
    raise ValueError(f"torch-mcast {line} has not parsed its arguments")


def cell(text: str) -> str:
    """Formats text for a cell of a Markdown table."""
    return re.sub(r"([\[|<*])", r"\\\1", " ".join(text.split()))


def meaning(action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": "torch-mcast"}
    shown = action.default not in (None, False, "", argparse.SUPPRESS) and action.default != []
    if shown and "default" not in text and not re.search(r"[\[(][^\])]+[\])]$", text):
        text = f"{text} [{action.default}]".strip()
    return cell(text)


def value_of(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None and action.metavar is None:
        name = "{" + ",".join(map(str, action.choices)) + "}"
    optional = action.nargs == argparse.OPTIONAL
    return f"[{name}]" if optional and action.option_strings else name


def argparse_rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        name = ", ".join(action.option_strings) or value_of(action)
        words = f"{name} {value_of(action)}" if action.option_strings else name
        yield f"`{words.strip()}`".replace("|", "\\|"), meaning(action)


def program_rows(line: str) -> Iterator[tuple[str, str]]:
    """Yields the options of a C++ program, from its --help: a line with the option, then its help,
    then its default."""
    command, *arguments = line.split()
    program = importlib.import_module("torch_mcast._program").find_program(f"mcast-{command}")
    words = [str(program), *(word for word in arguments if word != "run"), "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    # The engine's help lists the options of `drain` after those of `run`.
    runs, _, drains = text.partition("\ndrain: ")
    for match in PROGRAM_OPTION.finditer(drains if line == "engine drain" else runs):
        words_of_option = f"`{match[1]}`".replace("|", "\\|")
        yield words_of_option, cell(f"{match[2]} [{match[3]}]")


def section(level: int, title: str, text: str, rows: list[tuple[str, str]]) -> list[str]:
    out = ["#" * level + f" torch-mcast {title}", "", text, ""]
    if rows:
        out += ["| argument | meaning |", "|---|---|"]
        out += [f"| {words} | {what} |" for words, what in rows] + [""]
    return out


def argparse_sections(
    level: int, title: str, parser: argparse.ArgumentParser, text: str = ""
) -> list[str]:
    about = " ".join((parser.description or text).split())
    about = re.sub(r"^`torch-mcast [\w ]+`: ", "", about).replace("<", "&lt;")
    out = section(level, title, about[:1].upper() + about[1:], list(argparse_rows(parser)))
    if parser.epilog:
        out += [" ".join(parser.epilog.split()).replace("<", "&lt;"), ""]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in (action.choices or {}).items():
                words = helps.get(name, "")
                words = f"{words[:1].upper()}{words[1:]}."
                out += argparse_sections(3, f"{title} {name}", sub, words)
    return out


def command_page() -> str:
    commands = importlib.import_module("torch_mcast.cli").COMMANDS
    out = [
        "# Command line",
        "",
        "<!-- Made by tools/reference.py, which writes it again. -->",
        "",
        "`torch-mcast COMMAND --help` prints the same. `python -m torch_mcast` is the same program.",
        "",
        "| command | does |",
        "|---|---|",
    ]
    for name, (_, text) in commands.items():
        out.append(f"| [`torch-mcast {name}`](#torch-mcast-{name}) | {cell(text)} |")
    out.append("")
    for line in LINES:
        rest = line.split()[1:]
        if line == "engine run":
            about = commands["engine"][1]
            out += section(2, "engine", f"{about[:1].upper()}{about[1:]}.", [])
        if line in PROGRAMS:
            out += section(3 if rest else 2, line, PROGRAMS[line], list(program_rows(line)))
        else:
            out += argparse_sections(3 if rest else 2, line, parser_of(line))
    return "\n".join(out).rstrip() + "\n"


def macro_rows(source: str) -> dict[str, str]:
    """Returns name and help of each row of a table in a header: X(name, "help")."""
    table = re.sub(r" *\\$", "", source, flags=re.M)
    return {name: joined(literals) for name, literals in ROW.findall(table)}


def macro_table(source: str) -> list[str]:
    return [f"| `{name}` | {cell(text)} |" for name, text in macro_rows(source).items()]


def joined(literals: str) -> str:
    pieces = re.findall(STRING, literals)
    return "".join(re.sub(r"\\(.)", r"\1", piece[1:-1]) for piece in pieces)


def counter_page(page: str | None = None) -> str:
    """Returns docs/counters.md, or `page`, with the tables of counters and of causes from the sources."""
    if page is None:
        page = (ROOT / "docs/counters.md").read_text()
    for header, title in (("counters.h", "counter"), ("refusal.h", "cause")):
        begin = f"<!-- Made by tools/reference.py from {header}: -->"
        before, found, rest = page.partition(begin)
        _, end, after = rest.partition(END)
        if not found or not end:
            raise ValueError(f"docs/counters.md has no lines {begin} and {END}")
        rows = macro_table((ROOT / "csrc/core/base" / header).read_text())
        table = "\n".join([f"| {title} | counts |", "|---|---|", *rows])
        page = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return page


PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": command_page,
    "docs/counters.md": counter_page,
}


def differing() -> list[str]:
    """Returns the pages that differ from the sources."""
    return [name for name, make in PAGES.items() if (ROOT / name).read_text() != make()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    if parser.parse_args().check:
        wrong = differing()
        for name in wrong:
            print(f"{name}:1: not what the sources say: run python3 tools/reference.py")
        return 1 if wrong else 0
    for name, make in PAGES.items():
        (ROOT / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    sys.exit(main())
