"""Builds torch_mcast._C with CMake against the torch of this interpreter, and the programs of the
aggregator and of the simulator:

    pip install .        or        pip install -e .

pip installs CMake and Ninja; torch must already be installed.

Environment: MCAST_WHEELS (address of a page of wheels: the one for this torch, Python and machine
is taken instead of compiling), MCAST_LOCAL_VERSION (of a wheel of a release, "torch2.13"), MAX_JOBS
(compile jobs), MCAST_PROGRAMS=off (the extension only), MCAST_WERROR=1 (warnings are errors),
MCAST_JOIN (number of sources compiled as one), CMAKE_ARGS (more arguments for cmake),
CMAKE_BUILD_TYPE, STRIP (the program strip, when CMAKE_ARGS names a cross compiler). If MCAST_WERROR
or MCAST_JOIN is unset, the configuration of the build folder applies. The C++ tests are built in the
same folder, by `make test-cpp`: the core is compiled once for both.
"""

import base64
import hashlib
import importlib.util
import io
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import urlopen

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    # Before setuptools 70.1 the class is in the package wheel, which `setup.py build_ext` does not
    # need.
    try:
        from wheel.bdist_wheel import bdist_wheel  # type: ignore[import-untyped]
    except ImportError:
        bdist_wheel = Command

ROOT = Path(__file__).parent.resolve()
TORCH_VERSIONS = "torch>=2.11,<2.16"


def torch_folder() -> str:
    """Returns the folder of the installed torch, "" if there is none; does not import it."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent)
    # pip uses these variables to hide installed packages (cmake/TorchExtension.cmake also unsets
    # them).
    hiding = ("PYTHONPATH", "PYTHONNOUSERSITE")
    open_ = {name: value for name, value in os.environ.items() if name not in hiding}
    question = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    command = [sys.executable, "-c", question]
    done = subprocess.run(command, env=open_, capture_output=True, text=True, check=False)
    return str(Path(done.stdout.strip()).parent) if done.stdout.strip() else ""


def torch_requirement() -> str:
    """Returns the requirement of the minor version of torch that is installed here: the extension
    is built for it, and works with no other. The source archive works with all supported versions,
    and so does a machine without torch."""
    minor = "" if "sdist" in sys.argv else torch_minor()
    return f"torch=={minor}.*" if minor else TORCH_VERSIONS


def torch_minor() -> str:
    """Returns the minor version of the installed torch ("2.13"), "" if there is none."""
    if not (folder := torch_folder()):
        return ""
    text = (Path(folder) / "version.py").read_text()
    return str(re.findall("__version__ = .([0-9]+[.][0-9]+)", text)[0])


def without_debug(files: list[Path]) -> None:
    """Removes the debug information, four fifths of a file, from files that are installed
    elsewhere. Without a strip program it stays."""
    if strip := shutil.which(os.environ.get("STRIP", "strip")):
        subprocess.run([strip, "--strip-debug", *map(str, files)], check=False)


def lacking() -> str:
    """Returns in one line the build requirements that pip does not install, "" if none is missing."""
    own = os.environ.get("CXX", "").split()[:1]
    if "CMAKE_CXX_COMPILER" not in os.environ.get("CMAKE_ARGS", "") and not any(
        shutil.which(name) for name in own or ("c++", "g++", "clang++")
    ):
        found = f"{own[0]}, which CXX names, was not found" if own else "none was found"
        return f"a C++20 compiler is needed, {found} (Debian, Ubuntu: apt-get install g++)"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return (
            f"{sys.executable} is a free-threaded Python, for which torch-mcast has not been made safe: "
            f"use Python {sys.version_info[0]}.{sys.version_info[1]} with the GIL"
        )
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return (
            f"Python's headers are needed, and {headers} has no Python.h "
            "(Debian, Ubuntu: apt-get install python3-dev)"
        )
    if not torch_folder():
        return (
            f"{TORCH_VERSIONS} is needed to build, and {sys.executable} has no torch. Install torch first. "
            "uv and build hide it from a build unless they are told not to: uv pip install "
            "--no-build-isolation . and python -m build --no-isolation, with setuptools, cmake and ninja "
            "installed"
        )
    return ""


def checked(command: list[str]) -> None:
    """Runs the command; if it fails, ends with one line, since the command has printed the reason."""
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"torch-mcast: {Path(command[0]).name} failed: its messages are above")


def tool(name: str) -> str:
    """Returns a program from PATH, else the one that pip put next to this interpreter."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit(f"torch-mcast: {name} is needed to build and was not found")
    return found


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).parent.resolve()
        target.mkdir(parents=True, exist_ok=True)
        build = ROOT / "build" / f"{sys.implementation.cache_tag}"
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        if missing := lacking():
            raise SystemExit(f"torch-mcast: {missing}")
        cmake = tool("cmake")
        options = ["-DMCAST_WERROR=ON"] if os.environ.get("MCAST_WERROR") == "1" else []
        if os.environ.get("MCAST_JOIN"):
            options.append(f"-DMCAST_JOIN={os.environ['MCAST_JOIN']}")
        if not (build / "CMakeCache.txt").exists():
            options.append("-DMCAST_BUILD_TESTS=OFF")
        checked(
            [
                cmake, "-S", str(ROOT), "-B", str(build), "-G", "Ninja",
                f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
                "-DMCAST_BUILD_TORCH=ON",
                *options,
                f"-DMCAST_EXTENSION_DIR={target}",
                f"-DPython3_EXECUTABLE={sys.executable}",
                f"-DCMAKE_BUILD_TYPE={os.environ.get('CMAKE_BUILD_TYPE', 'RelWithDebInfo')}",
                *shlex.split(os.environ.get("CMAKE_ARGS", "")),
            ]
        )  # fmt: skip
        on = os.environ.get("MCAST_PROGRAMS", "on") != "off"
        programs = ["aggregator", "engine", "simulate"] if on else []
        targets = ["mcast_torch", *(f"mcast_{name}" for name in programs)]
        checked([cmake, "--build", str(build), "--target", *targets, "-j", jobs])
        names = ["_build_info.py", *(f"mcast-{name}" for name in programs)]
        self._beside = [target / name for name in names]
        if not (self.inplace or getattr(self, "editable_mode", False)):
            without_debug([Path(self.get_ext_fullpath(ext.name)), *self._beside[1:]])

    def copy_extensions_to_source(self) -> None:
        """Copies with --inplace and for an editable install, which build elsewhere and only copy
        the extension back."""
        super().copy_extensions_to_source()
        for file in self._beside:
            home = ROOT / "torch_mcast" / file.name
            if file.resolve() != home:
                home.unlink(missing_ok=True)  # a running program cannot be overwritten
                shutil.copy(file, home)


