"""Programs and libraries that the build makes for the Python tests (cmake/TestExtensions.cmake)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / str(sys.implementation.cache_tag) / "python_tests"
MAKE = "run `make build-python-tests`"


def built(name: str, *sources: str, folder: Path = FOLDER, root: Path = ROOT) -> Path:
    """Returns the path of a built file. `sources` are patterns below the repository's root: tests
    must not pass with a file that is older than its sources."""
    file = folder / name
    if not file.exists():
        raise RuntimeError(f"{file} is missing: {MAKE}")
    found = [source for pattern in sources for source in root.glob(pattern)]
    assert found, f"no file matches {sources}"
    newest = max(found, key=lambda source: source.stat().st_mtime)
    if newest.stat().st_mtime > file.stat().st_mtime:
        raise RuntimeError(f"{file} is older than {newest}: {MAKE}")
    return file
