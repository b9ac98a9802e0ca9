#!/usr/bin/env python3
"""Runs the Python tests of `make test` against an installed wheel instead of the checkout.

    tools/wheel_tests.py                        builds the wheel of this checkout and tests it
    tools/wheel_tests.py --wheel WHEEL          tests this wheel
    tools/wheel_tests.py ARGUMENTS              passes them to pytest: -x tests/python/test_ops.py

The wheel is installed without network into a fresh environment, which sees the packages of this one
(torch, pytest), but not its torch_mcast. The tests run in a copy of the tracked files without torch_mcast.
Both are below the temporary folder. The run fails if the tests import another torch_mcast
(tests/python/conftest.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import release
from release import ROOT, ReleaseError, run

# Tests of the checkout, which say nothing about the installed package, and what each of them needs.
OWN_TOOL = "tests a tool of the checkout"
OWN_BUILD = "builds and installs packages itself"
OWN_TESTS = "tests the tests' own support"
SOURCES = "uses a file of benchmarks/, which a wheel does not have"
LEFT_OUT = {
    "lab/test_bench_run.py::test_a_compiler_that_does_not_end_is_one_error": SOURCES,
    "test_built.py": OWN_TESTS,
    "test_cost_model_offload.py::test_json": SOURCES,
    "test_cost_model_offload.py::test_table": SOURCES,
    "test_deploy.py": "reads the files of containers and manifests",
    "test_fuzz_tool.py": OWN_TOOL,
    "test_install.py": OWN_BUILD,
    "test_lint_docs.py": OWN_TOOL,
    "test_lint_words.py": OWN_TOOL,
    "test_measures.py": OWN_TOOL,
    "test_mutant_package.py": OWN_TOOL,
    "test_pairwise.py": OWN_TESTS,
    "test_reach.py": OWN_TOOL,
    "test_reference.py": "compares pages with the sources",
    "test_release.py": OWN_BUILD,
    "test_site.py": "builds the docs site",
    "test_soak.py": OWN_TOOL,
    "test_timed.py": OWN_TOOL,
    "test_wheel.py": OWN_BUILD,
    "test_wheel_versions.py": OWN_BUILD,
}


def build(out: Path) -> Path:
    run(sys.executable, ROOT / "tools" / "wheel.py", "--out", out)
    (wheel,) = out.glob("*.whl")
    return wheel


def copy_of_tests(copy: Path) -> None:
    """Copies the tracked files without the package, and links to the files that the build made for
    tests. (tests/python/support/built.py compares times.)"""
    release.copy_tracked(copy, without="torch_mcast")
    made = Path("build", str(sys.implementation.cache_tag), "python_tests")
    (copy / made).parent.mkdir(parents=True)
    (copy / made).symlink_to(ROOT / made)


def variables(python: Path) -> dict[str, str]:
    """The environment of the tests, without paths that lead to this interpreter's torch_mcast."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    own = Path(sys.executable).parent
    folders = [path for path in os.get_exec_path() if Path(path).absolute() != own]
    package = next(python.parents[1].glob("lib/python3*/site-packages"))
    return {
        **kept,
        "PATH": os.pathsep.join([str(python.parent), *folders]),
        "MCAST_TEST_ALL": "0",
        "MCAST_TEST_PACKAGE": str(package),
    }


def test(wheel: Path, arguments: list[str], scratch: Path) -> int:
    python = release.environment(scratch / "env")
    # Without --no-deps: this fails if the environment lacks a requirement of the wheel.
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", wheel)
    torchrun = python.with_name("torchrun")
    torchrun.write_text(f'#!/bin/sh\nexec "{python}" -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    copy = scratch / "copy"
    copy_of_tests(copy)
    left_out = [f"tests/python/{name}" for name in LEFT_OUT]
    if gone := [name for name in left_out if not (copy / name.partition("::")[0]).exists()]:
        raise ReleaseError(f"LEFT_OUT has files that do not exist: {', '.join(gone)}")
    # Ignored files are not imported.
    options = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in left_out]
    print(f"testing {wheel.name} in {scratch}", flush=True)
    command = [str(python), "-m", "pytest", *options, *arguments]
    return subprocess.run(command, cwd=copy, env=variables(python), check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # other options are pytest's
    )
    parser.add_argument("--wheel", type=Path, help="the wheel to test [built from this checkout]")
    options, arguments = parser.parse_known_args()
    try:
        with tempfile.TemporaryDirectory(prefix="mcast_wheel_") as folder:
            scratch = Path(folder)
            scratch.chmod(0o755)  # tests run processes of other users
            wheel = options.wheel.resolve() if options.wheel else build(scratch / "dist")
            return test(wheel, arguments, scratch)
    except ReleaseError as error:
        print(f"tools/wheel_tests.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
