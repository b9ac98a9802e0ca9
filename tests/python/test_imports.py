"""The modules of the package import each other in one direction only, inside functions too."""

from __future__ import annotations

import ast
from pathlib import Path

import torch_mcast

PACKAGE = Path(torch_mcast.__file__).parent


def modules(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, known: set[str]) -> set[str]:
    """The modules of `known` that a source names in its import statements, wherever they stand. (The
    packages around a module, which Python also loads, are not meant: they gather what is below them.)"""
    named = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                named.add(inner if inner in known else str(node.module))
    return named & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that lead back to the first one, or nothing."""
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if found := follow(other, [*way, module]):
                return found
        done.add(module)
        return []

    for module in sorted(graph):
        if found := follow(module, []):
            return found
    return []


def test_imports_of_the_package_have_no_circle():
    files = modules(PACKAGE)
    assert {"torch_mcast", "torch_mcast.bench.peers", "torch_mcast.doctor.job"} <= files.keys()
    known = {*files, "torch_mcast._build_info"}  # which the build writes
    graph = {name: imports(path.read_text("utf-8"), known) for name, path in files.items()}
    graph["torch_mcast._build_info"] = set()
    assert sum(map(len, graph.values())) > len(files)  # it does see imports
    assert circle(graph) == []


def test_a_circle_is_found_inside_functions_too():
    known = {"p.a", "p.b", "p.c"}
    sources = {
        "p.a": "import p.b",
        "p.b": "def late():\n    from p import c\n    return c",
        "p.c": "from p.a import name",
    }
    graph = {name: imports(source, known) for name, source in sources.items()}
    assert circle(graph) == ["p.a", "p.b", "p.c", "p.a"]
    graph["p.c"] = set()
    assert circle(graph) == []
