"""Comparisons of errors by the names and fields of csrc/core/base/errors.h, instead of by their texts."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

import torch_mcast

# Names of the error for a rank whose process has ended, or to which a connection broke.
LOST = {"rank_ended", "rank_lost"}
SECONDS = re.compile(r"\d+\.\d s").fullmatch  # any duration


def _fits(value: Any, expected: Any) -> bool:
    if isinstance(expected, set):
        return value in expected
    return bool(expected(value)) if callable(expected) else value == expected


def is_error(error: BaseException | str, name: str | set[str], /, **fields: Any) -> bool:
    """Returns True if the first named error in `error` has this name, the code that the table gives
    for it, and these fields: each equals a value, is in a set, or satisfies a predicate."""
    found = torch_mcast.read_error(error)
    if found["error"] is None or f"{found['code']}: " not in str(error):
        return False
    got = found["fields"]
    return _fits(found["error"], name) and all(
        field in got and _fits(got[field], expected) for field, expected in fields.items()
    )


def check_error(
    error: BaseException | str, name: str | set[str], /, **fields: Any
) -> dict[str, Any]:
    """Asserts is_error(). Returns all fields."""
    found = torch_mcast.read_error(error)
    assert is_error(error, name, **fields), f"expected {name} {fields}, got {found}: {error}"
    return found["fields"]


def blames(error: BaseException | str, ranks: set[int], limit: str) -> bool:
    """Returns True if the error is that one of `ranks` was silent for longer than `limit`, was lost,
    or closed its connections."""
    return (
        is_error(error, "rank_silent", rank=ranks, silence=SECONDS, limit=limit)
        or is_error(error, LOST, rank=ranks)
        or any(f"rank {rank} closed its connections" in str(error) for rank in ranks)
    )


def by_rank(fields: dict[str, Any], what: str) -> dict[int, Any]:
    """Returns the values of `what` and `other_what` by the ranks that they are of, if the error
    compares two ranks."""
    return {fields["rank"]: fields[what], fields["other"]: fields[f"other_{what}"]}


@contextlib.contextmanager
def raises_error(
    kind: type[BaseException], name: str | set[str], /, **fields: Any
) -> Iterator[pytest.ExceptionInfo]:
    """Like pytest.raises(kind): also checks that the exception is this error."""
    with pytest.raises(kind) as caught:
        yield caught
    check_error(caught.value, name, **fields)
