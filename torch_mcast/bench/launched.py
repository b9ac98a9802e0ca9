"""The benchmark as a rank that a launcher started: rank 0 collects and reports. Imports torch.

When a signal arrives or another rank ends, a rank may wait in a collective for ranks that are gone,
and then no Python signal handler runs. So rank 0 has a thread that waits for signals, shows the
results so far and ends the process. The other ranks end at once and print nothing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch_mcast.bench import rank
from torch_mcast.bench.plan import Plan
from torch_mcast.bench.told import Told

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGNAL_S = 2.0  # in which the signal that ended other ranks also reaches this one


class Collector(Told):
    """Rank 0's driver for a run without a parent process."""

    def __init__(self, world: int, hosts: int, rate: int | None, mtu: int) -> None:
        super().__init__(world, hosts, rate, mtu)
        self.lock = threading.RLock()  # guards all members here, and a thread that shows them

    def tell(self, kind: str, value: Any) -> None:
        with self.lock:
            self.take(kind, value)

    def counters(self, tag: Any) -> None:
        """Does nothing: there is no lab, and the ranks count their own NICs."""

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        raise ValueError(f"no external programs under torchrun ({name})")


class _End:
    """Ends this process early, once."""

    def __init__(self, show: Callable[[], None], lock: threading.RLock) -> None:
        self._show = show
        self._lock = lock
        self._over = False

    def measured(self) -> None:
        """Notes that the results are complete and will be shown by the caller."""
        with self._lock:
            self._over = True

    def now(self, text: str, code: int) -> None:
        self._lock.acquire()  # never released
        try:
            if not self._over:
                self._show()
            print(f"torch-mcast bench: {text}", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def on_signal(self) -> None:
        number = signal.sigwait(_SIGNALS)
        self.now(f"stopped by {signal.Signals(number).name}", 128 + number)


def first_rank(plan: Plan, collector: Collector, show: Callable[[], None]) -> dict[str, Any]:
    """Measures as rank 0; returns the versions of the measured software. If a signal or a failed
    rank stops the run, show() prints the results so far and this does not return. All threads block
    SIGINT and SIGTERM."""
    end = _End(show, collector.lock)
    waiting = threading.Thread(target=end.on_signal, daemon=True)
    waiting.start()
    try:
        versions = rank.run(plan, collector)
        end.measured()
        return versions
    except (ValueError, OSError):
        raise
    except Exception as error:  # torch raises many types when a rank is gone
        waiting.join(_SIGNAL_S)
        end.now(f"{type(error).__name__}: {error}", 2)
        raise


def other_rank(plan: Plan) -> int:
    """Measures as any other rank."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    rank.run(plan, Collector(1, 1, None, 0))
    return 0
