"""The wheels of all supported minor versions of torch, each with its own Python. The tier of all
tests builds each without warnings, installs it on a system without a compiler, and runs tests of
this folder with it.

An environment with a torch from pip's own index takes 5 GB, one from the index of CPU builds 1 GB
(MCAST_TORCH_INDEX, see tools/setup.sh). They are kept in build/versions, or in the folder that
MCAST_TEST_VERSIONS names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
import xml.etree.ElementTree as xml
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("MCAST_TEST_VERSIONS", ROOT / "build" / "versions"))

# The newest of each minor, with a Python each; this repository's own environment has 2.13.0 with
# another one.
PAIRS = [
    ("2.11.0", "3.10"),
    ("2.12.1", "3.11"),
    ("2.13.0", "3.12"),
    ("2.14.1", "3.13"),
    ("2.15.0", "3.14"),
]

COLLECTIVES = [
    f"{test}[{path}-3]"
    for test in (
        "test_ops.py::test_all_gather_into_tensor",
        "test_ops.py::test_broadcast",
        "test_reduce.py::test_float32_sum",
        "test_exchange.py::test_all_to_all_single",
    )
    for path in ("network", "host")
]
TRAINING = [
    f"test_training.py::test_parity_with_gloo[{path}-fsdp2_fp32]" for path in ("network", "host")
]
MESSAGES = [
    f"test_point_to_point.py::test_every_dtype_and_size_arrives_by_the_engine[{path}]"
    for path in ("network", "host")
]
MISMATCH = [f"test_work.py::test_mismatch[{path}]" for path in ("network", "host")]

pytestmark = [
    pytest.mark.machine_network,
    pytest.mark.all_tier,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="wheels are for x86-64"),
]


def tried(*command: str | Path, **options) -> tuple[bool, str]:
    """Returns whether it succeeded, and its output."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, **options,
    )  # fmt: skip
    return done.returncode == 0, done.stdout


def run(*command: str | Path, **options) -> str:
    """Returns its output, which is the message if it fails."""
    good, said = tried(*command, **options)
    assert good, f"{' '.join(map(str, command))}:\n{said[-6000:]}"
    return said


