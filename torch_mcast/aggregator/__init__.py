"""The aggregator: where its program is, and what one that runs tells of itself. Never imports torch."""

from torch_mcast.aggregator.program import find_program
from torch_mcast.aggregator.status import NoAggregator, read, socket_paths

__all__ = ["NoAggregator", "find_program", "read", "socket_paths"]
