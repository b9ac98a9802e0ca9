"""A persistent worker: calls functions that a driver sends over a socket, one after the other.

`serve()` takes its channel. The interpreter and its imports are kept between calls (importing torch
takes seconds); the environment of each call is set for that call only."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from torch_mcast.lab import calls

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _destroy_process_groups() -> None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _call(channel: Connection, function: Any, args: tuple[Any, ...]) -> None:
    """Runs one function and reports how it ended; its process groups do not outlive it."""
    try:
        try:
            value = function(calls.Context(channel), *args)
        finally:
            _destroy_process_groups()
        calls.send(channel, "done", value)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the driver ends workers
        import cloudpickle

        text = traceback.format_exc()
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
            calls.send(channel, "failed", error, text)
        except Exception:  # noqa: BLE001 - a value that cannot be pickled is sent as text
            calls.send(channel, "failed", None, text)


def serve(channel: Connection) -> None:
    """Replies to calls until the driver sends an exit or is gone."""
    base = dict(os.environ)
    while True:
        try:
            kind, *rest = calls.receive(channel)
        except EOFError:
            return
        if kind == "exit":
            return
        if kind == "signal":  # for a call that ended before it looked
            continue
        function, args, env, preload = rest
        os.environ.clear()
        os.environ.update({**base, **env})
        try:
            for module in preload:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - torch raises OSError where a library is missing
            failure = ImportError(f"{type(error).__name__}: {error}")
            calls.send(channel, "failed", failure, traceback.format_exc())
            continue
        _call(channel, function, args)
        sys.stdout.flush()
        sys.stderr.flush()


def die_with_parent() -> None:
    """Arranges SIGKILL when the thread that started this process ends: a worker that hangs in a
    collective would not notice the end of its channel."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
