"""Errors of weight transfers."""

from __future__ import annotations

from collections.abc import Mapping


class WeightsError(RuntimeError):
    """A version was not sent, or not received.

    Attributes:
        version: The version that the call was about.
        workers: Rank of each worker that did not get the version, and the reason. Empty at a worker.
    """

    def __init__(
        self, text: str, version: int = 0, workers: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(text)
        self.version = version
        self.workers = dict(workers or {})


class ChecksumError(WeightsError):
    """The bytes of a tensor differ from those that the sender had.

    Attributes:
        tensor: Name of the tensor.
        sender: Rank of the sender within the channel.
    """

    def __init__(self, text: str, version: int, tensor: str, sender: int) -> None:
        super().__init__(text, version)
        self.tensor = tensor
        self.sender = sender


class StoreGone(WeightsError):
    """The store of the group does not respond, so nothing can be reported any more."""


class GroupFailed(Exception):
    """An operation of the group that carries the data failed: internal, the roles decide what follows.

    Attributes:
        lost: Index of the lost member within the group's members, or None.
    """

    def __init__(self, cause: BaseException, code: str | None, lost: int | None) -> None:
        super().__init__(brief(str(cause), code))
        self.lost = lost


def brief(text: str, code: str | None) -> str:
    """An error of a group without its context, which names ranks of that group's operation, and without
    its hint."""
    said = text.partition(f"{code}: ")[2] if f"{code}: " in text else text
    return said.partition(" Hint:")[0].rstrip(".")
