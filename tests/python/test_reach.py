"""tools/reach.py: the records of the C++ tests that it accepts."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "reach.py"


def load():
    spec = importlib.util.spec_from_file_location("reach", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(folder):
    done = subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def write(folder, name, counts):
    rows = [f"{counter} {count} {'Suite.Test' if count else '-'}" for counter, count in counts]
    (folder / name).write_text("\n".join(rows) + "\n")


def everything(reach):
    return reach.counters() + reach.points()


@pytest.fixture
def counters():
    reach = load()
    return [name for name in everything(reach) if name not in reach.EXCEPTIONS]


def test_processes_are_added_up(tmp_path, counters):
    reach = load()
    half = len(counters) // 2
    first, second = set(counters[:half]), set(counters[half:])
    write(tmp_path, "1-a.txt", [(c, 3 if c in first else 0) for c in everything(reach)])
    write(tmp_path, "2-b.txt", [(c, 5 if c in second else 0) for c in everything(reach)])
    (tmp_path / "3-c.txt.part").write_text("of a process that was killed\n")
    code, said = run(tmp_path)
    assert code == 0, said
    said_well = f"all {len(reach.counters())} counters and {len(reach.points())} points are reached"
    assert said_well in said


@pytest.mark.parametrize("which", [7, -1])
def test_a_counter_or_point_that_nothing_raises_is_an_error(tmp_path, counters, which):
    reach = load()
    missing = counters[which]
    write(
        tmp_path, "1-a.txt", [(c, int(c in counters and c != missing)) for c in everything(reach)]
    )
    code, said = run(tmp_path)
    assert code == 1
    assert said.strip() == f"{missing}: no C++ test makes it happen"


def test_files_of_another_build_are_refused(tmp_path, counters):
    assert run(tmp_path)[0] == 1, "an empty folder proves nothing"
    write(tmp_path, "1-a.txt", [(c, 1) for c in everything(load())[1:]])
    code, said = run(tmp_path)
    assert code == 1
    assert "an old run or build" in said


def test_a_counter_that_no_test_names_is_found(tmp_path):
    reach = load()
    assert reach.unnamed(["datagrams_sent", "no_such" + "_counter"]) == ["no_such" + "_counter"]
