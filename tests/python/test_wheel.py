"""Wheels that need no compiler (tools/wheel.py). The tier of all tests builds one, checks its
requirements, and trains with it on a system without a compiler."""

from __future__ import annotations

import email
import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torchrun import torchrun

ROOT = Path(__file__).parents[2]
ON_X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="wheels are for x86-64")

sys.path.append(str(ROOT / "tools"))
import sources  # noqa: E402
import sysroot  # noqa: E402

spec = importlib.util.spec_from_file_location("wheel_tool", ROOT / "tools" / "wheel.py")
assert spec is not None and spec.loader is not None
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.fixture()
def mirror(tmp_path, monkeypatch):
    """A folder in the place of Debian's archive, named after one that does not exist."""
    folder = tmp_path / "mirror"
    (folder / "pool").mkdir(parents=True)
    (folder / "pool" / "a.deb").write_bytes(b"a package")
    nowhere = (tmp_path / "nowhere").as_uri()
    monkeypatch.setenv("MCAST_DEBIAN_MIRROR", f"{nowhere} {folder.as_uri()}")
    return folder


def test_a_package_is_the_one_that_is_meant(mirror, tmp_path):
    digest = hashlib.sha256(b"a package").hexdigest()
    package = sources.Source("debian", "link", "pool/a.deb", digest)
    kept = sources.fetched(package, tmp_path / "kept")
    assert kept.read_bytes() == b"a package"
    # Another one under its name is neither taken nor kept.
    (mirror / "pool" / "a.deb").write_bytes(b"another package")
    kept.unlink()
    with pytest.raises(
        sources.SourceError,
        match=r"cannot fetch pool/a\.deb: .*nowhere/: .*mirror/: not the file that is meant .*MCAST_DEBIAN_MIRROR",
    ):
        sources.fetched(package, tmp_path / "kept")
    assert not kept.exists()
    # What was spoilt on this machine is fetched again.
    (mirror / "pool" / "a.deb").write_bytes(b"a package")
    kept.write_bytes(b"half a pack")
    assert sources.fetched(package, tmp_path / "kept").read_bytes() == b"a package"


def test_addresses_of_archives_are_the_package_managers(tmp_path, monkeypatch):
    """No archive's address is written in tools/: what apt has, then what python-apt-common says."""
    for name in ("MCAST_DEBIAN_MIRROR", "MCAST_UBUNTU_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    apt = tmp_path / "bin" / "apt-get"
    apt.parent.mkdir()
    apt.write_text(
        "#!/bin/sh\necho 'Debian http://near.example/debian/'\necho 'Other http://other.example/debian/'\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", str(apt.parent))
    monkeypatch.setattr(sources, "TEMPLATES", tmp_path)
    (tmp_path / "Debian.info").write_text(
        "Suite: a\nBaseURI: http://known.example/debian\nBaseURI: http://known.example/debian/\n"
        "BaseURI: http://ports.example/debian-ports/\n"
    )
    (tmp_path / "ubuntu.info").write_text("BaseURI: http://known.example/ubuntu/\n")
    near, known = "http://near.example/debian/", "http://known.example/debian/"
    assert sources.mirrors("debian") == [near, known]
    assert sources.mirrors("ubuntu") == ["http://known.example/ubuntu/"]
    (tmp_path / "ubuntu.info").unlink()
    apt.unlink()
    assert sources.mirrors("debian") == [known]
    with pytest.raises(
        sources.SourceError, match="install python-apt-common, or set MCAST_UBUNTU_MIRROR"
    ):
        sources.mirrors("ubuntu")
    monkeypatch.setenv("MCAST_UBUNTU_MIRROR", "http://set.example/x")
    assert sources.mirrors("ubuntu") == ["http://set.example/x/"]


def test_files_of_archives_are_listed_once_with_their_hash():
    uses = [*(f"sysroot-{machine}" for machine in sysroot.MACHINES), "link"]
    rows = [row for use in uses for row in sources.listed(use)]
    text = [line for line in sources.LIST.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == len(text) == len({row.path for row in rows}) > 8
    for row in rows:
        assert row.archive in sources.ARCHIVES and re.fullmatch("[0-9a-f]{64}", row.sha256)
        assert row.path.startswith("pool/")
    addresses = [
        name
        for name in (
            "sources.py",
            "sources.tsv",
            "sysroot.py",
            "wheel.py",
            "aarch64.sh",
            "setup.sh",
        )
        if re.search(r"https?://\S*(debian|ubuntu)", (ROOT / "tools" / name).read_text())
    ]
    assert not addresses


def test_builds_in_one_folder_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "WORK", tmp_path / "work")
    at_once = fcntl.LOCK_EX | fcntl.LOCK_NB
    with tool.one_at_a_time():
        second = (tmp_path / "work" / "lock").open("w")
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, at_once)
    fcntl.flock(second, at_once)
    second.close()