def minor_of(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def good_for(python: Path, version: str) -> bool:
    """Returns whether it has this version, can make environments and has headers."""
    question = (
        "import ensurepip, os, sys, sysconfig\n"
        f"assert '%d.%d' % sys.version_info[:2] == {version!r}\n"
        "assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))"
    )
    return tried(python, "-c", question)[0]


def interpreter(version: str) -> Path | None:
    """Finds it on PATH, or in pyenv, whose commands on PATH work for chosen versions only."""
    found = [Path(name)] if (name := shutil.which(f"python{version}")) else []
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found += sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    return next((python for python in found if good_for(python, version)), None)


def environment(version: str, wanted: str) -> Path:
    """Makes an environment with this torch and everything it needs. Returns its interpreter. The
    user's settings of pip apply, since a machine that gets its packages elsewhere needs them."""
    python, of = wanted, interpreter(wanted)
    if of is None:
        python, of = f"{sys.version_info[0]}.{sys.version_info[1]}", Path(sys.executable)
        text = f"no Python {wanted} with headers here: torch {version} is tested with {python}"
        warnings.warn(text, stacklevel=1)
    folder = FOLDER / f"torch-{version}-python{python}"
    good, said = tried(
        ROOT / "tools" / "setup.sh", "torch",
        env={**os.environ, "VENV": str(folder), "PYTHON": str(of), "TORCH": f"torch=={version}"},
    )  # fmt: skip
    # setup.sh makes pip quiet. Installed packages are not fetched again.
    asked = (folder / "bin" / "python", "-m", "pip", "install", "--dry-run", "--no-deps")
    if capped := re.search(r"\(constraint\) (torch\b.*)", tried(*asked, f"torch=={version}")[1]):
        pytest.skip(f"pip is told here, as a constraint, to take {capped[1]}")
    assert good, said
    return folder / "bin" / "python"


@dataclass
class Installed:
    """A wheel in its own environment, which sees the torch of another one."""

    version: str
    torchs: Path
    wheel: Path
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Programs are hidden, and modules except those of the environment."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name not in ("PYTHONPATH", "MCAST_TEST_ALL")
        }
        return {**kept, "PATH": str(self.folder / "nothing")}

    def install(self) -> None:
        (self.folder / "nothing").mkdir(parents=True)
        run(self.torchs, "-m", "venv", self.folder / "venv")
        site = "import sysconfig; print(sysconfig.get_path('purelib'))"
        theirs = run(self.torchs, "-c", site).strip()
        Path(run(self.python, "-c", site).strip(), "torch.pth").write_text(theirs)
        pip = (self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "pytest>=8", "pytest-xdist>=3.5")
        # Without downloads: the requirements of the wheel are installed, or this fails.
        run(*pip, "--no-index", self.wheel, env=self.variables())

    @cached_property
    def results(self) -> dict[str, str]:
        """Returns for each test that ran "" if it passed, else the reason."""
        tests = [*COLLECTIVES, *TRAINING, *MESSAGES, *MISMATCH]
        report = self.folder / "report.xml"
        done = subprocess.run(
            [self.python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml",
             "--rootdir", ROOT, "--junitxml", report,
             *(ROOT / "tests" / "python" / test for test in tests)],
            cwd=self.folder / "nothing", env=self.variables(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert report.exists(), done.stdout + done.stderr
        found = {}
        for case in xml.parse(report).iter("testcase"):
            module = case.get("classname", "").rpartition(".")[2]
            wrong = [f"{child.tag}: {child.get('message')}\n{child.text}" for child in case]
            found[f"{module}.py::{case.get('name')}"] = "\n".join(wrong)
        return found

    def passed(self, tests: list[str]) -> None:
        for test in tests:
            assert test in self.results, f"{test} did not run: {sorted(self.results)}"
            assert self.results[test] == "", f"{test}: {self.results[test]}"


# pip may be told, as a constraint, to take an older torch than the newest.
CASES = [pytest.param(pair, marks=pytest.mark.not_everywhere) for pair in PAIRS[-1:]]


@pytest.fixture(
    scope="module",
    params=[*PAIRS[:-1], *CASES],
    ids=[f"torch {version}, Python {python}" for version, python in PAIRS],
)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    version, python = request.param
    folder = tmp_path_factory.mktemp("installed")
    torchs = environment(version, python)
    built = run(
        torchs, ROOT / "tools" / "wheel.py", "--out", folder / "dist",
        env={**os.environ, "MCAST_WERROR": "1"},
    )  # fmt: skip
    found = Installed(version, torchs, Path(built.strip().splitlines()[-1]), folder)
    found.install()
    return found


def test_a_wheel_installs_where_no_compiler_is(installed):
    question = (
        "import json, shutil, sys, torch, torch_mcast\n"
        "from torch_mcast import _C\n"
        "compilers = [c for c in ('c++', 'g++', 'clang++', 'cc', 'gcc', 'ld') if shutil.which(c)]\n"
        "print(json.dumps([torch.__version__, _C.torch_version, sys.version_info[:2], compilers,"
        " torch_mcast.__file__]))"
    )
    told = run(installed.python, "-c", question, cwd=installed.folder, env=installed.variables())
    theirs, built_for, python, compilers, file = json.loads(told.splitlines()[-1])
    assert theirs.split("+")[0] == built_for.split("+")[0] == installed.version
    assert compilers == []
    assert Path(file).is_relative_to(installed.folder / "venv")
    tag = f"cp{python[0]}{python[1]}"
    minor = minor_of(installed.version)
    assert (
        installed.wheel.name
        == f"torch_mcast-0.1.0+torch{minor}-{tag}-{tag}-manylinux_2_28_x86_64.whl"
    )


def test_collectives_of_random_bytes_give_what_each_rank_expects(installed):
    installed.passed(COLLECTIVES)


def test_fsdp2_trains_as_with_gloo(installed):
    installed.passed(TRAINING)


def test_messages_arrive_with_each_wheel(installed):
    installed.passed(MESSAGES)


def test_a_mismatch_is_named(installed):
    installed.passed(MISMATCH)


def test_another_minor_of_torch_is_refused_by_name(installed):
    """The torch is that of this environment; if it is of the same minor, it is given another version."""
    with zipfile.ZipFile(installed.wheel) as archive:
        archive.extractall(installed.folder / "unpacked")
    other = str(torch.__version__)
    if minor_of(other) == minor_of(installed.version):
        other = "2.99.0"
    program = (
        f"import torch; torch.__version__ = {other!r}\n"
        "import torch.distributed as dist, torch_mcast; print(torch_mcast.__file__)\n"
        "dist.init_process_group('mcast', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=installed.folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(installed.folder / "unpacked")},
    )  # fmt: skip
    assert str(installed.folder / "unpacked") in done.stdout, done.stdout + done.stderr
    assert done.returncode != 0
    built_for = re.search(r"torch_mcast was built for torch (\S+), but torch (\S+) is", done.stderr)
    assert built_for, done.stderr
    assert built_for[1].split("+")[0] == installed.version and built_for[2] == other
    assert (
        f"Take the wheel whose version ends in +torch{minor_of(other)}, or build it" in done.stderr
    )
