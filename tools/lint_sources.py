"""Rules of the sources that no compiler checks, for tools/lint_docs.py: where methods are defined,
Python's lock, circular imports, seeds."""

from __future__ import annotations

import ast
import re
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from check_docs import Tree


class Report:
    """Counts comparisons by check and collects failures."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._name = ""

    def begin(self, name: str) -> None:
        self._name = name
        self.counts[name] = 0

    def check(self, good: bool, where: str, what: str) -> None:
        """Counts a comparison; if it is not good, `where` (file:line) fails with `what`."""
        self.counts[self._name] += 1
        if not good:
            self.failures.append(f"{where}: {what}")


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


# -- sections: a comment "// group_turn.cpp: ..." in a class names the source of the methods below it -----

SECTION = re.compile(r"\s*// (\w+\.cpp(?:, \w+\.cpp)*)(?:: .*)?$")
END = re.compile(r"(?:\s*(?:public|private|protected):| ?};)")
METHOD = re.compile(r"  (?:static |virtual )?[\w:<>,*& ]+?[ *&](\w+)\(")


def declared(text: str) -> list[tuple[int, str, list[str]]]:
    """Returns line, name and sources of each method in a section that has no body there."""
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


def sections(tree: Tree, report: Report) -> None:
    for header in tree.names(r"csrc/.*\.h"):
        for number, name, sources in declared(tree.read(header)):
            paths = [str(Path(header).with_name(source)) for source in sources]
            texts = [tree.read(path) for path in paths if path in tree.files]
            there = any(f"::{name}(" in text for text in texts)
            report.check(there, f"{header}:{number}", f"{name} is not in {', '.join(sources)}")


# -- headers that no product file includes: only tests use their declarations, or no code does -----------

INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
# The product only uses its factory; tests also use its class.
LOOKED_INTO = {"csrc/core/transport/udp/udp_transport.h"}


def unused_headers(tree: Tree, report: Report) -> None:
    includers: dict[str, set[str]] = {}
    for source in tree.names(r"csrc/.*\.(?:h|cpp|c)"):
        for name in INCLUDE.findall(tree.read(source)):
            includers.setdefault(name, set()).add(str(Path(source).with_suffix("")))
    for header in set(tree.names(r"csrc/.*\.h")) - LOOKED_INTO:
        own = str(Path(header).with_suffix(""))
        ways = (header.split("/", n)[-1] for n in range(1, header.count("/") + 1))
        users = set().union(*(includers.get(way, set()) for way in ways))
        report.check(bool(users - {own}), f"{header}:1", "no product file includes it")


# -- Loops of includes ----------------------------------------------------------------------------------

# Groups of .h/.cpp pairs that include each other, such as a class and its thread. Files never do.
MOST_LOOPS = 12


def loops(edges: dict[str, set[str]]) -> list[list[str]]:
    """Returns the nodes of each loop: those that reach each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            new = edges.get(left.pop(), set()) - seen
            seen |= new
            left.extend(new)
        return seen

    reach = {node: reached(node) for node in edges}
    found = {
        frozenset(other for other in reach[node] if node in reach.get(other, ()))
        for node in edges
        if node in reach[node]
    }
    return sorted(sorted(loop) for loop in found)


def include_loops(tree: Tree, report: Report) -> None:
    names = set(tree.names(r"csrc/.*\.(?:h|cpp)"))
    files: dict[str, set[str]] = {name: set() for name in names}
    for source in names:
        for name in INCLUDE.findall(tree.read(source)):
            ways = (f"csrc/core/{name}", f"csrc/{name}", f"{Path(source).parent}/{name}")
            files[source] |= {way for way in ways if way in names}
    pairs: dict[str, set[str]] = {}
    for source, included in files.items():
        own = str(Path(source).with_suffix(""))
        others = {str(Path(name).with_suffix("")) for name in included}
        pairs.setdefault(own, set()).update(others - {own})
    of_files = {loop[0]: loop for loop in loops(files)}
    for source in files:
        loop = of_files.get(source, [])
        report.check(not loop, f"{source}:1", f"files include each other: {', '.join(loop)}")
    of_pairs = loops(pairs)
    listed = "; ".join(", ".join(loop) for loop in of_pairs)
    report.check(
        len(of_pairs) <= MOST_LOOPS,
        "csrc:1",
        f"{len(of_pairs)} loops of .h/.cpp pairs, at most {MOST_LOOPS}: {listed}",
    )


# -- Python's lock: a thread that waits for a lane has released it ------------------------------------

# The lane may need the lock, to release a tensor, and each would wait for the other. It happens too
# rarely for a test (one run in fifty of eight ranks that call stats() after every operation), so
# the sources are checked.
WAITS = re.compile(r"\w(?:->|\(\)\.)(?:stats|trace|close|give_up|shutdown)\(")
RELEASES = re.compile(r"WithoutGil \w+;|gil_scoped_release")
# Run without Python's lock: on threads of Background, at exit, on objects that are not groups.
ELSEWHERE = {("fallback.cpp", "failure_of")}
FUNCTION = re.compile(r"^[\w:<>,&* ~]*?(\w+)\([^;]*$")


