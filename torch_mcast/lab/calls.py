"""Messages, contexts and outcomes that a driver and its workers exchange.

A message is a tuple, cloudpickled, in one frame of a socket pair. Driver to worker: ("call",
function, args, env, preload), ("signal", tag, value), ("exit",). Worker to driver: ("event", tag,
value), ("done", value), ("failed", exception or None, text)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


# Imported only where needed: the command lines that use this report if it is missing.
def send(channel: Connection, *message: Any) -> None:
    import cloudpickle

    channel.send_bytes(cloudpickle.dumps(message))


def receive(channel: Connection) -> tuple[Any, ...]:
    import cloudpickle

    return cloudpickle.loads(channel.recv_bytes())


class WorkerFailure(RuntimeError):
    """A call failed on some ranks; the text has the error of each one. outcomes: of all ranks."""

    def __init__(self, text: str, outcomes: list[Outcome]) -> None:
        super().__init__(text)
        self.outcomes = outcomes


@dataclass
class Outcome:
    """How a call ended on one rank. state: ok (value), error (error, text), died (text: exit or
    signal), late (no reply by the deadline; the worker was killed)."""

    rank: int
    state: str
    value: Any = None
    error: BaseException | None = None
    text: str = ""
    log: str = ""

    @property
    def ok(self) -> bool:
        return self.state == "ok"


class Context:
    """The first argument of a shipped function.

    rank, world_size, local_rank, host (name), address and init_method describe the rank. notify(),
    wait() and told() exchange messages with the driver's Call while the function runs.
    init_process_group() imports torch; the group is destroyed when the function returns."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._signals: dict[str, list[Any]] = {}
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.host = os.environ.get("MCAST_LAB_HOST", "localhost")
        self.address = os.environ.get("MCAST_LAB_ADDRESS", "127.0.0.1")
        master = os.environ["MASTER_ADDR"]
        master = f"[{master}]" if ":" in master else master
        self.init_method = f"tcp://{master}:{os.environ['MASTER_PORT']}"

    def notify(self, tag: str, value: Any = None) -> None:
        """Sends an event to the driver; see Call.wait."""
        send(self._channel, "event", tag, value)

    def wait(self, tag: str, timeout_s: float = 60.0) -> Any:
        """Returns the value of the driver's next Call.signal(tag). Raises TimeoutError."""
        while not self._signals.get(tag):
            if not self._channel.poll(timeout_s):
                raise TimeoutError(f"no signal {tag!r} from the driver within {timeout_s:g} s")
            kind, name, value = receive(self._channel)
            if kind != "signal":
                raise RuntimeError(f"unexpected message {kind!r} during a call")
            self._signals.setdefault(name, []).append(value)
        return self._signals[tag].pop(0)

    def told(self, tag: str) -> bool:
        """Returns whether the driver has signalled `tag`, and consumes that signal. Does not wait
        for one."""
        try:
            self.wait(tag, timeout_s=0)
        except TimeoutError:
            return False
        return True

    def init_process_group(
        self, backend: str = "gloo", timeout_s: float = 60.0, **options: Any
    ) -> None:
        """Calls torch.distributed.init_process_group over all ranks of the call."""
        import datetime

        import torch.distributed as dist

        dist.init_process_group(
            backend,
            init_method=self.init_method,
            rank=self.rank,
            world_size=self.world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
            **options,
        )
