"""Options of several backends in one object. torch.distributed passes the one pg_options of a group
to each of its backends, and NCCL's accepts only its own class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_mcast._load import extension
from torch_mcast._names import BACKEND


def settable(options: Any) -> dict[str, Any]:
    """Returns the fields that can be set, with their values."""
    fields = {}
    for name in dir(options):
        of_class = getattr(type(options), name, None)
        fixed = isinstance(of_class, property) and of_class.fset is None
        if name.startswith("__") or callable(of_class) or fixed or name == BACKEND:
            continue
        if hasattr(options, name):  # a slot may be empty
            fields[name] = getattr(options, name)
    return fields


def fill(options: Any, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)


def options_by_backend(options: Mapping[str, Any]) -> Any:
    """Returns `pg_options` for a group whose devices have different backends
    (`"cpu:mcast,cuda:nccl"`).

    `options` has the options of mcast and of one other backend, by name: `{"mcast":
    torch_mcast.Options(...), "nccl": ProcessGroupNCCL.Options(...)}`. The result is an object of
    the other backend's class with its values, and also carries the options of mcast.

    Raises:
        TypeError: The options of mcast are not `torch_mcast.Options`.
        ValueError: `options` does not have mcast and exactly one other backend.
    """
    others = [name for name in options if name != BACKEND]
    if BACKEND not in options or len(others) != 1:
        raise ValueError(
            f'torch_mcast.options_by_backend: expected "{BACKEND}" and one other backend, got '
            f"{', '.join(map(repr, options)) or 'nothing'}"
        )
    ours, theirs = options[BACKEND], options[others[0]]
    if not isinstance(ours, extension().Options):
        raise TypeError(
            f'torch_mcast.options_by_backend: "{BACKEND}": expected torch_mcast.Options, got '
            f"{type(ours).__module__}.{type(ours).__qualname__}"
        )
    kind = type(theirs)
    both = type(kind.__name__, (kind,), {"__module__": kind.__module__})()
    fill(both, settable(theirs))
    both.mcast = ours
    return both


def ours_of(options: Any) -> Any:
    """Returns the torch_mcast.Options in what c10d has passed, or None."""
    if isinstance(options, extension().Options):
        return options
    carried = getattr(options, BACKEND, None)
    return carried if isinstance(carried, extension().Options) else None