@pytest.mark.parametrize("machine", sysroot.MACHINES)
def test_a_python_of_debian_has_its_configuration_elsewhere(tmp_path, monkeypatch, machine):
    """Its pyconfig.h says #include <x86_64-linux-gnu/python3.11/pyconfig.h>."""
    monkeypatch.setattr(tool, "WORK", tmp_path / "work")
    headers = tmp_path / "include" / "python3.11"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {headers}\n")
    python.chmod(0o755)
    assert tool.pythons_configuration(python, machine) == []
    own = headers.parent / sysroot.triplet(sysroot.HERE) / "python3.11"
    own.mkdir(parents=True)
    (own / "pyconfig.h").write_text("of this machine")
    option, folder = tool.pythons_configuration(python, machine)
    assert option == "-isystem"
    found = Path(folder, sysroot.triplet(machine), "python3.11", "pyconfig.h")
    assert found.read_text() == "of this machine"


def test_links_of_the_old_system_stay_in_it(tmp_path):
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libdl.so.2").write_text("old")
    (tmp_path / "usr/lib/libdl.so").symlink_to("/lib/libdl.so.2")
    (tmp_path / "usr/lib/near.so").symlink_to("libdl.so")
    sysroot.relative_links(tmp_path)
    assert (tmp_path / "usr/lib/libdl.so").read_text() == "old"
    assert os.readlink(tmp_path / "usr/lib/near.so") == "libdl.so"


def test_the_sources_of_a_wheel_contain_no_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "WORK", tmp_path)
    source = tool.source_of("2.13", "x86_64")
    assert (source / "NOTICE").exists() and (source / "csrc/core").is_dir()
    assert not (source / "tests").exists()


