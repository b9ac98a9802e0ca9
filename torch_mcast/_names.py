"""What torch.distributed knows us by."""

from __future__ import annotations

BACKEND = "mcast"
SCHEME = "engine"  # of URLs: torch_mcast/_store.py
DEVICES = ["cpu", "cuda"]
