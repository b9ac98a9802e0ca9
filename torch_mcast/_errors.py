"""Names and fields of errors."""

from __future__ import annotations

from typing import Any

from torch_mcast._load import extension


def read_error(error: BaseException | str) -> dict[str, Any]:
    """Returns what an error of this package says, for programs: `code` ("peer_lost"), `error` ("rank_silent")
    and `fields` ({"rank": 3, "silence": "10.0 s", "limit": "10.0 s"}).

    `error` is an exception or a text, such as stats()["failure"]. code and error are None and fields is empty
    for a text that has none; docs/troubleshooting.md lists the names. Ranks are numbered within the group.
    """
    said: dict[str, Any] = extension().read_error(str(error))
    return said
