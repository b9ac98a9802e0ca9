"""Installation: lists that agree, the torch that pip gets, libraries that a machine lacks, the
source archive. Indexes and repositories are replaced by stand-ins on this machine."""

from __future__ import annotations

import base64
import email
import hashlib
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import check_docs  # noqa: E402
import release  # noqa: E402

SETUP = (ROOT / "tools" / "setup.sh").read_text()


def project() -> dict:
    if sys.version_info < (3, 11):
        tomllib = pytest.importorskip("tomli")
    else:
        import tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def listed(name: str) -> set[str]:
    """Returns the requirements in a list of tools/setup.sh."""
    (text,) = re.findall(rf'^{name}="([^"]*)"', SETUP, re.M)
    return set(text.replace("\\\n", " ").split())


def test_setup_and_package_ask_for_the_same():
    extras = project()["project"]["optional-dependencies"]
    assert listed("BENCH_PIP") == set(extras["bench"])
    assert listed("DOCS_PIP") == set(extras["docs"])
    assert listed("RUN_PIP") | listed("TEST_PIP") >= set(extras["dev"])
    assert (listed("RUN_PIP") | listed("TEST_PIP")) - set(extras["dev"]) == {"rich", "packaging"}
    assert '"rich>=13"' in (ROOT / "setup.py").read_text()
    asked = {re.match(r"[\w-]+", row)[0] for row in project()["build-system"]["requires"]}
    assert asked == {"setuptools", "cmake", "ninja"}  # without torch: the installed one is used


def test_the_page_of_stacks_has_the_versions_that_are_installed():
    page = (ROOT / "docs" / "stacks.md").read_text()
    rows = re.findall(r"^\| \[([\w. -]+)\]\(#\S+\) \| (\S+)[^|]* \|", page, re.M)
    told = {name.lower(): version for name, version in rows}
    installed = dict(row.split("==") for row in listed("FRAMEWORKS_PIP"))
    del installed["triton"]  # torchtitan's
    told["ray"] = told.pop("ray train")
    assert told.pop("ray.util.collective") == told["ray"]
    del told["slurm"]  # Debian's
    assert told == installed


def test_running_needs_no_package_of_the_tests():
    (run,) = re.findall(r'^RUN="\$NEEDED ([^"]*)"', SETUP, re.M)
    for package in ("qemu", "openmpi", "clang", "gtest", "benchmark", "iptables"):
        assert package not in run
    assert "qemu" in re.search(r'^TEST="([^"]*)"', SETUP, re.M)[1]


