#!/usr/bin/env python3
"""A release: what must be right before it is tagged, and index pages of its wheels.

    tools/release.py check              version and changelog; then the archive of the sources, a wheel, its
                                        page, and installs from both (`make release-check`), into dist/
    tools/release.py index DIST OUT     OUT/torch2.13/torch-mcast/index.html with copies of the wheels in
                                        DIST, for each minor version of torch

A wheel is good for one minor version of torch, which its local version names (0.1.0+torch2.13), and public
indexes accept no local versions. So wheels are on a page for each minor, as PyTorch has one for each CUDA:
from it pip takes a wheel that keeps torch. The archive of the sources can be on any index: it compiles for
the torch that is installed, or takes the wheel for it where MCAST_WHEELS names a page (setup.py).
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
WHEEL = re.compile(r"torch_mcast-(?P<version>[\d.]+)\+torch(?P<torch>\d+\.\d+)-.*\.whl")


class ReleaseError(Exception):
    """A fault of the release, in one line."""


def version(root: Path = ROOT) -> str:
    text = (root / "torch_mcast" / "__init__.py").read_text()
    return re.findall(r'^__version__ = "(.*)"$', text, re.M)[0]


def check_texts(root: Path = ROOT) -> None:
    """Raises ReleaseError if the changelog has no section of this version with a past date."""
    wanted = version(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise ReleaseError(f"torch_mcast/__init__.py: {wanted!r} is not of the form 1.2.3")
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(wanted)}\] - (\S+)$", text, re.M)
    if not found:
        raise ReleaseError(f"CHANGELOG.md has no heading '## [{wanted}] - YYYY-MM-DD'")
    try:
        date = datetime.date.fromisoformat(found[1])
    except ValueError:
        raise ReleaseError(f"CHANGELOG.md: {found[1]!r} is not a date like 2026-12-31") from None
    if date > datetime.date.today():
        raise ReleaseError(f"CHANGELOG.md: {date} is still to come")
    if "## [Unreleased]" not in text:
        raise ReleaseError("CHANGELOG.md has no heading '## [Unreleased]' for what comes next")


def index(dist: Path, out: Path) -> list[Path]:
    """Writes a page for each minor version of torch and returns them. Raises ReleaseError if there
    are no wheels."""
    by_torch: dict[str, list[Path]] = {}
    for wheel in sorted(dist.glob("*.whl")):
        if not (name := WHEEL.fullmatch(wheel.name)):
            raise ReleaseError(f"{wheel.name} does not say which torch it is for (+torch2.13)")
        by_torch.setdefault(name["torch"], []).append(wheel)
    if not by_torch:
        raise ReleaseError(f"{dist} has no wheels")
    pages = []
    for torch, wheels in by_torch.items():
        folder = out / f"torch{torch}" / "torch-mcast"
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for wheel in wheels:
            shutil.copy(wheel, folder)
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            rows.append(
                f'<a href="{quote(wheel.name)}#sha256={digest}" data-requires-python="&gt;=3.10">'
                f"{html.escape(wheel.name)}</a><br>"
            )
        page = folder / "index.html"
        page.write_text(
            f"<!DOCTYPE html>\n<html><head><title>torch-mcast for torch {torch}</title></head><body>\n"
            + "\n".join(rows) + "\n</body></html>\n"
        )  # fmt: skip
        pages.append(page)
    return pages


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves these files on loopback. Yields the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **(env or {})}, cwd=cwd, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return done.stdout


def copy_tracked(copy: Path, without: str | None = None) -> None:
    """Copies the tracked files, as they are now, with their times, except those below `without`."""
    for name in filter(None, run("git", "-C", ROOT, "ls-files", "-z").split("\0")):
        if without is None or not name.startswith(f"{without}/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def archive(copy: Path, dist: Path) -> Path:
    """Returns the archive of the tracked files, made in a copy: setuptools writes its folders into
    the tree that it reads."""
    copy_tracked(copy)
    program = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", program, dist, cwd=copy)
    (made,) = dist.glob("*.tar.gz")
    return made


SCRIPT = """
import torch.distributed as dist, torch_mcast
dist.init_process_group("mcast", store=dist.HashStore(), rank=0, world_size=1)
print(torch_mcast.stats()["path"], torch_mcast.__file__)
dist.destroy_process_group()
"""


def environment(home: Path) -> Path:
    """Makes an environment that sees this one's packages, such as torch, but not its torch_mcast. Returns its
    interpreter."""
    near = next(path for path in sys.path if (Path(path) / "torch").is_dir())
    # pip is that of `near`, too: with it, venv would install an older setuptools than torch requires.
    run(sys.executable, "-m", "venv", "--without-pip", home)
    (package,) = home.glob("lib/python3*/site-packages")
    # Files of this kind within `near` are not read, so an editable torch_mcast there is not found.
    (package / "near.pth").write_text(f"{near}\n")
    return home / "bin" / "python"


def install(home: Path, *words: str | Path, **env: str) -> None:
    """Installs into an environment of its own, then runs a script there."""
    inside = environment(home)
    pip = (inside, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    # pip sees the torch_mcast of this environment as installed.
    run(*pip, "--ignore-installed", "--no-deps", "--no-build-isolation", *words, env=env)
    # Not in the sources' folder: `-c` would find their torch_mcast first.
    said = run(inside, "-c", SCRIPT, cwd=home).splitlines()[-1]
    if not said.startswith("local ") or str(home) not in said:
        raise ReleaseError(f"{home.name}: expected a group of a package below {home}, got {said}")
    print(f"installed from the {home.name}: {said}", flush=True)


def check() -> None:
    check_texts()
    print(f"the changelog has version {version()}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        dist = here / "dist"
        dist.mkdir()
        run(sys.executable, ROOT / "tools" / "wheel.py", "--out", dist)
        sources = archive(here / "copy", dist)
        (page,) = index(dist, here / "pages")
        with served(here / "pages") as address:
            own = f"{address}/{page.parent.parent.name}"
            install(here / "page", "--index-url", own, "torch-mcast")
            install(here / "archive", sources, MCAST_WHEELS=f"{own}/torch-mcast/")
        out = ROOT / "dist"
        out.mkdir(exist_ok=True)
        for file in dist.iterdir():
            print(shutil.copy(file, out))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("check")
    pages = steps.add_parser("index")
    pages.add_argument("dist", type=Path)
    pages.add_argument("out", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.step == "index":
            print("\n".join(str(page) for page in index(arguments.dist, arguments.out)))
        else:
            check()
    except ReleaseError as error:
        print(f"tools/release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
