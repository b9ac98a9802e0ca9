"""Files that the build makes for the tests are refused while they are missing or out of date."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from built import built


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Makes a source from time 10 and a library from time 20."""
    for name, seconds in (("a.cpp", 10), ("b.h", 10), ("library.so", 20)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    return tmp_path


def test_a_file_newer_than_its_sources_is_taken(tree):
    assert built("library.so", "*.cpp", "*.h", folder=tree, root=tree) == tree / "library.so"


def test_a_missing_file_names_the_target_that_makes_it(tree):
    with pytest.raises(RuntimeError, match=r"other\.so is missing: run `make build-python-tests`"):
        built("other.so", "*.cpp", folder=tree, root=tree)


@pytest.mark.parametrize("newer", ["a.cpp", "b.h"])
def test_a_file_older_than_a_source_is_refused(tree, newer):
    os.utime(tree / newer, (30, 30))
    with pytest.raises(RuntimeError, match=f"older than .*{newer}: run `make build-python-tests`"):
        built("library.so", "*.cpp", "*.h", folder=tree, root=tree)


def test_a_pattern_without_files_is_an_error(tree):
    with pytest.raises(AssertionError, match="no file matches"):
        built("library.so", "*.gone", folder=tree, root=tree)
