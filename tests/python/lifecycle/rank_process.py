"""The process of a job's rank, forked by launch.fork().

A rank ends as any script does (but see WHOLE_ENDS): by reaching its end, an exception, sys.exit(), os._exit()
or a signal, atexit handlers included.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import sys
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import own_network
from link import Link

# Modules of scenarios whose ranks end as any script does. Ranks of the others end by Link.leave() unless they
# raised: that saves most of a job's CPU time.
WHOLE_ENDS = {"scenarios_exit"}


def keep_operators() -> None:
    """At exit torch.library takes its operators out of the dispatcher one by one. In a forked rank that copies
    7,000 pages, as much CPU time as the rest of a short job, and runs no code of this library."""
    for finalizer in list(weakref.finalize._registry):
        found = finalizer.peek()
        if found is not None and found[1].__module__ == "torch.library":
            finalizer.atexit = False


def main(
    channel: Connection, folder: str, number: int, world: int, scenario: str, args: list[Any],
    limits: dict[str, int], netns: str,
) -> None:  # fmt: skip
    # A shell lets background jobs ignore interrupts; the test suite may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if netns:
        own_network.join(netns)
    link = Link(Path(folder), number, world, socket.socket(fileno=os.dup(channel.fileno())))
    channel.close()
    for name, value in limits.items():
        which = getattr(resource, name)
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
    module, _, function = scenario.partition(".")
    keep_operators()
    getattr(importlib.import_module(module), function)(link, *args)
    if module not in WHOLE_ENDS:
        link.leave()
    sys.exit()
