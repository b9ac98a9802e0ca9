"""Runs the few commands of the machine that the lab needs: ip, tc, bridge, nft, ethtool.

They are called in batches (one process for many lines), because starting a process costs more than
the work it does here. Errors contain the command and its output.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NETNS_DIR = Path("/run/netns")
_SYSCTLS = Path("/proc/sys")
_CALL_S = 60
_TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "nft": "nftables",
    "ethtool": "ethtool",
    "unshare": "util-linux",
}


# Kernel settings that forbid user namespaces: name, value, meaning, remedy.
_RESTRICTIONS = (
    (
        "kernel.apparmor_restrict_unprivileged_userns",
        "1",
        "Ubuntu, from 23.10 on, restricts user namespaces to programs with an AppArmor profile",
        "kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "kernel.unprivileged_userns_clone",
        "0",
        "this kernel keeps user namespaces for root",
        "kernel.unprivileged_userns_clone=1",
    ),
    (
        "user.max_user_namespaces",
        "0",
        "this kernel allows no user namespaces",
        "user.max_user_namespaces=10000",
    ),
)


# Runs a module of the lab without its parent package's __init__, which with
# MCAST_ENGINE_MEMORY=map_all loads the extension and torch and creates arenas; a process that forks
# others must not have arenas. The module is loaded from the given folder, which is not added to
# sys.path, where it could hide other modules. Afterwards `import torch_mcast` still gets the real
# package.
_BOOT = """
import sys, types
package = sys.modules["torch_mcast"] = types.ModuleType("torch_mcast")
package.__path__ = [{folder!r}]
from torch_mcast.lab.{module} import main
if sys.modules.get("torch_mcast") is package:
    del sys.modules["torch_mcast"]
sys.exit(main())
"""


class LabError(RuntimeError):
    """A lab could not be built, found or used."""


class LabRightsError(LabError):
    """This process may not create network namespaces; the message gives the remedy."""


def tool(name: str) -> str:
    """Returns the path of a tool of the lab, as check_tools() finds it, whatever PATH the caller has."""
    return shutil.which(name, path=_path()) or name


def finished(
    argv: list[str], timeout_s: float, words: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Returns a command that has ended, with its output captured. Raises LabError if it does not
    end; the error calls it `words` (default: the command line)."""
    try:
        return subprocess.run(argv, timeout=timeout_s, capture_output=True, text=True, **options)
    except subprocess.TimeoutExpired:
        raise LabError(f"{words or ' '.join(argv)}: has not ended after {timeout_s:g} s") from None


def call(argv: list[str], text_in: str | None = None, check: bool = True) -> str:
    """Returns the standard output of a command. Raises LabError with its output if it fails or does
    not end."""
    env = {**os.environ, "PATH": _path()}
    done = finished([tool(argv[0]), *argv[1:]], _CALL_S, " ".join(argv), input=text_in, env=env)
    if check and done.returncode:
        lines = f"\n--- input\n{text_in[:2000]}" if text_in else ""
        raise LabError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}{lines}")
    return done.stdout


def call_json(argv: list[str]) -> Any:
    """Returns the parsed standard output of a command that prints JSON."""
    return json.loads(call(argv) or "[]")


def ip_batch(lines: list[str], namespace: str | None = None) -> None:
    """Runs ip(8) lines, in a namespace if given; stops at the first error."""
    if lines:
        inside = ["-n", namespace] if namespace else []
        call(["ip", *inside, "-batch", "-"], "\n".join(lines) + "\n")


def tc_batch(lines: list[str], namespace: str) -> None:
    if lines:
        call(["tc", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def shell(namespace: str, script: str) -> str:
    """Runs a /bin/sh script inside a namespace, with that namespace's /sys."""
    return call(["ip", "netns", "exec", namespace, "sh", "-ec", script])


def nft(namespace: str, script: str) -> None:
    call(["ip", "netns", "exec", namespace, "nft", "-f", "-"], script)


def check_tools() -> None:
    """Raises LabError naming the packages of the tools that are not installed."""
    missing = [tool for tool in _TOOLS if not shutil.which(tool, path=_path())]
    if missing:
        packages = sorted({_TOOLS[tool] for tool in missing})
        raise LabError(f"the lab needs {', '.join(missing)}: apt install {' '.join(packages)}")


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def capable() -> bool:
    """Returns true if this process has CAP_NET_ADMIN and CAP_SYS_ADMIN (bits 12 and 21)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            caps = int(line.split()[1], 16)
            return bool(caps >> 12 & 1 and caps >> 21 & 1)
    return False


def rootless_possible() -> bool:
    """Returns true if this kernel lets this user create a user namespace with a network namespace in it."""
    try:
        done = subprocess.run(
            [tool("unshare"), "-Urnm", "true"], capture_output=True, timeout=_CALL_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _why_not_rootless() -> str:
    """Returns the setting that forbids user namespaces here, and how to allow them."""
    for name, value, who, fix in _RESTRICTIONS:
        try:
            if (_SYSCTLS / name.replace(".", "/")).read_text().strip() == value:
                return f"{who} ({name}={value}); to allow them until the next boot: sysctl -w {fix}"
        except OSError:
            continue
    return "this kernel allows no user namespaces here (a container: --privileged or --cap-add)"


def require_rights() -> None:
    """Raises LabRightsError unless this process can create namespaces."""
    check_tools()
    if capable():
        return
    if rootless_possible():
        raise LabRightsError(
            "making network namespaces needs root; without it run the program in a user namespace: "
            "torch-mcast lab rootless -- COMMAND (`lab run` does that by itself)"
        )
    raise LabRightsError(
        "making network namespaces needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN), and without it: "
        + _why_not_rootless()
    )


def namespaces(prefix: str) -> list[str]:
    """Returns the names of the existing network namespaces that start with prefix."""
    if not NETNS_DIR.is_dir():
        return []
    return sorted(path.name for path in NETNS_DIR.iterdir() if path.name.startswith(prefix))


def pids_in(names: list[str]) -> list[int]:
    """Returns the processes whose network namespace is one of the named ones."""
    wanted = set()
    for name in names:
        try:
            wanted.add(os.stat(NETNS_DIR / name).st_ino)
        except OSError:
            continue
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}/ns/net").st_ino in wanted:
                    found.append(int(entry))
            except OSError:  # it ended, or is a zombie
                continue
    return found


def package_root() -> str:
    """Returns the folder to put on PYTHONPATH so that children find this package, installed or not."""
    return str(Path(__file__).resolve().parents[2])


def python_argv(
    module: str, *arguments: str, python: str = sys.executable, package: Path | None = None
) -> list[str]:
    """Returns a command line that calls main() of torch_mcast.lab.<module> in a new interpreter,
    without importing torch. package: the folder of another copy of torch_mcast."""
    folder = str(package or Path(__file__).resolve().parents[1])
    return [python, "-c", _BOOT.format(folder=folder, module=module), *arguments]
