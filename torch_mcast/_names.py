"""Names under which torch.distributed knows this package."""

from __future__ import annotations

BACKEND = "mcast"
SCHEME = "engine"  # of URLs: torch_mcast/_store.py
DEVICES = ["cpu", "cuda"]
