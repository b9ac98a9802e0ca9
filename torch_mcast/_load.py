"""Loads the extension module, once, after checking that it was built for the torch that is here."""

from __future__ import annotations

import atexit
import sys
from types import ModuleType

_extension: ModuleType | None = None

# No index has a package of ours.
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


def _shutdown(module: ModuleType) -> None:
    """Runs before the interpreter goes: small operations may still need to be confirmed to peers, and
    nothing may call into Python afterwards. A script that an exception ends (Ctrl-C too) does not wait
    for operations that it leaves in flight: other ranks learn of it at once."""
    module.shutdown(give_up=getattr(sys, "last_value", None) is not None)


def extension() -> ModuleType:
    """torch_mcast._C."""
    global _extension
    if _extension is not None:
        return _extension
    import torch  # what is wrong with it, or that it is missing, is said as Python says it

    try:
        from torch_mcast import _build_info
    except ImportError:
        raise ImportError(
            "torch_mcast has no compiled extension here. Install it with "
            "'pip install .' (or 'pip install -e .') in the source folder."
        ) from None
    check_torch(_build_info.TORCH_VERSION, str(torch.__version__))
    from torch_mcast import _C

    atexit.register(_shutdown, _C)
    _extension = _C
    return _C
