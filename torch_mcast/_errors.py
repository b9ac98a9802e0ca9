"""Names and fields of errors."""

from __future__ import annotations

from typing import Any

from torch_mcast._load import extension


def read_error(error: BaseException | str) -> dict[str, Any]:
    """Returns the parts of an error of this package, for programs.

    - `code`: such as `"peer_lost"` (docs/errors.md), or None if the text has none.
    - `error`: the name of the error, such as `"rank_silent"` (docs/troubleshooting.md), or None.
    - `fields`: `{"rank": 3, "silence": "10.0 s", "limit": "10.0 s"}`, or empty. Ranks are numbered within
      the group.

    `error` is an exception or a text, such as `stats()["failure"]`.
    """
    said: dict[str, Any] = extension().read_error(str(error))
    return said