def functions(text: str) -> list[tuple[int, str, list[str]]]:
    """Returns line, name and lines of each function that begins in the first column."""
    found: list[tuple[int, str, list[str]]] = [(1, "", [])]
    for number, line in enumerate(text.splitlines(), 1):
        if (match := FUNCTION.match(line)) and not line.startswith((" ", "//", "#", "}")):
            found.append((number, match.group(1), []))
        found[-1][2].append(line)
    return found


def holds_lock(lines: list[str]) -> bool:
    """Returns whether a function waits for a lane before it has released Python's lock."""
    first = next((i for i, line in enumerate(lines) if WAITS.search(line)), None)
    return first is not None and not any(RELEASES.search(line) for line in lines[: first + 1])


def python_lock(tree: Tree, report: Report) -> None:
    waits = 0
    for name in tree.names(r"csrc/torch/[^/]*\.cpp"):
        for number, function, lines in functions(tree.read(name)):
            if (Path(name).name, function) not in ELSEWHERE:
                waits += any(WAITS.search(line) for line in lines)
                held = holds_lock(lines)
                report.check(not held, f"{name}:{number}", f"{function} waits with Python's lock")
    report.check(waits >= 6, "csrc/torch/backend.cpp:1", f"only {waits} functions seen to wait")


# -- imports: the modules of the package import each other in one direction only -----------------------


def modules(tree: Tree) -> dict[str, str]:
    found = {}
    for path in tree.names(r"torch_mcast/.*\.pyi?"):
        parts = Path(path).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, known: set[str]) -> dict[str, int]:
    """Returns the modules of `known` that import statements name, also inside functions, and the
    line. (The packages around a module, which Python also loads, do not count: they contain the
    modules below them.)"""
    named: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in known else str(node.module) for name in inner]
            if node.level:
                found.append(".")  # relative: never in `known`, but reported
        else:
            continue
        for name in found:
            if name in known or name == ".":
                named.setdefault(name, node.lineno)
    return named


def circle(graph: dict[str, dict[str, int]]) -> list[str]:
    """Returns the modules of a path back to the first one, or nothing."""
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph.get(module, {})):
            if found := follow(other, [*way, module]):
                return found
        done.add(module)
        return []

    for module in sorted(graph):
        if found := follow(module, []):
            return found
    return []


def imports(tree: Tree, report: Report) -> None:
    files = modules(tree)
    known = {*files, "torch_mcast._build_info"}  # written by the build
    graph = {}
    for name, path in files.items():
        named = imported(tree.read(path), known)
        report.check("." not in named, f"{path}:{named.pop('.', 1)}", "relative import")
        graph[name] = named
    count = sum(map(len, graph.values()))
    report.check(count > len(files), "torch_mcast/__init__.py:1", f"only {count} imports seen")
    found = circle(graph)
    where = f"{files[found[0]]}:{graph[found[0]][found[1]]}" if found else "torch_mcast:1"
    report.check(not found, where, f"circular import: {' -> '.join(found)}")


# -- seeds: tools/soak.py runs every simulated test that has seeds -------------------------------------

SUITE = re.compile(r'^    \("(\w+)", "(\S+)", ', re.M)
DRAWS = re.compile(r"^(?:TEST(?:_[FP])?|TYPED_TEST)\((\w+), (\w+)\)|[^\w](seeds\()", re.M)
# Tests over real sockets or between processes.
NOT_SIMULATED = {"host_engine", "runtime", "transport", "verbs"}


def selected(test: str, filters: list[str]) -> bool:
    """Whether one of GoogleTest's filters selects the test, also if it has parameters."""
    return any(fnmatch(name, f) for name in (test, f"X/{test}/0") for f in filters)


def seeds(tree: Tree, report: Report) -> None:
    run = SUITE.findall(tree.read("tools/soak.py"))
    for path in tree.names(r"tests/cpp/\w+/\w+_test\.cpp"):
        program, test = Path(path).parts[2], ""
        if program in NOT_SIMULATED:
            continue
        filters = [part for p, joined in run if p == program for part in joined.split(":")]
        text = tree.read(path)
        for match in DRAWS.finditer(text):
            if not match[3]:
                test = f"{match[1]}.{match[2]}"
            elif test:  # else a function that tests share
                there = selected(test, filters)
                number = line_of(text, match.start(3))
                report.check(there, f"{path}:{number}", f"tools/soak.py does not run {test}")


# -- left_out: tests that a step leaves out by name exist ----------------------------------------------

LEFT_OUT = {
    "tools/aarch64.sh": re.compile(r'^    (\w+)\) echo "([^"]+)"', re.M),
    "Makefile": re.compile(r"^(TWICE) := (\S+)", re.M),
}


def left_out(tree: Tree, report: Report) -> None:
    for path, pattern in LEFT_OUT.items():
        text = tree.read(path)
        for match in pattern.finditer(text):
            for part in match[2].replace("\\\n", "").split(":"):
                there = any(selected(test, [part]) for test in tree.tests)
                report.check(there, f"{path}:{line_of(text, match.start())}", f"no test {part}")
