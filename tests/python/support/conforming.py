"""Checks that a returned value has the declared type: TypedDicts down to their last field."""

from __future__ import annotations

import types
import typing
from typing import Any


def conforms(value: Any, kind: Any, where: str = "") -> None:
    """Raises AssertionError at the first place that is not of this type. An extra field is an
    error, too."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind)
        assert set(value) == set(fields), (where, set(value) ^ set(fields))
        for name, inner in fields.items():
            conforms(value[name], inner, f"{where}[{name!r}]")
    elif origin is list:
        assert type(value) is list, (where, value)
        for i, row in enumerate(value):
            conforms(row, arguments[0], f"{where}[{i}]")
    elif origin is dict:
        assert type(value) is dict, (where, value)
        for key, row in value.items():
            conforms(key, arguments[0], f"key of {where}")
            conforms(row, arguments[1], f"{where}[{key!r}]")
    elif origin in (types.UnionType, typing.Union):
        if value is not None:
            (other,) = (argument for argument in arguments if argument is not type(None))
            conforms(value, other, where)
    else:
        assert type(value) is kind, (where, value, kind)
