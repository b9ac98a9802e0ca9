"""torch-mcast: a PyTorch process group whose broadcast and all-gather use reliable multicast.

    import torch.distributed as dist
    import torch_mcast                      # not needed once the package is installed

    dist.init_process_group("mcast")
    torch_mcast.stats()                     # path taken, repairs, calls by engine and fallback

Importing this package registers the backend, or arranges that it is registered when
torch.distributed is imported. It loads nothing else, so the command line works without torch. The
extension module is loaded when the first group is made or one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_mcast._load import close_after_users
from torch_mcast._names import BACKEND
from torch_mcast._register import register, register_with_torch, replace_cpu_allocator

__version__ = "0.1.0"
__all__ = [
    "BACKEND",
    "Options",
    "Stats",
    "__version__",
    "abort",
    "clear_failure",
    "config",
    "contributors",
    "dump_flight_recorder",
    "export_chrome_trace",
    "flight_recorder",
    "metrics",
    "options_by_backend",
    "read_error",
    "register",
    "stats",
    "trace",
]


def _inside_import_torch() -> bool:
    import sys

    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


try:
    close_after_users()
    register_with_torch()
    replace_cpu_allocator()
except Exception:
    # torch's entry point imports this package at the end of `import torch`, which must not fail.
    if not _inside_import_torch():
        raise

if TYPE_CHECKING:
    from torch_mcast._C import Options
    from torch_mcast._errors import read_error
    from torch_mcast._flight import dump_flight_recorder, flight_recorder
    from torch_mcast._metrics import metrics
    from torch_mcast._options import options_by_backend
    from torch_mcast._stats import abort, clear_failure, config, contributors, stats
    from torch_mcast._stats_types import Stats
    from torch_mcast._trace import export_chrome_trace, trace

_LAZY = {
    "Options": "_load",
    "Stats": "_stats_types",
    "stats": "_stats",
    "abort": "_stats",
    "clear_failure": "_stats",
    "config": "_stats",
    "contributors": "_stats",
    "dump_flight_recorder": "_flight",
    "flight_recorder": "_flight",
    "metrics": "_metrics",
    "options_by_backend": "_options",
    "read_error": "_errors",
    "trace": "_trace",
    "export_chrome_trace": "_trace",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    value = getattr(module.extension(), name) if name == "Options" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