def test_the_metadata_of_a_wheel(tmp_path, monkeypatch):
    """An index or `pip show` shows this metadata: it is made from the copy from which a wheel is
    made, without compiling."""
    monkeypatch.setattr(tool, "WORK", tmp_path)
    source = tool.source_of("2.13", "x86_64")
    program = "import setuptools.build_meta as b, sys; print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        cwd=source, capture_output=True, text=True, check=False,
        env={**os.environ, "MCAST_LOCAL_VERSION": "torch2.13"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / done.stdout.strip().splitlines()[-1]
    told = email.message_from_string((folder / "METADATA").read_text())
    for word in (
        "all collectives",
        "point to point",
        "multicast",
        "shared memory",
        "reductions in",
    ):
        assert word in told["Summary"]
    assert len(told["Summary"]) <= 512  # an index refuses longer ones
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert told["Version"] == "0.1.0+torch2.13"
    minor = ".".join(
        torch.__version__.split(".")[:2]
    )  # of this interpreter, with which the test builds
    assert f"torch=={minor}.*" in told.get_all("Requires-Dist")
    assert "mcast = torch_mcast._autoload:autoload" in (folder / "entry_points.txt").read_text()


def test_wrong_options_are_reported_in_one_line():
    words = [sys.executable, ROOT / "tools" / "wheel.py", "--torch", "2.13.0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--python and --torch go together" in done.stderr


@pytest.fixture()
def another() -> str:
    """A machine that this one is not."""
    return next(machine for machine in sysroot.MACHINES if machine != os.uname().machine)


def test_python_describes_itself_as_one_of_another_machine(another, tmp_path, monkeypatch):
    """The names of extension and wheel, which setuptools and CMake ask this interpreter for."""
    monkeypatch.setattr(tool, "WORK", tmp_path)
    question = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'), s.get_platform())"
    told = subprocess.run(
        [sys.executable, "-c", question],
        env={**os.environ, **tool.as_on(another, Path(sys.executable))},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    assert told == [f".{tag}-{another}-linux-gnu.so", f"linux-{another}"]
    assert tool.as_on(os.uname().machine, Path(sys.executable)) == {}


def test_a_missing_cross_compiler_is_named_with_its_package(another, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    package = f"g\\+\\+-{another.replace('_', '-')}-linux-gnu"
    with pytest.raises(
        sysroot.WheelError, match=f"need {another}-linux-gnu-g.*apt-get install {package}"
    ):
        sysroot.sysroot(another)


def test_no_header_of_this_machines_c_library_is_searched(tmp_path, monkeypatch):
    """Only the compiler's own folders are left of those that it searches by itself: a newer header would ask
    for newer symbols."""
    (tmp_path / "usr/include").mkdir(parents=True)
    (tmp_path / "usr/include/features.h").touch()
    machine = os.uname().machine
    made = sysroot.described(machine, tmp_path)
    assert made.headers[-1] == tmp_path / "usr/include"
    for folder in made.headers[:-1]:
        assert not (folder / "features.h").exists()
    assert any((folder / "vector").exists() for folder in made.headers)
    assert "-nostdinc++" in made.flags("c++") and "-nostdinc++" not in made.flags("c")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "wheel.py", "--out", out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@ON_X86
@pytest.mark.all_tier
def test_a_wheel_asks_no_more_than_its_name_says(wheel, tmp_path):
    import torch

    minor = ".".join(torch.__version__.split(".")[:2])
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert wheel.name == f"torch_mcast-0.1.0+torch{minor}-{tag}-{tag}-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        archive.extractall(tmp_path)
    assert f"Requires-Dist: torch=={minor}.*" in text
    for licence in ("NOTICE", "LICENSE", "LICENSE.highway", "LICENSE.isa-l"):
        assert any(name.endswith(f"/{licence}") for name in names), licence
    assert not any("libtorch" in name or "libc10" in name for name in names)
    binaries = [*tmp_path.glob("torch_mcast/*.so"), *tmp_path.glob("torch_mcast/mcast-*")]
    assert len(binaries) == 4  # the extension, aggregator, engine, simulator
    for binary in binaries:
        asked = subprocess.run(
            ["objdump", "-p", binary], capture_output=True, text=True, check=True
        ).stdout
        needed = set(re.findall(r"NEEDED +(\S+)", asked))
        assert needed <= {
            *tool.TORCHS_OWN, "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0",
            "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2",
        }  # fmt: skip
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", asked)}
        assert versions and max(versions) <= (2, 28)


@ON_X86
@pytest.mark.all_tier
def test_a_wheel_trains_where_no_compiler_is(wheel, tmp_path):
    """The wheel is used with this environment's torch, and precedes the sources' own build on the path."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel,
    ]
    subprocess.run(install, check=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist, torch_mcast\n"
        f"assert torch_mcast.__file__.startswith({str(tmp_path)!r}), torch_mcast.__file__\n"
        "dist.init_process_group('mcast')\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad(); model(torch.randn(8, 64)).square().mean().backward(); optimizer.step()\n"
        "out = torch.empty(2 * 5000); dist.all_gather_into_tensor(out, torch.full((5000,), float(dist.get_rank())))\n"
        "assert out[0] == 0 and out[-1] == 1\n"
        "dist.destroy_process_group(); print('trained')\n"
    )
    done = subprocess.run(
        [*torchrun(2), script],
        env={"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("trained") == 2, done.stdout + done.stderr
