"""Builds torch_mcast._C with CMake against the torch of this interpreter, and the programs of the
aggregator and of the simulator:

    pip install .        or        pip install -e .

CMake and Ninja come along; torch must be there already.

Environment: MAX_JOBS (compile jobs), MCAST_PROGRAMS=off (the extension only), MCAST_WERROR=1 (warnings are
errors) and MCAST_JOIN (sources compiled as one), where unset as the build folder was configured,
CMAKE_ARGS (more arguments for cmake), CMAKE_BUILD_TYPE. The C++ tests are built in the same folder, by
`make test-cpp`: the core is compiled once for both.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
TORCH_VERSIONS = "torch>=2.11,<2.16"


def torch_folder() -> str:
    """Of the torch that is installed, "" if there is none; it is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent)
    # pip hides by these variables what is installed (cmake/TorchExtension.cmake looks past them, too).
    hiding = ("PYTHONPATH", "PYTHONNOUSERSITE")
    open_ = {name: value for name, value in os.environ.items() if name not in hiding}
    question = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    command = [sys.executable, "-c", question]
    done = subprocess.run(command, env=open_, capture_output=True, text=True, check=False)
    return str(Path(done.stdout.strip()).parent) if done.stdout.strip() else ""


def torch_requirement() -> str:
    """The minor version of torch that is installed here, for which the extension is built: it is good for no
    other one. The archive of the sources is good for all that are served, as is a machine without torch."""
    if "sdist" in sys.argv:
        return TORCH_VERSIONS
    if not (folder := torch_folder()):
        return TORCH_VERSIONS
    text = (Path(folder) / "version.py").read_text()
    return f"torch=={re.findall('__version__ = .([0-9]+[.][0-9]+)', text)[0]}.*"


def without_debug(files: list[Path]) -> None:
    """Drops the debug information, four fifths of a file, from what is installed elsewhere. Where there is no
    strip it stays."""
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", *map(str, files)], check=False)


def lacking() -> str:
    """What the build needs and pip does not bring, in one line; "" where nothing is missing."""
    own = os.environ.get("CXX", "").split()[:1]
    if "CMAKE_CXX_COMPILER" not in os.environ.get("CMAKE_ARGS", "") and not any(
        shutil.which(name) for name in own or ("c++", "g++", "clang++")
    ):
        found = f"{own[0]}, which CXX names, was not found" if own else "none was found"
        return f"a C++20 compiler is needed, {found} (Debian, Ubuntu: apt-get install g++)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        return (
            f"Python's headers are needed, and {headers} has no Python.h "
            "(Debian, Ubuntu: apt-get install python3-dev)"
        )
    return ""


def checked(command: list[str]) -> None:
    """Runs it; ends with one line where it fails, for it has said why."""
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"torch-mcast: {Path(command[0]).name} failed: its messages are above")


def tool(name: str) -> str:
    """A program from PATH, else the one that pip put beside this interpreter."""
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
        """With --inplace and for an editable install, which build elsewhere and bring back only the
        extension itself."""
        super().copy_extensions_to_source()
        for file in self._beside:
            home = ROOT / "torch_mcast" / file.name
            if file.resolve() != home:
                home.unlink(missing_ok=True)  # a program that runs cannot be written to
                shutil.copy(file, home)


setup(
    ext_modules=[Extension("torch_mcast._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    install_requires=[torch_requirement(), "packaging", "rich>=13"],
)
