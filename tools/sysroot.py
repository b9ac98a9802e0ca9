"""The older system that tools/wheel.py compiles against, and the compiler's options for it.

A binary asks for the newest version of each symbol of the C library that it was linked against. So the
compiler of this machine, which knows C++20, gets the C headers and the libraries of Ubuntu 18.04 (glibc
2.27, GCC 8), which is older than manylinux_2_28 (PEP 600). They are listed by hash in tools/sources.tsv and
unpacked below build/wheel. What libstdc++ has got since GCC 8 is linked in from this compiler's archive, as
in Red Hat's gcc-toolset. Highway and the checksums of ISA-L are compiled here and linked in, too (NOTICE
says what).

The compiler is g++, or Debian's cross compiler (aarch64-linux-gnu-g++) for another machine than this one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import sources

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel"
MACHINES = ("x86_64", "aarch64")
HERE = platform.machine()
# Below usr/include: this compiler's own configuration of its library, changed for the older system.
CONFIG = "c++config"
CONFIG_HEADER = "bits/c++config.h"
# Headers of the kernel are backward compatible; those of rdma-core describe libraries that are
# loaded by name.
KERNEL_HEADERS = ("linux", "asm-generic", "asm")
RDMA_HEADERS = ("rdma", "infiniband")
# Features that this compiler's libstdc++ has found in its C library, and that glibc 2.28 lacks.
NEWER = ("_GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT", "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
         "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK")  # fmt: skip
# A variable of glibc 2.32 that this compiler's libstdc++ may read. 0: there may be other threads.
SINGLE_THREADED = "char __libc_single_threaded = 0;\n"


class WheelError(Exception):
    """A failure, described for the user in one line."""


class Sysroot(NamedTuple):
    machine: str  # x86_64, aarch64
    root: Path
    headers: list[Path]  # all folders that the compiler searches, in this order

    @property
    def libraries(self) -> Path:
        return self.root / "usr/lib" / triplet(self.machine)

    def flags(self, language: str) -> list[str]:
        """Of the compiler, for "c" or "c++". They name all folders, since a cross compiler would search the
        headers of its own C library first."""
        folders = [
            folder for folder in self.headers if language == "c++" or "c++" not in str(folder)
        ]
        given = [word for folder in folders for word in ("-isystem", str(folder))]
        return [
            f"--sysroot={self.root}",
            "-nostdinc",
            *(["-nostdinc++"] if language == "c++" else []),
            *given,
        ]


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


def triplet(machine: str) -> str:
    return f"{machine}-linux-gnu"


def tool(name: str, machine: str) -> str:
    """The name of a program of the compiler for this machine: g++, gcc, ar, strip."""
    return name if machine == HERE else f"{triplet(machine)}-{name}"


def checked_compiler(machine: str) -> None:
    if shutil.which(tool("g++", machine)) is None:
        raise WheelError(
            f"wheels for {machine} need {tool('g++', machine)} "
            f"(Debian, Ubuntu: apt-get install g++-{triplet(machine).replace('_', '-')})"
        )


def unpack(machine: str, root: Path) -> None:
    """Unpacks the older system. Packages for a cross compiler have their files below usr/aarch64-linux-gnu;
    links to those are made where a system has them."""
    for package in sources.listed(f"sysroot-{machine}"):
        run("dpkg-deb", "-x", sources.fetched(package, WORK / "packages"), root)
    relative_links(root)
    own = root / "usr" / triplet(machine)
    if own.is_dir():
        (root / "usr/lib").mkdir(exist_ok=True)
        (root / "usr/lib" / triplet(machine)).symlink_to(f"../{triplet(machine)}/lib")
        (root / "usr/include").symlink_to(f"{triplet(machine)}/include")


def relative_links(root: Path) -> None:
    """Makes links of an unpacked system point into it, not into this machine's."""
    for link in root.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.lstrip("/"), link.parent))


def link_headers(machine: str, include: Path) -> None:
    """Links to this machine's headers of the kernel and of rdma-core."""
    here = Path("/usr/include")
    own = (Path("/usr") / triplet(machine) / "include", here / triplet(machine), here)
    for name, folders in [(n, own) for n in KERNEL_HEADERS] + [(n, (here,)) for n in RDMA_HEADERS]:
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if found is None:
            raise WheelError(f"{folders[0] / name} is missing: run tools/setup.sh wheel")
        (include / name).unlink(missing_ok=True)
        (include / name).symlink_to(found)


