"""The aggregator: finds its program, and reads the status of a running one. Never imports torch."""

from torch_mcast.aggregator.program import find_program
from torch_mcast.aggregator.status import NoAggregator, read, socket_paths

__all__ = ["NoAggregator", "find_program", "read", "socket_paths"]
