"""Releases: version and changelog, index pages, and the wheel of a page instead of a compilation.
`make release-check` does it with a whole wheel."""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
assert spec is not None and spec.loader is not None
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

OURS = release.version()
MINOR = ".".join(version("torch").split(".")[:2])
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def test_the_version_is_that_of_the_package():
    import torch_mcast
    from torch_mcast import _build_info

    assert torch_mcast.__version__ == OURS == _build_info.VERSION


@pytest.mark.parametrize(
    ("own", "heading", "error"),
    [
        ("1.2.3", "## [1.2.3] - 2026-01-31", None),
        ("1.2", "## [1.2] - 2026-01-31", "not of the form 1.2.3"),
        ("1.2.3", "## [1.2.2] - 2026-01-31", r"no heading '## \[1.2.3\] - YYYY-MM-DD'"),
        ("1.2.3", "## [1.2.3] - soon", "'soon' is not a date"),
        ("1.2.3", f"## [1.2.3] - {datetime.date.today() + datetime.timedelta(2)}", "still to come"),
    ],
)
def test_a_release_needs_its_section_of_the_changelog(tmp_path, own, heading, error):
    (tmp_path / "torch_mcast").mkdir()
    (tmp_path / "torch_mcast" / "__init__.py").write_text(f'__version__ = "{own}"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n{heading}\n")
    if error is None:
        release.check_texts(tmp_path)
        return
    with pytest.raises(release.ReleaseError, match=error):
        release.check_texts(tmp_path)


def test_the_changelog_says_what_comes_next(tmp_path):
    (tmp_path / "torch_mcast").mkdir()
    (tmp_path / "torch_mcast" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-01-31\n")
    with pytest.raises(release.ReleaseError, match="Unreleased"):
        release.check_texts(tmp_path)


def wheel(folder: Path, torch: str, mark: str = "released") -> Path:
    """Makes a wheel of a release, except that its package only contains `mark`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"torch_mcast-{OURS}+torch{torch}"
    info = f"{name}.dist-info"
    files = {
        "torch_mcast/__init__.py": f"mark = {mark!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch-mcast\nVersion: {OURS}+torch{torch}\n"
        f"Requires-Dist: torch=={torch}.*\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {TAG}-{TAG}-"
        f"linux_{platform.machine()}\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    file = folder / f"{name}-{TAG}-{TAG}-linux_{platform.machine()}.whl"
    with zipfile.ZipFile(file, "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
    return file


def test_each_minor_of_torch_has_a_page(tmp_path):
    for torch in ("2.12", "2.13"):
        wheel(tmp_path / "dist", torch)
    pages = release.index(tmp_path / "dist", tmp_path / "out")
    assert [str(page.relative_to(tmp_path / "out")) for page in pages] == [
        f"torch{torch}/torch-mcast/index.html" for torch in ("2.12", "2.13")
    ]
    for page, torch in zip(pages, ("2.12", "2.13"), strict=True):
        (file,) = page.parent.glob("*.whl")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"torch{torch}" in file.name
        assert f'href="{file.name.replace("+", "%2B")}#sha256={digest}"' in page.read_text()


@pytest.mark.parametrize(
    ("name", "error"),
    [(None, "has no wheels"), ("torch_mcast-0.1.0-cp311-cp311-linux_x86_64.whl", "which torch")],
)
def test_a_page_needs_wheels_that_name_their_torch(tmp_path, name, error):
    if name:
        (tmp_path / name).touch()
    with pytest.raises(release.ReleaseError, match=error):
        release.index(tmp_path, tmp_path / "out")


@pytest.fixture
def sources(tmp_path):
    """Copies the files that setup.py reads to a separate folder, and hides compilers."""
    folder = tmp_path / "sources"
    (folder / "torch_mcast").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(ROOT / "torch_mcast" / "__init__.py", folder / "torch_mcast")
    return folder


def built(sources: Path, out: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Runs the hook that `pip wheel` calls, without pip."""
    program = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    out.mkdir()
    env = {**os.environ, "MCAST_WHEELS": page, "PATH": str(out), "no_proxy": "*"}
    # The one next to the interpreter is hidden, too.
    program = "import sys; python, sys.executable = sys.executable, '/nowhere/python'\n" + program
    return subprocess.run(
        [sys.executable, "-c", program, out], cwd=sources, env=env, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_a_wheel_of_a_page_is_taken_instead_of_compiling(tmp_path, sources):
    for torch in (MINOR, "2.99"):
        wheel(tmp_path / "dist", torch, f"for {torch}")
    release.index(tmp_path / "dist", tmp_path / "pages")
    with release.served(tmp_path / "pages") as address:
        done = built(sources, tmp_path / "made", f"{address}/torch{MINOR}/torch-mcast/")
    assert done.returncode == 0, done.stderr
    (made,) = (tmp_path / "made").glob("*.whl")
    # The name has the requested version: pip accepts no other one for an archive of 1.2.3.
    assert made.name == f"torch_mcast-{OURS}-{TAG}-{TAG}-linux_{platform.machine()}.whl"
    home = tmp_path / "home"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        home,
    ]
    subprocess.run([*pip, made], check=True, timeout=120)
    assert (home / "torch_mcast" / "__init__.py").read_text() == f"mark = 'for {MINOR}'\n"
    (metadata,) = home.glob("*.dist-info/METADATA")
    assert f"Version: {OURS}\n" in metadata.read_text()
    assert f"Requires-Dist: torch=={MINOR}.*" in metadata.read_text()
    with zipfile.ZipFile(made) as archive:  # pip does not compare
        rows = archive.read(f"torch_mcast-{OURS}.dist-info/RECORD").decode().splitlines()
        for row in rows:
            path, digest, _ = row.split(",")
            if digest:
                found = base64.urlsafe_b64encode(hashlib.sha256(archive.read(path)).digest())
                assert digest == "sha256=" + found.rstrip(b"=").decode()
        assert {row.split(",")[0] for row in rows} == set(archive.namelist())


def test_a_file_other_than_the_page_means_is_refused(tmp_path, sources):
    wheel(tmp_path / "dist", MINOR)
    (page,) = release.index(tmp_path / "dist", tmp_path / "pages")
    wheel(page.parent, MINOR, "forged")
    with release.served(tmp_path / "pages") as address:
        done = built(sources, tmp_path / "made", f"{address}/torch{MINOR}/torch-mcast/")
    assert done.returncode != 0 and "is not the file that" in done.stderr
    assert not list((tmp_path / "made").glob("*.whl"))


def test_without_a_wheel_that_fits_it_is_compiled(tmp_path, sources):
    wheel(tmp_path / "dist", "2.99")
    release.index(tmp_path / "dist", tmp_path / "pages")
    with release.served(tmp_path / "pages") as address:
        done = built(sources, tmp_path / "made", f"{address}/torch2.99/torch-mcast/")
    assert f"has no wheel of {OURS} for torch {MINOR}, " in done.stderr
    assert "a C++20 compiler is needed" in done.stderr  # there is none here


def test_a_page_that_does_not_answer_is_named(tmp_path, sources):
    done = built(sources, tmp_path / "made", "http://127.0.0.1:1/")
    assert done.returncode != 0 and "torch-mcast: MCAST_WHEELS=http://127.0.0.1:1/: " in done.stderr