def compilers_headers(machine: str, root: Path) -> list[Path]:
    """The folders that belong to the compiler: those of the C++ library and of its built-in headers."""
    told = run(
        tool("g++", machine), f"--sysroot={root}", "-E", "-v", "-x", "c++", "/dev/null",
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    searched = told.partition("#include <...> search starts here:\n")[2].partition("End of search")[
        0
    ]
    folders = [Path(line.strip()).resolve() for line in searched.splitlines()]
    return [
        folder
        for folder in folders
        if not folder.is_relative_to(root) and not (folder / "features.h").exists()
    ]


def described(machine: str, root: Path) -> Sysroot:
    """The compiler's folders, with the changed configuration of its library, then the older system's."""
    include = root / "usr/include"
    own = [
        include / CONFIG if (folder / CONFIG_HEADER).exists() else folder
        for folder in compilers_headers(machine, root)
    ]
    of_system = [folder for folder in (include / triplet(machine), include) if folder.is_dir()]
    return Sysroot(machine, root, [*own, *of_system])


def change_config(machine: str, root: Path) -> None:
    """Copies libstdc++'s configuration without what glibc 2.28 lacks."""
    (found,) = (f for f in compilers_headers(machine, root) if (f / CONFIG_HEADER).exists())
    copy = root / "usr/include" / CONFIG
    shutil.copytree(found, copy)
    with (copy / CONFIG_HEADER).open("a") as text:
        text.writelines(f"#undef {name}\n" for name in NEWER)


def link_libraries(made: Sysroot) -> None:
    """Symbols that the older libraries have come from there, since these are placed before the compiler's
    own; the others from the compiler's archives."""

    def older(name: str) -> str:
        found = next(made.root.rglob(name), None)
        if found is None:
            raise WheelError(f"{made.root} has no {name}")
        return f"/{found.relative_to(made.root)}"

    archive = Path(run(tool("g++", made.machine), "-print-file-name=libstdc++.a").strip())
    if not archive.is_absolute():
        raise WheelError(
            f"{tool('g++', made.machine)} has no libstdc++.a: install libstdc++-dev for its version"
        )
    newer = Path(shutil.copy(archive.resolve(), made.libraries / "libstdc++-newer.a"))
    add_object(made, newer, SINGLE_THREADED)
    scripts = {
        "libgcc_s.so": f"GROUP ( {older('libgcc_s.so.1')} -lgcc )\n",
        "libstdc++.so": f"INPUT ( {older('libstdc++.so.6')} libstdc++-newer.a )\n",
    }
    for name, text in scripts.items():
        (made.libraries / name).write_text(text)


def add_object(made: Sysroot, archive: Path, code: str) -> None:
    file = made.libraries / "added.o"
    gcc = (tool("gcc", made.machine), *made.flags("c"), "-O2", "-fPIC", "-fvisibility=hidden")
    run(*gcc, "-x", "c", "-c", "-", "-o", file, input=code)
    run(tool("ar", made.machine), "r", archive, file)
    file.unlink()


def link_in(made: Sysroot) -> None:
    """Compiles Highway and the checksums of ISA-L to archives, with their headers."""
    home = made.root / "src"
    home.mkdir()
    for source in sources.listed("link"):
        run("tar", "xf", sources.fetched(source, WORK / "packages"), "-C", home)
    headers = made.root / "usr/include"
    options = ("-O2", "-fPIC", "-fvisibility=hidden")
    (highway,) = home.glob("highway-*")
    shutil.copytree(highway / "hwy", headers / "hwy")
    objects = []
    for name in ("aligned_allocator", "per_target", "print", "targets"):
        objects.append(highway / f"{name}.o")
        run(
            tool("g++", made.machine), *made.flags("c++"), *options, f"-I{highway}",
            "-c", highway / "hwy" / f"{name}.cc", "-o", objects[-1],
        )  # fmt: skip
    run(tool("ar", made.machine), "crs", made.libraries / "libhwy.a", *objects)
    (isal,) = home.glob("libisal-*")
    programs = [f"{word}={tool(word.lower(), made.machine)}" for word in ("AR", "STRIP")]
    run(
        "make", "-f", "Makefile.unx", "units=crc", f"CFLAGS_={' '.join([*made.flags('c'), *options])}", "lib",
        f"CC={tool('gcc', made.machine)}", f"host_cpu={made.machine}", *programs, cwd=isal,
    )  # fmt: skip
    shutil.copytree(isal / "include", headers / "isa-l")
    shutil.copy(isal / "bin" / "isa-l.a", made.libraries / "libisal.a")


def sysroot(machine: str) -> Sysroot:
    """Returns the system for this machine; made again if this file or the compiler has changed."""
    checked_compiler(machine)
    root = WORK / f"sysroot-{machine}"
    state = hashlib.sha256(
        Path(__file__).read_bytes()
        + sources.LIST.read_bytes()
        + run(tool("g++", machine), "--version").encode()
    ).hexdigest()
    stamp = root / "made-by"
    if stamp.exists() and stamp.read_text() == state:
        return described(machine, root)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    unpack(machine, root)
    link_headers(machine, root / "usr/include")
    change_config(machine, root)
    made = described(machine, root)
    link_libraries(made)
    link_in(made)
    stamp.write_text(state)
    return made
