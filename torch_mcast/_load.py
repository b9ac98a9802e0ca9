"""Loads the extension module once, after checking that it was built for the installed torch."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from types import ModuleType

_extension: ModuleType | None = None
_ends_in = 0  # the process in which end_with_process() was called
_left = 0  # the process that has shut the engine down at its end
_raised = False  # an exception has ended the function of this worker
_anchor: _Anchor | None = None
_ends: set[str] = set()  # exit mechanisms that have run: "handlers", "finalizers"

# The package is in no index, so this installs from the source folder.
REINSTALL = "pip install --force-reinstall --no-deps .  (in torch-mcast's source folder)"


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def check_torch(built: str, present: str) -> None:
    """Raises ImportError if the two versions of torch differ in more than the patch level.

    The table of virtual functions of c10d::Backend changes between minor versions; a module that was
    built for another one would call the wrong functions.
    """
    if _minor(built) != _minor(present):
        raise ImportError(
            f"torch_mcast was built for torch {built}, but torch {present} is installed. Take the wheel "
            f"whose version ends in +torch{'.'.join(_minor(present))}, or build it for this torch: "
            f"{REINSTALL}"
        )


def close_after_users() -> None:
    """Closes the engine at interpreter exit, after all exit handlers of the user, which may make
    the last calls of a job. Handlers run in reverse order of registration, so this is called when
    the package is imported, at the end of `import torch`. Finalizers of `weakref` run as one of the
    handlers, at the place of the first of them, and in reverse order among themselves: the engine
    is closed when both sequences have reached ours. Idempotent."""
    global _anchor
    if _anchor is not None:
        return
    _anchor = _Anchor()
    atexit.register(_reached, "handlers")
    weakref.finalize(_anchor, _reached, "finalizers")


class _Anchor:
    """Lives as long as the process."""


def _reached(which: str) -> None:
    _ends.add(which)
    if len(_ends) == 2 and _extension is not None:
        _shutdown(_extension)


def _shutdown(module: ModuleType) -> None:
    """Shuts the engine down before the interpreter ends: small operations may still need to be
    confirmed to peers, and no callback may enter Python afterwards. If an exception ends the script
    (also Ctrl-C), it does not wait for operations in flight: other ranks are notified at once."""
    _leave(module, _raised or getattr(sys, "last_value", None) is not None)


def end_with_process() -> None:
    """Arranges the shutdown at the end of this process; called when a group is created. Forked
    workers of `multiprocessing` skip the interpreter's exit handlers and run their own. Without a
    shutdown message the other ranks would treat them as lost."""
    global _ends_in
    if _ends_in == os.getpid():
        return
    _ends_in = os.getpid()
    from multiprocessing.util import Finalize

    Finalize(None, _end_worker, args=(extension(),), exitpriority=0)


def _end_worker(module: ModuleType) -> None:
    """Runs at the end of a worker's function, or among the exit handlers of another process."""
    global _raised
    error = sys.exc_info()[1]
    _raised = error is not None and not isinstance(error, SystemExit)
    if not _exit_handlers_follow():
        _leave(module, _raised)


def _exit_handlers_follow() -> bool:
    """Returns whether this process runs the interpreter's exit handlers: all do but workers that
    `multiprocessing` has forked, directly or by a fork server."""
    from multiprocessing import current_process, get_start_method, parent_process

    if parent_process() is None:
        return True
    own = getattr(current_process(), "_start_method", None)  # None: the default context's method
    return (own or get_start_method(allow_none=True)) == "spawn"


def _leave(module: ModuleType, give_up: bool) -> None:
    """Shuts the engine down once: a process with exit handlers also runs multiprocessing's, so this
    is called twice."""
    global _left
    if _left != os.getpid():
        _left = os.getpid()
        module.shutdown(give_up=give_up)


def extension() -> ModuleType:
    """Returns torch_mcast._C, loading it at the first call."""
    global _extension
    if _extension is not None:
        return _extension
    import torch  # if it is missing or broken, Python's own error is raised

    try:
        from torch_mcast import _build_info
    except ImportError:
        raise ImportError(
            "torch_mcast has no compiled extension here. Install it with "
            "'pip install .' (or 'pip install -e .') in the source folder."
        ) from None
    check_torch(_build_info.TORCH_VERSION, str(torch.__version__))
    from torch_mcast import _C

    close_after_users()
    _extension = _C
    return _C
