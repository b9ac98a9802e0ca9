"""Runs a plan: creates the lab or uses loopback, starts the ranks, collects rows, runs external peers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch_mcast.bench import peers, rows
from torch_mcast.bench.plan import EXTERNAL, Plan
from torch_mcast.bench.program import Program
from torch_mcast.bench.told import Told
from torch_mcast.lab.network import Lab
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.spec import LabSpec

_EVENT_S = 900.0


def _preload() -> tuple[str, ...]:
    """Returns the modules that the process from which ranks are forked imports once: torch takes
    seconds. It is empty if the import creates arenas, which a forked process would share."""
    mapped = os.environ.get("MCAST_ENGINE_MEMORY", "").strip().lower() == "map_all"
    return () if mapped else ("torch.distributed",)


def _measure(context: Any, plan: Plan) -> dict[str, Any]:
    """Runs in the workers; only they import torch. Turns every exception of that import into an
    ImportError, so that the driver can distinguish it from a failed rank."""
    try:
        from torch_mcast.bench import rank
    except Exception as error:
        raise ImportError(f"{type(error).__name__}: {error}") from error

    return rank.in_pool(context, plan)


def _slowest_rate(spec: LabSpec) -> int | None:
    """Returns the bits per second of the slowest worker's link."""
    rates = [spec.rate_of(name) for name in spec.host_names[: spec.hosts]]
    return min((rate for rate in rates if rate is not None), default=None)


class Run(Told):
    """One run of the benchmark. `rows`, `versions` and `environment` grow while it runs."""

    def __init__(
        self,
        plan: Plan,
        spec: LabSpec | None,
        ranks: int,
        on_case: Callable[[str, int], None] = lambda op, size: None,
        on_row: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan, self.spec = plan, spec
        self.world = spec.world_size if spec else ranks
        self.hosts = spec.hosts if spec else 1
        self.rate = _slowest_rate(spec) if spec else None
        self.mtu = spec.mtu if spec else 65535
        super().__init__(self.world, self.hosts, self.rate, self.mtu, on_row)
        self.versions: dict[str, str] = {}
        self._on_case = on_case
        self._lab: Lab | None = None
        self._programs: dict[str, Program] = {}
        self._counted: dict[Any, Any] = {}

    def go(self) -> None:
        """Measures everything. Raises WorkerFailure if a rank fails."""
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(self._pool())
            for name in self.plan.backends:
                if name in EXTERNAL:
                    self._programs[name] = stack.enter_context(
                        peers.start(name, self._lab, self.world)
                    )
            call = pool.start(_measure, self.plan)
            while (event := call.next_event(_EVENT_S)) is not None:
                _, kind, value = event
                if kind == "case":
                    self._on_case(*value)
                elif kind == "counters":
                    self._counted[value] = self._lab.counters() if self._lab else None
                    call.signal("answer", None, ranks=[0])
                elif kind == "external":
                    name, *arguments = value
                    call.signal("answer", self._programs[name].measure(*arguments), ranks=[0])
                else:
                    if kind == "row":
                        self._add_traffic(value)
                    self.take(kind, value)
            self.versions.update(call.results(0.1)[0])
            for name, program in self._programs.items():
                self.versions[name] = program.version

    @contextlib.contextmanager
    def _pool(self) -> Iterator[Pool]:
        if self.spec is None:
            with Pool.on_loopback(self.world, _preload()) as pool:
                yield pool
            return
        with Lab(self.spec) as self._lab, Pool.in_lab(self._lab, _preload()) as pool:
            yield pool

    def _add_traffic(self, raw: dict[str, Any]) -> None:
        """Adds the traffic that the lab counted, if it did."""
        before = self._counted.pop((raw["backend"], "before"), None)
        after = self._counted.pop((raw["backend"], "after"), None)
        if self._lab and before and after:
            idle = self._counted[("idle", "after")] - self._counted[("idle", "before")]
            raw["lab"] = rows.lab_traffic(after - before, idle, [h.name for h in self._lab.workers])
