"""Forks ranks from one process that has imported torch (which takes seconds) but made no engine.

Lines of JSON on stdin: {"folder", "module", "function", "args", "rank", "world", "env", "limits",
"netns"}. Lines on stdout: {"pid": n} for each, and later {"pid": n, "code": c}: exit code, or minus the
signal. A rank leads a session of its own and ends as any script does (but see WHOLE_ENDS): by falling off
the end, an exception, sys.exit(), os._exit() or a signal, atexit handlers included. Processes that ranks leave
behind are inherited and reaped here. End of input kills what still runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# Modules of scenarios whose ranks end as any script does. The others, if nothing was raised, by
# Link.leave(): it saves most of a job's CPU time.
WHOLE_ENDS = {"scenarios_exit"}
CLONE_NEWNET = 0x40000000


def reply(**fields: int) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


def become(order: dict) -> Callable[[], None]:
    """In the child: the environment of a rank, and what it is to run."""
    os.setsid()
    # Of a suite that was started in the background: a shell has it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["netns"]:
        with open(order["netns"]) as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {order['netns']}")
    out = os.open(
        Path(order["folder"]) / f"out{order['rank']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    for target in (1, 2):
        os.dup2(out, target)
    os.close(out)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(order["env"])
    from link import Link

    link = Link(Path(order["folder"]), order["rank"], order["world"])
    for name, value in order["limits"].items():
        which = getattr(resource, name)
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
    function = getattr(importlib.import_module(order["module"]), order["function"])

    def rank() -> None:
        function(link, *order["args"])
        if order["module"] not in WHOLE_ENDS:
            link.leave()

    return rank


def keep_operators() -> None:
    """At exit torch.library takes its operators out of the dispatcher one by one: in a forked rank that copies
    7,000 pages, as much CPU time as the rest of a short job, in which nothing happens that is of this library."""
    for finalizer in list(weakref.finalize._registry):
        found = finalizer.peek()
        if found is not None and found[1].__module__ == "torch.library":
            finalizer.atexit = False


def serve() -> Callable[[], None] | None:
    """Returns in the zygote when its input ends (None), and in every child (what it is to run)."""
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    children: dict[int, int] = {}  # pidfd: pid
    pending = b""
    while True:
        events = poller.poll(200)
        # Orphans of ranks. The ranks themselves are waited for one by one.
        reap = os.WEXITED | os.WNOHANG
        while (dead := os.waitid(os.P_ALL, 0, reap | os.WNOWAIT) if children else None) is not None:
            if dead.si_pid in children.values():
                break
            os.waitid(os.P_PID, dead.si_pid, reap)
        for descriptor, _ in events:
            if descriptor != 0:
                poller.unregister(descriptor)
                pid = children.pop(descriptor)
                os.close(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                reply(pid=pid, code=code)
                continue
            data = os.read(0, 65536)
            if not data:
                for pid in children.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    for child in children:
                        os.close(child)
                    return become(order)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = pid
                poller.register(pidfd, select.POLLIN)
                reply(pid=pid)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    import torch
    import torch.distributed

    import torch_mcast

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    torch.set_num_threads(1)
    torch_mcast.Options()  # loads the extension; makes no thread and no socket
    keep_operators()
    gc.freeze()  # collections in ranks, and at their end, need not look at what was imported here
    run = serve()
    if run is not None:
        run()
