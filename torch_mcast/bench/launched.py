"""The benchmark as a rank that a launcher started: rank 0 collects and reports. Imports torch.

A signal, or another rank's end, may find a rank in a collective that waits for ranks which are gone, where no
handler of Python runs. So rank 0 has a thread that waits for signals: it shows what there is and ends the
process. The other ranks end at once, silently."""

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
_SIGNAL_S = 2.0  # in which the signal that ended others comes to this rank, too


class Collector(Told):
    """Rank 0's driver where nobody stands behind it."""

    def __init__(self, world: int, hosts: int, rate: int | None, mtu: int) -> None:
        super().__init__(world, hosts, rate, mtu)
        self.lock = threading.RLock()  # of all here, and of who shows it

    def tell(self, kind: str, value: Any) -> None:
        with self.lock:
            self.take(kind, value)

    def counters(self, tag: Any) -> None:
        """No lab here; the ranks count their own NICs."""

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        raise ValueError(f"no external programs under torchrun ({name})")


class _End:
    """Ends this process before its time, once."""

    def __init__(self, show: Callable[[], None], lock: threading.RLock) -> None:
        self._show = show
        self._lock = lock
        self._over = False

    def measured(self) -> None:
        """All is there, and will be shown by others."""
        with self._lock:
            self._over = True

    def now(self, text: str, code: int) -> None:
        self._lock.acquire()  # and never released
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
    """Measures as rank 0; versions of what was measured. show() prints what there is when a signal, or a
    rank that fails, stops the run: then this does not return. All threads block SIGINT and SIGTERM."""
    end = _End(show, collector.lock)
    waiting = threading.Thread(target=end.on_signal, daemon=True)
    waiting.start()
    try:
        versions = rank.run(plan, collector)
        end.measured()
        return versions
    except (ValueError, OSError):
        raise
    except Exception as error:  # torch has many for a rank that is gone
        waiting.join(_SIGNAL_S)
        end.now(f"{type(error).__name__}: {error}", 2)
        raise


def other_rank(plan: Plan) -> int:
    """Measures as any other rank."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    rank.run(plan, Collector(1, 1, None, 0))
    return 0
