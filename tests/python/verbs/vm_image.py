"""Kernel and initramfs of the lab's virtual machines, built once and cached.

The kernel is Debian's or Ubuntu's (it has Soft-RoCE and netem, which a container's host may lack):
its packages are fetched with apt and unpacked into an empty folder, and only the image and the few
modules that are needed are kept. The initramfs loads them in order, mounts the host's root
read-only over 9p, and runs the command in the share; see vm.py for the other side.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import own_network

from torch_mcast.lab.system import LabError, call

# crc32_generic: rdma_rxe loads it at run time, so it is not among its dependencies.
MODULES = (
    "virtio_pci", "virtio_net", "9pnet_virtio", "9p", "crc32_generic", "crc32c_generic", "ib_uverbs",
    "rdma_ucm", "ib_umad", "rdma_rxe", "sch_netem", "overlay",
)  # fmt: skip

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "modprobe": "kmod",
    "cpio": "cpio",
    "rdma": "iproute2",
    "ip": "iproute2",
    "dpkg": "dpkg",
    "apt-get": "apt",
    "zstd": "zstd",
}

# Meta-packages of the newest kernel: Debian's, Ubuntu's.
KERNELS = ("linux-image-amd64", "linux-image-generic")

# The folder in which the guest finds the command, and leaves its output and exit code.
SHARE = "/run/mcast"

_INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for option in $(cat /proc/cmdline); do
  case $option in node=*|address=*) export "$option";; esac
done
while read -r module; do insmod /modules/$module || echo "insmod $module failed"; done < /modules/order
ip link set lo up
ip link set eth0 up
ip addr add $address/24 dev eth0
ip route add 224.0.0.0/4 dev eth0
p9=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o ro,$p9,cache=loose root9p /root || poweroff -f
mount -t tmpfs tmpfs /root/run
mkdir /above
mount -t tmpfs tmpfs /above
mkdir /above/files /above/work
mount -t overlay -o lowerdir=/root/tmp,upperdir=/above/files,workdir=/above/work overlay /root/tmp \
  || poweroff -f
mkdir -p /root@SHARE@ /root/run/lock
mount -t 9p -o $p9,cache=none share /root@SHARE@ || poweroff -f
for folder in proc sys dev; do mount -o bind /$folder /root/$folder; done
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts pts /dev/pts
hostname node$node
chroot /root /usr/bin/env -i NODE=$node ADDRESS=$address /bin/sh @SHARE@/start
sync
poweroff -f
""".replace("@SHARE@", SHARE)


@dataclass(frozen=True)
class Image:
    kernel: Path
    initrd: Path


def cache_dir() -> Path:
    """Returns MCAST_VM_CACHE, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MCAST_VM_CACHE") or Path(base) / "torch-mcast" / "vm")


def missing_tools() -> list[str]:
    """Returns the Debian packages of the programs that are not installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=path)})


def require_tools() -> None:
    """Raises LabError naming the packages to install, or if the machine is not an x86-64."""
    if platform.machine() != "x86_64":
        raise LabError(f"virtual machines of the lab are x86-64 only, this is {platform.machine()}")
    if missing := missing_tools():
        raise LabError(f"the lab's virtual machines need: apt install {' '.join(missing)}")


def depends(package: str) -> list[str]:
    """Returns its dependencies; none if apt does not know the package."""
    shown = subprocess.run(
        ["apt-cache", "depends", package], capture_output=True, text=True, timeout=60
    )
    lines = (line.strip().partition(": ") for line in shown.stdout.splitlines())
    return [name for word, _, name in lines if word == "Depends"]


def kernel_packages() -> list[str]:
    """Returns the packages with the image and the modules: one in Debian, three in Ubuntu."""
    for newest in KERNELS:
        for image in depends(newest):
            if not image.startswith("linux-image-"):
                continue
            version = image.removeprefix("linux-image-")
            wanted = {f"linux-modules-{version}", f"linux-modules-extra-{version}"}
            return [image, *sorted(wanted & {*depends(newest), *depends(image)})]
    raise LabError(f"apt knows neither {' nor '.join(KERNELS)}: apt-get update")


def image() -> Image:
    """Returns the cached image, built first if there is none of this recipe."""
    require_tools()
    recipe = hashlib.sha256(repr((MODULES, _INIT)).encode()).hexdigest()[:12]
    home = cache_dir()
    found = sorted(home.glob(f"*-{recipe}/initrd.gz"))
    if not found:
        _build(home, recipe)
        found = sorted(home.glob(f"*-{recipe}/initrd.gz"))
    return Image(found[-1].with_name("vmlinuz"), found[-1])


def _build(home: Path, recipe: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="build-") as folder:
        work = Path(folder)
        _fetch(kernel_packages(), work)
        root = work / "root"
        for package in work.glob("*.deb"):
            call(["dpkg", "-x", str(package), str(root)])
        version = next((root / "lib/modules").iterdir()).name
        done = work / "done"
        done.mkdir()
        shutil.copyfile(root / f"boot/vmlinuz-{version}", done / "vmlinuz")
        _pack(_tree(root, version, work / "tree"), done / "initrd.gz")
        target = home / f"{version}-{recipe}"
        try:
            done.rename(target)
        except OSError:  # another process was faster
            if not (target / "initrd.gz").exists():
                raise


def _fetch(packages: list[str], folder: Path) -> None:
    def download() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["apt-get", "download", *packages],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )

    with own_network.of_the_machine():
        done = download()
        if done.returncode:
            subprocess.run(["apt-get", "update"], capture_output=True, timeout=600)
            done = download()
    if done.returncode:
        raise LabError(f"apt-get download {' '.join(packages)}: {done.stderr.strip()}")


def _tree(root: Path, version: str, tree: Path) -> Path:
    """Builds the files of the initramfs."""
    call(["depmod", "-b", str(root), version])
    for name in ("bin", "modules", "proc", "sys", "dev", "root"):
        (tree / name).mkdir(parents=True)
    order: list[str] = []
    for module in MODULES:
        shown = call(
            [
                "modprobe",
                "-d",
                str(root),
                "-S",
                version,
                "--show-depends",
                "--ignore-install",
                module,
            ]
        )
        for line in shown.splitlines():
            words = line.split()
            if words[:1] != ["insmod"]:
                continue
            path = Path(words[1])
            name = path.name.removesuffix(".xz").removesuffix(".zst")
            if name not in order:
                order.append(name)
                (tree / "modules" / name).write_bytes(_module(path))
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    init = tree / "init"
    init.write_text(_INIT)
    init.chmod(0o755)
    return tree


def _module(path: Path) -> bytes:
    """Returns a module as busybox's insmod accepts it: not compressed."""
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True).stdout
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def _pack(tree: Path, target: Path) -> None:
    subprocess.run(
        ["sh", "-ec", f"find . | cpio -o -H newc --quiet | gzip -1 > {target}"],
        cwd=tree, check=True, timeout=120,
    )  # fmt: skip
