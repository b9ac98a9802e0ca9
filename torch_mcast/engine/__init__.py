"""The host engine: one process that does the networking of the training processes. Never imports torch."""

from torch_mcast.engine.cli import main
from torch_mcast.engine.status import DEFAULT_SOCKET, NoEngine, read

__all__ = ["DEFAULT_SOCKET", "NoEngine", "main", "read"]
