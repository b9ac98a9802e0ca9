"""Copies of the whole package in which tools/mutants.py plants faults that pytest must detect.

Faults in torch_mcast/ are planted in build/mutants/package, which has the extension and the
programs that the work tree has built. Faults in csrc/torch/ are planted in build/mutants/adapter,
which builds its own extension. Each copy has its own virtual environment, in which torch_mcast is
the copy, whatever the working directory and the environment of a process are, and all other
packages are those of $VENV.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
NOT_COPIED = (":!tests/fuzz/corpus", ":!benchmarks/results")
# Ignored by git, created by the build.
BUILT = ("_C.*.so", "_build_info.py", "mcast-aggregator", "mcast-engine", "mcast-simulate")
FLAGS = ("-x", "-v", "--color=no", "--tb=short", "-p", "no:cacheprovider")
# Seconds that pytest may take at least: it imports torch first, and ranks that hang are given up after 75.
LEAST_LIMIT = 100
# Seconds for the tests of a group of rows without a fault.
SOUND_LIMIT = 900
NO_TESTS = 5  # pytest's exit status
SETTINGS = ("-DMCAST_BUILD_TORCH=ON", "-DMCAST_BUILD_TESTS=OFF", "-DMCAST_TORCH_QUICK=ON")


def write(path: Path, text: bytes) -> None:
    """Writes a file; unchanged files keep their times."""
    if path.is_file() and path.read_bytes() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)


def git_files(root: Path, *patterns: str) -> set[str]:
    command = ["git", "ls-files", "-zco", "--exclude-standard", "--", ".", *patterns]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return {name for name in listed.split("\0") if name and (root / name).is_file()}


def site_packages(environment: Path) -> Path:
    found = sorted(environment.glob("lib/python3*/site-packages"))
    if not found:
        sys.exit(f"{environment} is not a virtual environment: run make build, or set VENV")
    return found[0]


def home() -> Path:
    """The virtual environment with torch, pytest and the package."""
    return (ROOT / os.environ.get("VENV", ".venv")).absolute()


class PackageTree:
    def __init__(self, name: str, builds: bool) -> None:
        self.root = WORK / name
        self.builds = builds
        self.python = self.root / ".venv" / "bin" / "python"
        self._build = self.root / "build" / "mutant"

    def prepare(self, jobs: int) -> None:
        """Brings the copy up to date, builds its extension, and checks that Python imports the copy."""
        self._copy()
        self._make_environment()
        if self.builds:
            self._configure()
        wrong = self.build(jobs)
        if wrong:
            sys.exit(wrong)
        code = (
            "import torch_mcast; from torch_mcast._load import extension; "
            "print(torch_mcast.__file__, extension().__file__, sep='\\n')"
        )
        # From another folder, as tests start processes.
        done = subprocess.run([self.python, "-c", code], cwd="/", capture_output=True, text=True)
        places = [Path(line).parent for line in done.stdout.splitlines()[-2:]]
        if done.returncode != 0 or places != [self.root / "torch_mcast"] * 2:
            sys.exit(
                f"{self.python} does not import {self.root}/torch_mcast: {done.stdout}{done.stderr}"
            )

    def _copy(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        if not (self.root / ".git").is_dir():  # tests query git for the repository's files
            subprocess.run(["git", "init", "-q", self.root], check=True)
        names = git_files(ROOT, *NOT_COPIED)
        for name in names:
            write(self.root / name, (ROOT / name).read_bytes())
            (self.root / name).chmod((ROOT / name).stat().st_mode)
        for old in git_files(self.root) - names:
            (self.root / old).unlink()
        subprocess.run(["git", "add", "-A"], cwd=self.root, check=True)
        for pattern in BUILT:
            built = list((ROOT / "torch_mcast").glob(pattern))
            if not built:
                sys.exit(f"torch_mcast/{pattern} is missing: run make build")
            for file in built:
                copy = self.root / "torch_mcast" / file.name
                extension = pattern in BUILT[:2]  # files that the copy may build itself
                if not (extension and self.builds) and not same(copy, file):
                    copy.unlink(missing_ok=True)
                    shutil.copy2(file, copy)

    def _make_environment(self) -> None:
        """Packages come from $VENV; the copy comes first, before the link of an editable install."""
        venv = self.root / ".venv"
        if not self.python.exists():
            command = [str(home() / "bin" / "python"), "-m", "venv", "--without-pip", str(venv)]
            subprocess.run(command, check=True)
        before = f"{self.root}\nimport site; site.addsitedir({str(site_packages(home()))!r})\n"
        write(site_packages(venv) / "planted.pth", before.encode())
        for script in (home() / "bin").iterdir():
            text = script.read_bytes() if script.is_file() and not script.is_symlink() else b""
            if text.startswith(b"#!" + str(home()).encode()):
                mine = venv / "bin" / script.name
                write(mine, text.replace(str(home()).encode(), str(venv).encode(), 1))
                mine.chmod(0o755)

    def _configure(self) -> None:
        # The core is compiled with the same options as in the work tree, so ccache has it.
        cache = ROOT / "build" / "cpp" / "CMakeCache.txt"
        text = cache.read_text() if cache.is_file() else ""
        warnings = re.search(r"^MCAST_WERROR:\w+=(\w+)", text, re.MULTILINE)
        subprocess.run(
            [
                "cmake", "-S", self.root, "-B", self._build, "-G", "Ninja", *SETTINGS,
                f"-DMCAST_WERROR={warnings[1] if warnings else 'OFF'}",
                f"-DMCAST_EXTENSION_DIR={self.root / 'torch_mcast'}",
                f"-DPython3_EXECUTABLE={home() / 'bin' / 'python'}",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def build(self, jobs: int) -> str:
        """Returns the compiler's output if it fails, else an empty string."""
        if not self.builds:
            return ""
        done = subprocess.run(
            ["ninja", "-C", self._build, "-j", str(jobs), "mcast_torch"],
            capture_output=True,
            text=True,
            # ccache has a source that got its old text back.
            env={**os.environ, "CCACHE_SLOPPINESS": "pch_defines,time_macros"},
        )
        return "" if done.returncode == 0 else done.stdout

    def failing(self, tests: str, limit: int, environment: Mapping[str, str]) -> str:
        """Returns the first test that fails, "" if none does."""
        variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "MCAST_MUTANT": mark()}
        # The tests of make test must detect it.
        variables.pop("MCAST_TEST_ALL", None)
        variables |= environment
        output = self.root / "build" / "pytest.log"
        output.parent.mkdir(exist_ok=True)
        with output.open("wb") as log:
            run = subprocess.Popen(
                [self.python, "-m", "pytest", *FLAGS, *shlex.split(tests)],
                stdout=log, stderr=subprocess.STDOUT, env=variables, cwd=self.root,
                start_new_session=True,
            )  # fmt: skip
            hangs = False
            try:
                run.wait(limit)
            except subprocess.TimeoutExpired:
                hangs = True
                run.send_signal(signal.SIGINT)  # fixtures remove their namespaces and processes
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(20)
            finally:
                end_all(variables["MCAST_MUTANT"])
                run.wait()
        if not hangs and run.returncode == NO_TESTS:
            sys.exit(f"pytest selects no test: {tests}")
        return first_failure(output.read_text(errors="replace"), run.returncode, hangs)


