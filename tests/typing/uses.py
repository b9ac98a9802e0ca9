"""What a user's type checker accepts and what it finds; `make lint` checks this file, nothing runs it. A
mistake that is not found leaves a `type: ignore` unused, which is an error."""

from datetime import timedelta

import torch_mcast

options = torch_mcast.Options(chunk="64K", linger=timedelta(seconds=1), engine="auto", pin=True)
options.chunk = "32K"
chunk: int = options.chunk
options.linger = 5
linger: float = options.linger
options.rack = 7  # type: ignore[assignment]
torch_mcast.Options(chunks="64K")  # type: ignore[call-arg]

told = torch_mcast.stats()
sealed: int = told["security"]["sealed"]
plan = told["aggregation"]["all_reduce"]
if plan["measured"] is not None:
    gain: float = plan["measured"]["without_ms"] - plan["measured"]["with_ms"]
print(told["secrets"])  # type: ignore[typeddict-item]
plan["measured"]["with_ms"]  # type: ignore[index]
