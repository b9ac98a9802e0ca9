"""The only way in which tests wait for a state of which they are not notified."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

# Ends a hang: no test depends on how long a wait takes, and a busy machine may stand still for a minute.
GUARD_S = 180.0


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], Any],
    guard_s: float = GUARD_S,
    process: subprocess.Popen[Any] | None = None,
    pause_s: float = 0.005,
) -> Any:
    """Polls until condition() is true, and returns its value. Raises AssertionError after `guard_s`
    seconds, with `what` (a text, or a function that describes the state) and the last value; also
    if `process`, which should bring about the condition, has ended without doing so."""
    end = time.monotonic() + guard_s
    while not (value := condition()):
        text = what if isinstance(what, str) else ""
        if process is not None and process.poll() is not None and not (value := condition()):
            said = process.communicate() if process.stdout or process.stderr else ""
            text = text or what()  # type: ignore[operator]
            raise AssertionError(f"{text}: its process ended with {process.returncode}: {said}")
        if value:
            return value
        if time.monotonic() > end:
            text = text or what()  # type: ignore[operator]
            raise AssertionError(f"{text}: not so in {guard_s:g} s, last value {value!r}")
        time.sleep(pause_s)
    return value
