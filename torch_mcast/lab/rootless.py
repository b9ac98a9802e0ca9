"""Labs without root: the whole program runs as root of a user namespace.

The namespaces of such a lab belong to the program and vanish with its last process, so only
commands that hold the lab themselves (`lab run`, a test run, the benchmark) can be used like this.
"""

from __future__ import annotations

import os
import sys

from torch_mcast.lab import system

_MARK = "MCAST_LAB_ROOTLESS"
# A private /run, where ip(8) and the lab keep their files.
_SCRIPT = 'mount -t tmpfs tmpfs /run && mkdir /run/netns && exec "$@"'


def exec_inside(argv: list[str]) -> None:
    """Replaces this process by argv inside a new user, network and mount namespace."""
    os.environ[_MARK] = "1"
    os.execvp(system.tool("unshare"), ["unshare", "-Urnm", "sh", "-ec", _SCRIPT, "sh", *argv])


def enter_if_needed(argv: list[str]) -> None:
    """For commands that hold their lab: restarts in a user namespace if the rights are missing and
    the kernel allows it; else returns, and the lab's own check reports the reason."""
    system.check_tools()
    if system.capable() or os.environ.get(_MARK) or not system.rootless_possible():
        return
    print("torch-mcast lab: no root: using a user namespace", file=sys.stderr)
    sys.stdout.flush()
    exec_inside(argv)
