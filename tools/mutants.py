#!/usr/bin/env python3
"""Plants faults into a copy of the sources, one after the other, and shows which test catches each.

The faults are in tests/mutant_list*.py. C++ tests judge those in the core, Python tests those in
the package and in the extension (tools/mutant_package.py). Otherwise a test that passes whatever
the code does would go unnoticed. A fault that no test of its filter catches is tried on all C++
tests (--whole), is reported as a survivor and makes the exit status 1: then a test is missing.

All files are in build/mutants; ccache keeps compiled sources for the next run. Each row of
docs/mutants.md is from the last run that planted its fault.
"""

import argparse
import ast
import fcntl
import fnmatch
import functools
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from mutant import Mutant  # noqa: E402
from mutant_list import MUTANTS  # noqa: E402
from mutant_package import LEAST_LIMIT, SOUND_LIMIT, PackageTree, selections, write  # noqa: E402

WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
PACKAGE = PackageTree("package", builds=False)
ADAPTER = PackageTree("adapter", builds=True)
BUILD = WORK / "build"
TREES = ("core", "adapter", "package")
REPORT = ROOT / "docs" / "mutants.md"
# Seconds for the tests of a program as a whole: a longer run hangs.
PROGRAM_LIMIT = 400
COPIED = (
    "csrc/aggregation",
    "csrc/assembly",
    "csrc/core",
    "csrc/daemon",
    "csrc/dpa",
    "csrc/host_engine",
    "csrc/programs",
    "csrc/sim",
    "tests/cpp",
    "tests/data",
    "tests/fuzz/*.cpp",
    "tests/fuzz/*.h",
    "cmake",
    "CMakeLists.txt",
    "torch_mcast/__init__.py",  # the version
    "benchmarks/dpa-counts.json",
)
SETTINGS = (
    "-DMCAST_JOIN=8",  # a change costs a batch of eight; one in a header, little more
    "-DMCAST_BUILD_TESTS=ON",
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS_DEBUG=-O1",  # without debug information: quick to compile and to link
)
PROGRAMS = (
    "base", "wire", "protocol", "crypto", "transport", "verbs", "aggregation", "collective",
    "security", "shm", "runtime", "daemon", "host_engine", "dpa", "offload", "sim",
)  # fmt: skip
# The same in every run, and as few as `make test` has: most faults show with any seed.
ENVIRONMENT = {"MCAST_TEST_BASE": "1", "MCAST_TEST_SEEDS": "12"}

HEAD = """# Mutants

Faults that `make mutants` plants one at a time, and the test that notices each: written by
`tools/mutants.py` from `tests/mutant_list*.py`, each row by the last run that planted its fault. Files
are below `csrc/core` if not in `csrc/torch` or `torch_mcast`, Python tests below `tests/python`.

| fault | in | caught by | seconds |
|---|---|---|---|
"""


