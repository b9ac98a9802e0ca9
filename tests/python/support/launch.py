"""Forks processes of tests from one process that has imported torch, which takes seconds: the lab's
zygote, one per process that runs tests."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from torch_mcast.lab import zygote
from torch_mcast.lab.inside import Inside
from torch_mcast.lab.system import package_root

# (torch._dynamo: optimizers, DDP and FSDP import it at their first use.)
MODULES = ("torch.distributed.fsdp", "torch._dynamo", "torch_mcast", "pytest")
# Variables that imports read.
_AT_IMPORT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Tests change it temporarily; a worker lives longer.
_ENVIRONMENT = dict(os.environ)
_lock = threading.Lock()


def fork(
    entry: str,
    *arguments: Any,
    channel: int,
    log: Path,
    env: dict[str, str] | None = None,
    whole_env: dict[str, str] | None = None,
    inside: Inside | None = None,
    preload: tuple[str, ...] = MODULES,
) -> zygote.Forked:
    """Starts a process that calls entry ("module:function") with the channel and arguments (of JSON). `env` is added
    to the environment with which the tests were started, `whole_env` replaces it. `preload`: modules that the process
    is forked with; none for an environment that imports read."""
    path = [package_root(), str(Path(__file__).parent), *filter(None, sys.path)]
    full = {**_ENVIRONMENT, **(env or {})} if whole_env is None else whole_env
    order = zygote.Order(full, path, str(log), inside, entry, list(arguments))
    at_import = {**_ENVIRONMENT, **_AT_IMPORT, "PYTHONPATH": os.pathsep.join(path)}
    with _lock:  # tests start jobs in several threads
        return zygote.shared(preload, sys.executable, at_import).fork(order, channel)
