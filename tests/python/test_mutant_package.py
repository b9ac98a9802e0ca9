"""tools/mutant_package.py: the failing test of a pytest run, and the runs that contain all tests of
the rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))

from mutant_package import first_failure, selections

BEGUN = "tests/python/test_a.py::test_one[x y] PASSED [ 50%]\ntests/python/test_a.py::test_two "
FAILED = "FAILED tests/python/test_a.py::test_two[x y] - ValueError: a - b\n"


@pytest.mark.parametrize(
    ("output", "status", "hangs", "found"),
    [
        ("1 passed", 0, False, ""),
        (BEGUN + "FAILED\n" + FAILED, 1, False, "test_a.py::test_two[x y]"),
        ("ERROR tests/python/doctor/test_b.py - ImportError\n", 2, False, "doctor/test_b.py"),
        (BEGUN, 2, True, "test_a.py::test_two (hangs)"),
        (
            BEGUN + "\nFatal Python error: Aborted\n",
            -6,
            False,
            "test_a.py::test_two (ends with -6)",
        ),
        ("ImportError while loading conftest\n", 4, False, "pytest (does not start) (ends with 4)"),
    ],
)
def test_first_failure(output, status, hangs, found):
    assert first_failure(output, status, hangs) == found


def test_rows_of_one_file_and_environment_share_a_run():
    on = (("MCAST_X", "1"),)
    rows = [
        ("tests/python/test_a.py -k one", ()),
        ("tests/python/test_a.py -k 'two and not three'", ()),
        ("tests/python/test_a.py -k four", on),
        ("tests/python/test_b.py::test_x[1]", ()),
        ("tests/python/test_c.py", ()),
    ]
    assert selections(rows) == [
        ("'tests/python/test_b.py::test_x[1]' tests/python/test_c.py", {}),
        ("tests/python/test_a.py -k '(one) or (two and not three)'", {}),
        ("tests/python/test_a.py -k '(four)'", {"MCAST_X": "1"}),
    ]