@pytest.mark.parametrize(
    ("there", "archive", "expected"),
    [
        ((), ("clang-14", "libclang-rt-14-dev", "clang-19"), ["clang-14", "libclang-rt-14-dev"]),
        ((), ("clang-17", "libclang-rt-17-dev", "clang-19"), ["clang-17", "libclang-rt-17-dev"]),
        (
            ("18",),
            ("clang-14", "clang-18", "libclang-rt-18-dev"),
            ["clang-18", "libclang-rt-18-dev"],
        ),
        ((), ("clang-14",), ["clang-14"]),  # its runtime is in another package
        ((), (), ["clang-14"]),  # so it is named as missing
    ],
)
def test_the_clang_that_a_release_has_is_taken(tmp_path, there, archive, expected):
    parts = [re.search(r"^CLANGS=.*", SETUP, re.M)[0]]
    for name in ("clang", "offered"):
        parts.append(re.search(rf"^{name}\(\) {{.*?^}}", SETUP, re.M | re.S)[0])
    known = "|".join(archive) or "none"
    (tmp_path / "apt-cache").write_text(
        f'#!/bin/sh\ncase $2 in {known}) echo "  Candidate: 1:1" ;; *) echo "  Candidate: (none)" ;; esac\n'
    )
    (tmp_path / "grep").symlink_to(shutil.which("grep"))
    for name in ("apt-cache", *(f"clang++-{n}" for n in there)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-euc", "\n".join([*parts, "clang"])],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == expected, done.stderr


# -- choice of torch -----------------------------------------------------------------------------


def wheel(folder: Path, name: str, version: str) -> None:
    """Makes an empty package."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        rows.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """Returns the address of a server: /own has torch 9.9.9 and the rest, /cpu torch 9.9.9+cpu."""
    root = tmp_path_factory.mktemp("indexes")
    wheel(root / "own" / "torch", "torch", "9.9.9")
    wheel(root / "cpu" / "torch", "torch", "9.9.9+cpu")
    for row in listed("RUN_PIP"):
        name = re.match(r"[\w-]+", row)[0]
        wheel(root / "own" / name, name, "99.0")
    with release.served(root) as address:
        yield address


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    home = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    return home


@pytest.mark.parametrize(
    ("index", "version", "words"),
    [
        ("{server}/cpu", "9.9.9+cpu", "torch: from {server}/cpu (MCAST_TORCH_INDEX=none: from pip's own index)"),
        pytest.param(
            "{server}/gone", "9.9.9", "torch: from pip's own index, since {server}/gone does not answer (for x86-64 perhaps the CUDA build, gigabytes)",
            marks=pytest.mark.all_tier,
        ),
        pytest.param(
            "http://127.0.0.1:1/cpu", "9.9.9", "since http://127.0.0.1:1/cpu does not answer",
            marks=pytest.mark.all_tier,
        ),
        pytest.param("none", "9.9.9", "torch: from pip's own index", marks=pytest.mark.all_tier),
        (None, "9.9.9", "torch: from pip's own index, which is configured here (for x86-64 perhaps the CUDA build, gigabytes)"),
    ],
)  # fmt: skip
def test_torch_comes_from_the_index_of_cpu_builds(
    tmp_path, indexes, environment, index, version, words
):
    home, tools = tmp_path / "a venv", tmp_path / "bin"
    shutil.copytree(environment, home, symlinks=True)
    tools.mkdir()
    (tools / "dpkg-query").write_text("#!/bin/sh\necho install ok installed\n")
    (tools / "dpkg-query").chmod(0o755)
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }
    env |= {"PATH": f"{tools}:{os.environ['PATH']}", "VENV": str(home), "PYTHON": sys.executable,
            "TORCH": "torch==9.9.9",
            "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{indexes}/own", "PIP_NO_CACHE_DIR": "1",
            "no_proxy": "*"}  # fmt: skip
    env.pop("MCAST_TORCH_INDEX", None)
    if index is not None:
        env["MCAST_TORCH_INDEX"] = index.format(server=indexes)
    command = [str(ROOT / "tools" / "setup.sh"), "run"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words.format(server=indexes) in done.stderr
    assert sum(line.startswith("torch: ") for line in done.stderr.splitlines()) == 1
    found = [path.name for path in home.glob("lib/python3*/site-packages/torch-*.dist-info")]
    assert found == [f"torch-{version}.dist-info"]
    again = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert again.stderr == ""  # only the first time


def test_without_root_what_is_missing_is_named(tmp_path):
    """Only packages that no other one brings are named."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "sed", "dirname"):  # without a compiler
        (tools / name).symlink_to(shutil.which(name))
    for name, text in {"dpkg-query": "exit 1", "id": "echo 1000", "grep": "exit 1"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    env = {**os.environ, "PATH": str(tools), "VENV": str(tmp_path / "v"), "PYTHON": sys.executable}
    command = [str(ROOT / "tools" / "setup.sh"), "run"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "sudo apt-get install g++" in done.stderr
    assert "libhwy-dev" not in done.stderr and "cmake" not in done.stderr


def without_compilers(tmp_path: Path, *tools: str) -> str:
    """Returns a PATH with only these tools."""
    folder = tmp_path / "only"
    folder.mkdir()
    for name in tools:
        (folder / name).symlink_to(shutil.which(name) or "/nowhere")
    return str(folder)


@pytest.mark.parametrize(
    ("tools", "variables", "words"),
    [
        (["cmake", "ninja"], {}, "a C++20 compiler is needed, none was found (Debian, Ubuntu: apt-get install g++)"),
        (["c++"], {"CXX": "nowhere++ -m64"}, "needed, nowhere++, which CXX names, was not found"),
        (["c++"], {}, "cmake is needed to build and was not found"),
    ],
)  # fmt: skip
def test_missing_build_requirements_are_reported_in_one_line(tmp_path, tools, variables, words):
    env = {name: value for name, value in os.environ.items() if name not in ("CXX", "CMAKE_ARGS")}
    env |= {"PATH": without_compilers(tmp_path, *tools), **variables}
    # The one next to the interpreter is hidden, too.
    code = "import runpy, sys; sys.executable = '/nowhere/python'; sys.argv = ['setup.py', '-q', 'build_ext']\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "runpy.run_path('setup.py', run_name='__main__')"], cwd=ROOT, env=env,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]  # setuptools may warn before it
    assert line.startswith("torch-mcast: ") and words in line


@pytest.fixture()
def lacking(monkeypatch):
    """The function of setup.py that names what a build needs and this machine lacks: here, nothing."""
    monkeypatch.setattr(sys, "argv", ["setup.py", "--name"])
    monkeypatch.chdir(ROOT)
    function = runpy.run_path(str(ROOT / "setup.py"))["lacking"]
    assert function() == ""
    return function


def test_pythons_headers_are_asked_for_by_name(lacking, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert lacking().endswith("has no Python.h (Debian, Ubuntu: apt-get install python3-dev)")


def test_a_build_environment_without_torch_says_how_to_build_without_it(lacking, monkeypatch):
    """uv and build make environments for a build that have no torch, and no way to the one that is installed."""
    monkeypatch.setitem(lacking.__globals__, "torch_folder", lambda: "")
    told = lacking()
    assert told.startswith("torch>=2.11,<2.16 is needed") and sys.executable in told
    assert (
        "uv pip install --no-build-isolation ." in told and "python -m build --no-isolation" in told
    )


def test_a_free_threaded_python_is_refused(lacking, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert "is a free-threaded Python" in lacking() and "with the GIL" in lacking()


def test_the_demo_builds_the_extension_alone_until_all_is_asked_for(tmp_path):
    for folder in (
        "tools",
        "venv/bin",
        "torch_mcast",
        "cmake",
        "csrc/core",
        "csrc/torch",
    ):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "tools")
    for name in ("CMakeLists.txt", "setup.py", "pyproject.toml"):
        (tmp_path / name).touch()
    pip = tmp_path / "venv" / "bin" / "python"  # records what it has to build, and builds
    pip.write_text(
        '#!/bin/sh\necho "${MCAST_PROGRAMS:-all}" >> built\ntouch torch_mcast/_C.so.so\n'
        '[ "$MCAST_PROGRAMS" = off ] || touch torch_mcast/mcast-engine\n'
    )
    pip.chmod(0o755)
    env = {**os.environ, "VENV": "venv", "PYTHON": sys.executable}
    env.pop("MCAST_PROGRAMS", None)

    def built(*steps: str) -> list[str]:
        subprocess.run([tmp_path / "tools" / "setup.sh", *steps], env=env, check=True, timeout=60)
        file = tmp_path / "built"
        text = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return text

    assert built("extension") == ["off"] and built("extension") == []
    assert built("build") == ["all"] and built("build", "extension") == []
    later = time.time() + 60
    os.utime(tmp_path / "setup.py", (later, later))
    assert built("extension") == ["all"]  # else the programs would be those of older sources


# -- missing libraries -------------------------------------------------------------------------------

HIDDEN = (
    "/usr/include;/usr/local/include;/usr/lib;/usr/lib/x86_64-linux-gnu;/usr/lib/aarch64-linux-gnu"
)


def configure(build: Path, *options: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", "-DMCAST_BUILD_TESTS=OFF",
         f"-DCMAKE_IGNORE_PATH={HIDDEN}", *options],
        env={**os.environ, **variables}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def repository(folder: Path, files: dict[str, str]) -> str:
    """Makes a repository with these files. Returns its commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_libraries_are_fetched_at_their_commit_and_torch_is_the_installed_one(tmp_path):
    highway = repository(tmp_path / "highway", {
        "CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(hwy)\noption(HWY_ENABLE_TESTS \"\" ON)\n"
        "if(HWY_ENABLE_TESTS)\nmessage(FATAL_ERROR \"tests\")\nendif()\nadd_library(hwy STATIC hwy/a.cc)\n",
        "hwy/highway.h": "", "hwy/a.cc": "",
    })  # fmt: skip
    crc = repository(tmp_path / "crc32c", {
        "CMakeLists.txt": "cmake_minimum_required(VERSION 3.1)\nproject(crc)\nadd_library(crc32c a.cc)\n",
        "a.cc": "", "include/crc32c/crc32c.h": "",
    })  # fmt: skip
    # Hides installed packages as pip does in a build.
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
    )
    # CMake itself stays visible if it is pip's.
    if (there := importlib.util.find_spec("cmake")) is not None and there.origin is not None:
        packages = Path(there.origin).parents[1]
        for part in (packages / "cmake", *packages.glob("cmake-*.dist-info")):
            (tmp_path / "hide" / part.name).symlink_to(part)
    done = configure(
        tmp_path / "build",
        f"-DMCAST_HIGHWAY_URL=file://{tmp_path}/highway", f"-DMCAST_HIGHWAY_COMMIT={highway}",
        f"-DMCAST_CRC32C_URL=file://{tmp_path}/crc32c", f"-DMCAST_CRC32C_COMMIT={crc}",
        "-DMCAST_BUILD_TORCH=ON", f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DMCAST_EXTENSION_DIR={tmp_path}/extension",
        PYTHONPATH=str(tmp_path / "hide"), PYTHONNOUSERSITE="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    import torch

    assert f"-- torch {torch.__version__} in {Path(torch.__file__).parent}" in done.stdout
    assert f"fetching file://{tmp_path}/crc32c at {crc}" in done.stdout
    rules = (tmp_path / "build" / "build.ninja").read_text()
    assert "fetched/highway-build/libhwy.a" in rules and "fetched/crc32c-build/libcrc32c.a" in rules
    # The step that takes longest has the longest chain, so that newer Ninjas start it first; its
    # successors do not wait for the core's archive as well.
    (last,) = re.findall(r"^build joined/extension\.cpp .*", rules, re.M)
    assert last.endswith("mcast_torch_0.cpp.o || mcast_torch_code") or last.endswith(
        "mcast_torch_0.cpp.o"
    )
    assert "-DMCAST_CRC32C" in rules and "/usr/include/isa-l" not in rules


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-DMCAST_HIGHWAY_URL=file:///nowhere/highway"], "does not appear to be a git repository"),
        (["-DMCAST_FETCH=OFF"], "MCAST_FETCH is off"),
        (["-DMCAST_HIGHWAY_URL=file://{folder}/other"], "not our ref"),
    ],
)
def test_without_libraries_and_network_the_build_says_what_to_install(tmp_path, options, why):
    repository(tmp_path / "other", {"CMakeLists.txt": ""})
    done = configure(tmp_path / "build", *(option.format(folder=tmp_path) for option in options))
    assert done.returncode != 0
    text = re.sub(r"\s+", " ", done.stderr)
    assert (
        "torch-mcast needs Highway, which is not on this machine and could not be fetched" in text
    )
    assert why in text and "Install it (Debian, Ubuntu: libhwy-dev)" in text
    assert not (tmp_path / "build" / "fetched" / "highway").exists()


# -- the metadata -------------------------------------------------------------------------------------


def tracked() -> set[str]:
    """Returns the files of the repository and those that git does not ignore."""
    return {name for name in check_docs.tracked(ROOT) if (ROOT / name).is_file()}


@pytest.fixture
def checkout(tmp_path):
    """A copy of the sources: setuptools writes its folders into the tree that it reads, so two
    builds of metadata or archives in one tree remove each other's files."""
    folder = tmp_path / "checkout"
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def requirements(sources: Path, folder: Path, call: str) -> list[str]:
    """Returns the requirements of a build in which pip hides installed packages."""
    program = f"import setuptools.build_meta as b; print(b.{call}({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=sources, capture_output=True, text=True, check=True,
        timeout=240,
    )  # fmt: skip
    made = folder / done.stdout.strip().splitlines()[-1]
    if made.is_dir():
        text = (made / "METADATA").read_text()
    else:
        with tarfile.open(made) as tar:
            (info,) = (
                m for m in tar.getmembers() if m.name.count("/") == 1 and "PKG-INFO" in m.name
            )
            text = tar.extractfile(info).read().decode()
    return email.message_from_string(text).get_all("Requires-Dist")


def test_a_build_requires_the_minor_version_of_its_torch(tmp_path, checkout):
    minor = ".".join(version("torch").split(".")[:2])
    rows = requirements(checkout, tmp_path, "prepare_metadata_for_build_wheel")
    assert f"torch=={minor}.*" in rows
    assert not [row for row in rows if row.startswith("torch") and "==" not in row]


def test_the_sources_require_any_torch_that_is_served(tmp_path, checkout):
    rows = requirements(checkout, tmp_path, "build_sdist")
    assert [row for row in rows if row.startswith("torch")] == ["torch<2.16,>=2.11"]


def test_installed_files_have_no_debug_information(tmp_path, monkeypatch):
    program = tmp_path / "program"
    source = "int main() { return 0; }"
    subprocess.run(
        ["c++", "-g", "-x", "c++", "-o", program, "-"], input=source, text=True, check=True
    )

    def sections() -> str:
        return subprocess.run(
            ["readelf", "-S", program], capture_output=True, text=True, check=True
        ).stdout

    assert ".debug_info" in sections()
    monkeypatch.setattr(sys, "argv", ["setup.py", "--name"])
    monkeypatch.chdir(ROOT)
    without_debug = runpy.run_path(str(ROOT / "setup.py"))["without_debug"]
    without_debug([program])
    assert ".debug_info" not in sections()
    assert subprocess.run([program], check=False).returncode == 0
    monkeypatch.setenv("PATH", "")
    without_debug([program])  # no tool for it is installed


# -- the source archive ------------------------------------------------------------------------------


def test_the_archive_has_what_the_repository_has(tmp_path, checkout):
    expected = {name for name in tracked() if not name.startswith(".")}
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path)], cwd=checkout, check=True,
        capture_output=True, timeout=240,
    )  # fmt: skip
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    made = {
        name for name in names if name == "PKG-INFO" or "egg-info/" in name or name == "setup.cfg"
    }
    assert names - made == expected
    assert "benchmarks/mpi/collectives.c" in names