def same(copy: Path, file: Path) -> bool:
    if not copy.is_file():
        return False
    a, b = copy.stat(), file.stat()
    return (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)


def mark() -> str:
    return f"{os.getpid()}-{time.monotonic_ns()}"


def end_all(run: str) -> None:
    """Kills the processes that a run of pytest has left: their environment contains its mark."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"MCAST_MUTANT={run}\0".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def first_failure(output: str, status: int, hangs: bool) -> str:
    """Returns the first failed item in pytest's output, below tests/python; "" if none failed."""
    if status == 0 and not hangs:
        return ""
    found = None
    if not hangs:
        pattern = r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - .*)?$"
        found = re.search(pattern, output, re.MULTILINE)
    how = "" if found else " (hangs)" if hangs else f" (ends with {status})"
    if found is None:  # items are named when they begin
        *_, found = [
            None,
            *re.finditer(r"^(\S+\.py::.*?)(?: (?:PASSED|FAILED|ERROR).*)?$", output, re.MULTILINE),
        ]
    item = found[1].strip().removeprefix("tests/python/") if found else "pytest (does not start)"
    return item.replace("|", "\\|") + how


def selections(
    rows: Iterable[tuple[str, tuple[tuple[str, str], ...]]],
) -> list[tuple[str, dict[str, str]]]:
    """Returns a few runs of pytest that contain all tests of these rows: arguments and environment
    of each."""
    whole: dict[tuple[tuple[str, str], ...], set[str]] = {}
    parts: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], set[str]] = {}
    for tests, environment in rows:
        words = shlex.split(tests)
        if "-k" not in words:
            whole.setdefault(environment, set()).update(words)
            continue
        at = words.index("-k")
        place = (*words[:at], *words[at + 2 :])
        parts.setdefault((place, environment), set()).add(words[at + 1])
    runs = [(shlex.join(sorted(words)), dict(environment)) for environment, words in whole.items()]
    for (place, environment), expressions in parts.items():
        joined = " or ".join(f"({expression})" for expression in sorted(expressions))
        runs.append((shlex.join([*place, "-k", joined]), dict(environment)))
    return runs