def copy_tree() -> None:
    """Copies the files that CMake needs from the work tree; unchanged files keep their times."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *COPIED],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    names = {name for name in listed if (ROOT / name).is_file()}
    for name in names:
        write(TREE / name, (ROOT / name).read_bytes())
        (TREE / name).chmod((ROOT / name).stat().st_mode)
    for old in TREE.rglob("*"):
        if old.is_file() and str(old.relative_to(TREE)) not in names:
            old.unlink()


def configure() -> None:
    subprocess.run(
        ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", *SETTINGS],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def build(programs: list[str], jobs: int) -> str:
    """Returns the compiler's output if it fails, else an empty string."""
    targets = [f"mcast_test_{program}" for program in programs]
    done = subprocess.run(
        ["ninja", "-C", BUILD, "-j", str(jobs), *targets],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return "" if done.returncode == 0 else done.stdout


def failing(program: str, tests: str, limit: int, environment: dict[str, str] | None = None) -> str:
    """Returns the first test of the program that fails, "" if none does."""
    run = subprocess.Popen(
        [BUILD / f"mcast_test_{program}", f"--gtest_filter={tests}", "--gtest_fail_fast"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        cwd=WORK,  # failing plans of the swarm are left there
        start_new_session=True,  # tests have processes of their own: they end together
    )
    hangs = False
    try:
        said, _ = run.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        hangs = True
        os.killpg(run.pid, signal.SIGKILL)
        said, _ = run.communicate()
    finally:
        if run.poll() is None:  # Ctrl-C: in their own session they would continue
            os.killpg(run.pid, signal.SIGKILL)
    failed = re.search(r"^\[  FAILED  \] (\S+?),? ", said + " ", re.MULTILINE)
    if failed:
        return failed[1]
    # The last count: some tests start this program again, without tests.
    passed = re.findall(r"^\[  PASSED  \] (\d+) test", said, re.MULTILINE)
    if run.returncode == 0 and passed and int(passed[-1]) > 0:
        return ""
    started = re.findall(r"^\[ RUN      \] (\S+)", said, re.MULTILINE)
    if not started:
        return "" if run.returncode == 0 else f"{program} (does not start)"
    return f"{started[-1]} ({'hangs' if hangs else f'ends with {run.returncode}'})"


def whole(jobs: int) -> str:
    """Returns the first failure of all programs."""
    if build(list(PROGRAMS), jobs):
        return ""
    return next(filter(None, (failing(p, "*", PROGRAM_LIMIT) for p in PROGRAMS)), "")


def package_of(mutant: Mutant) -> PackageTree | None:
    """Returns the package in which pytest judges it; None if a C++ program does."""
    if mutant.program != "pytest":
        return None
    return PACKAGE if mutant.path.startswith("torch_mcast/") else ADAPTER


def tree_of(mutant: Mutant) -> str:
    package = package_of(mutant)
    return "core" if package is None else "adapter" if package.builds else "package"


def build_for(mutant: Mutant, jobs: int) -> str:
    package = package_of(mutant)
    return package.build(jobs) if package else build([mutant.program], jobs)


def judge(mutant: Mutant, part: int = 1) -> str:
    """Returns the first failure among the mutant's tests, which may take a `part`-th of their limit."""
    package = package_of(mutant)
    environment = dict(mutant.environment)
    if package:
        return package.failing(mutant.tests, max(mutant.limit, LEAST_LIMIT) // part, environment)
    return failing(mutant.program, mutant.tests, mutant.limit // part, environment)


def try_mutant(mutant: Mutant, jobs: int, all_tests: bool) -> str:
    """Returns the test that catches it; "" if it survives."""
    package = package_of(mutant)
    file = (package.root if package else TREE) / mutant.path
    sound = file.read_text()
    file.write_text(sound.replace(mutant.old, mutant.new))
    try:
        wrong = build_for(mutant, jobs)
        if wrong:
            sys.exit(f"{mutant.name} does not compile:\n{wrong}")
        caught = judge(mutant)
        if not caught and all_tests and not package:
            caught = whole(jobs)
    finally:
        file.write_text(sound)
    if caught.endswith("(hangs)"):
        check_time(mutant, jobs)
    return caught


def check_time(mutant: Mutant, jobs: int) -> None:
    """Checks that the fault causes the hang: without it the same tests end in half of their limit."""
    wrong = build_for(mutant, jobs)
    slow = judge(mutant, 2)
    if wrong or slow:
        sys.exit(f"{mutant.name}: without the fault {wrong or slow}: give it a longer limit")


def check_places(mutants: list[Mutant]) -> None:
    wrong = []
    for m in mutants:
        path = ROOT / m.path
        found = path.read_text().count(m.old) if path.is_file() else 0
        if found != 1:
            wrong.append(f"{m.name}: its text is {found} times in {m.path}, not once")
        if m.program != "pytest" and (unknown := unknown_tests(m)):
            wrong.append(
                f"{m.name}: no test in tests/cpp/{m.program} is called {', '.join(unknown)}"
            )
    if wrong:
        sys.exit("\n".join([*wrong, "The code has changed: adapt tests/mutant_list*.py."]))


TESTS = re.compile(
    r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)|^TYPED_TEST(?:_P)?\(\s*(\w+),\s*(\w+)", re.M
)


@functools.cache
def tests_of(program: str) -> dict[str, list[str]]:
    """Returns the tests ("Suite.Name") by source, from the root of the repository."""
    folders = ("offload", "collective") if program == "offload" else (program,)  # cmake/Dpa.cmake
    return {
        str(path.relative_to(ROOT)): [
            f"{a or c}.{b or d}" for a, b, c, d in TESTS.findall(path.read_text())
        ]
        for folder in folders
        for path in sorted((ROOT / "tests" / "cpp" / folder).glob("*.cpp"))
    }


def without_parameters(pattern: str) -> str:
    """Returns the filter "Instance/Suite.Name/parameter" as "Suite.Name"."""
    suite, dot, name = pattern.partition(".")
    return suite.rpartition("/")[2] + dot + name.partition("/")[0]


def unknown_tests(mutant: Mutant) -> list[str]:
    """Returns the parts of a filter of GoogleTest that no test of its program matches."""
    names = list(itertools.chain.from_iterable(tests_of(mutant.program).values()))
    return [
        part
        for part in mutant.tests.split(":")
        if not fnmatch.filter(names, without_parameters(part))
    ]


def test_files(mutant: Mutant) -> set[str]:
    """Sources of its tests, from the root of the repository; of all tests of its program if none is found."""
    if mutant.program == "pytest":
        words = shlex.split(mutant.tests)
        return {word.partition("::")[0] for word in words if word.startswith("tests/")}
    patterns = [without_parameters(part) for part in mutant.tests.split(":")]
    files = tests_of(mutant.program)
    found = {
        path
        for path, names in files.items()
        if any(fnmatch.filter(names, pattern) for pattern in patterns)
    }
    return found or set(files)


def bare(path: str, text: str) -> str:
    """The code without comments, docstrings and layout."""
    if not path.endswith(".py"):
        return " ".join(re.sub(r"//[^\n]*", "", text).split())
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.dump(tree)


class Changes:
    """Which files have another code now than in a commit."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bool] = {}

    def changed(self, commit: str, path: str) -> bool:
        if (commit, path) not in self._known:
            then = subprocess.run(
                ["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True
            )
            now = ROOT / path
            self._known[commit, path] = (
                then.returncode != 0
                or not now.is_file()
                or bare(path, then.stdout) != bare(path, now.read_text())
            )
        return self._known[commit, path]


def stale(mutants: list[Mutant]) -> list[Mutant]:
    """Those without a row, and those whose file or tests had other code when their row was committed."""
    blame = subprocess.run(
        ["git", "blame", "-s", "-l", "--", str(REPORT.relative_to(ROOT))],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    row = re.compile(r"^\^?([0-9a-f]+) +\d+\) \| ([a-z0-9-]+) \| `", re.MULTILINE)
    written = {m[2]: m[1] for m in row.finditer(blame)}
    changes = Changes()

    def is_stale(mutant: Mutant) -> bool:
        commit = written.get(mutant.name, "")
        if not commit.strip("0"):  # no row, or one that is not committed
            return True
        return any(changes.changed(commit, path) for path in (mutant.path, *test_files(mutant)))

    return [mutant for mutant in mutants if is_stale(mutant)]


def check_rows(rows: dict[str, str]) -> None:
    """Checks that each fault was planted once, and caught, and that no row is left of a removed fault."""
    wrong = [f"{m.name} has no row" for m in MUTANTS if m.name not in rows]
    wrong += [f"{name} is no fault" for name in sorted(set(rows) - {m.name for m in MUTANTS})]
    wrong += [f"{name} was not caught" for name, row in rows.items() if "**nothing**" in row]
    if wrong:
        sys.exit("\n".join([*wrong, f"{REPORT.relative_to(ROOT)}: run tools/mutants.py --new"]))


def prepare(mutants: list[Mutant], jobs: int) -> None:
    """Makes the trees that these faults need, and checks that without a fault their tests pass."""
    for package in (PACKAGE, ADAPTER):
        rows = {(m.tests, m.environment): None for m in mutants if package_of(m) is package}
        if rows:
            package.prepare(jobs)
        for tests, environment in selections(rows):
            failed = package.failing(tests, SOUND_LIMIT, environment)
            if failed:
                sys.exit(
                    f"{failed} fails without any fault ({tests}; see {package.root}/build/pytest.log)"
                )
    core = [m for m in mutants if package_of(m) is None]
    if core:
        copy_tree()
        configure()
        check_sound(core, jobs)


def check_sound(mutants: list[Mutant], jobs: int) -> None:
    """Checks that without a fault every test passes, and that every filter names some."""
    filters: dict[str, set[str]] = {}
    for m in mutants:
        filters.setdefault(m.program, set()).update(m.tests.split(":"))
    wrong = build(list(filters), jobs)
    if wrong:
        sys.exit(wrong)
    for m in mutants:
        command = [str(BUILD / f"mcast_test_{m.program}"), "--gtest_list_tests"]
        command.append(f"--gtest_filter={m.tests}")
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if "\n  " not in listed:
            sys.exit(f"{m.name}: no test of mcast_test_{m.program} is called {m.tests}")
    for program, tests in filters.items():
        failed = failing(program, ":".join(sorted(tests)), PROGRAM_LIMIT)
        if failed:
            sys.exit(f"{failed} fails without any fault")


def report() -> dict[str, str]:
    """Returns the existing rows, by their fault."""
    text = REPORT.read_text() if REPORT.is_file() else ""
    return {m[1]: m[0] + "\n" for m in re.finditer(r"^\| ([a-z0-9-]+) \| `.*$", text, re.MULTILINE)}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--only", metavar="NAME", action="append", help="this fault, not all")
    options.add_argument(
        "--new", action="store_true", help="those that no row of docs/mutants.md says are caught"
    )
    options.add_argument(
        "--stale",
        action="store_true",
        help="those whose file or tests have changed since their row was committed",
    )
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the compiler")
    options.add_argument(
        "--list",
        action="store_true",
        help="names the faults; an error where the code has changed, or a fault was never caught",
    )
    options.add_argument(
        "--tree", choices=TREES, help="faults of this tree, not of all side by side"
    )
    options.add_argument("--whole", action="store_true", help="survivors meet all C++ tests")
    given = options.parse_args()
    rows = report()
    mutants = [m for m in MUTANTS if not given.only or m.name in given.only]
    unknown = set(given.only or ()) - {m.name for m in mutants}
    if given.new:
        mutants = [m for m in mutants if "**nothing**" in rows.get(m.name, "**nothing**")]
    if given.stale:
        mutants = stale(mutants)
    if given.list:
        check_places(mutants)
        check_rows(rows)
        print("\n".join(f"{m.name:50} {m.file}" for m in mutants))
        return 0
    if unknown:
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; see --list")
    check_places(mutants)
    WORK.mkdir(parents=True, exist_ok=True)
    if not given.tree:
        return side_by_side(mutants)
    mutants = [m for m in mutants if tree_of(m) == given.tree]
    began = time.monotonic()
    prepare(mutants, given.jobs)
    print(
        f"{given.tree}: all tests pass without a fault ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    survivors = []
    for m in mutants:
        start = time.monotonic()
        caught = try_mutant(m, given.jobs, given.whole)
        seconds = f"{time.monotonic() - start:.0f}"
        print(f"{m.name:50} {caught or 'SURVIVES':60} {seconds:>4}", flush=True)
        record(m, f"| {m.name} | `{m.file}` | {caught or '**nothing**'} | {seconds} |\n")
        if not caught:
            survivors.append(m.name)
    print(f"{given.tree}: {len(mutants) - len(survivors)} of {len(mutants)} caught", end="")
    print(f" in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


def side_by_side(mutants: list[Mutant]) -> int:
    """One process for each tree with faults: ranks of Python tests often wait while another tree compiles."""
    trees = [tree for tree in TREES if any(tree_of(m) == tree for m in mutants)]
    command = [sys.executable, __file__, *sys.argv[1:], "--tree"]
    running = [subprocess.Popen([*command, tree]) for tree in trees]
    return max((process.wait() for process in running), default=0)


def record(mutant: Mutant, row: str) -> None:
    """Writes the row into the report, which the processes of other trees write too."""
    with (WORK / "report.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = report() | {mutant.name: row}
        REPORT.write_text(HEAD + "".join(rows[k.name] for k in MUTANTS if k.name in rows))


if __name__ == "__main__":
    sys.exit(main())