def found_on(page: str) -> str:
    """Returns the address of the wheel on this page (PEP 503) for this version, torch, Python and
    machine, or ""."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = re.compile(
        rf"torch_mcast-{re.escape(version())}\+torch{re.escape(torch_minor() or 'none')}-{tag}-{tag}-"
        rf"\w*_{platform.machine()}\.whl"
    )
    with urlopen(page, timeout=60) as answer:
        text = answer.read().decode()
    for href in re.findall(r'href="([^"]+)"', text):
        if name.fullmatch(unquote(Path(urlsplit(href).path).name)):
            return urljoin(page, href)
    return ""


def without_local(wheel: bytes) -> bytes:
    """Renames the wheel to the version of the sources. pip, which requested that, accepts no other one."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(out, "w") as new:
        record = []
        for info in old.infolist():
            content = old.read(info)
            folder, _, file = info.filename.partition("/")
            if folder.endswith(".dist-info"):
                info.filename = f"torch_mcast-{version()}.dist-info/{file}"
            if file == "RECORD" and folder.endswith(".dist-info"):
                record.append(f"{info.filename},,")
                content = "\n".join([*record, ""]).encode()
            else:
                if file == "METADATA":
                    content = re.sub(
                        rb"(?m)^Version: .*$", b"Version: " + version().encode(), content, count=1
                    )
                digest = (
                    base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                )
                record.append(f"{info.filename},sha256={digest},{len(content)}")
            new.writestr(info, content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


class Wheel(bdist_wheel):
    """Takes the wheel of a release if MCAST_WHEELS names a page that has one, else compiles."""

    def run(self) -> None:
        page = os.environ.get("MCAST_WHEELS")
        if not page:
            return super().run()
        try:
            found = found_on(page)
        except OSError as error:
            raise SystemExit(f"torch-mcast: MCAST_WHEELS={page}: {error}") from None
        if not found:
            here = (
                f"torch {torch_minor() or '(none)'}",
                f"Python {platform.python_version()}",
                platform.machine(),
            )
            print(
                f"torch-mcast: {page} has no wheel of {version()} for {', '.join(here)}: compiling",
                file=sys.stderr,
            )
            return super().run()
        address, fragment = urldefrag(found)
        with urlopen(address, timeout=300) as answer:
            content = answer.read()
        if fragment != f"sha256={hashlib.sha256(content).hexdigest()}":
            raise SystemExit(f"torch-mcast: {address} is not the file that {page} means (SHA-256)")
        Path(self.dist_dir).mkdir(parents=True, exist_ok=True)
        name = re.sub(r"\+[^-]*", "", unquote(Path(urlsplit(address).path).name))
        (Path(self.dist_dir) / name).write_bytes(without_local(content))
        return None


def version() -> str:
    """Returns torch_mcast.__version__, with the version of torch for a wheel of a release:
    0.1.0+torch2.13."""
    text = (ROOT / "torch_mcast" / "__init__.py").read_text()
    own = re.findall(r'^__version__ = "([0-9.]+)"$', text, re.M)[0]
    local = os.environ.get("MCAST_LOCAL_VERSION")
    return f"{own}+{local}" if local else own


setup(
    version=version(),
    license="BSD-3-Clause",
    license_files=["LICENSE*", "NOTICE"],
    ext_modules=[Extension("torch_mcast._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": Wheel},
    install_requires=[torch_requirement(), "packaging", "rich>=13"],
)
