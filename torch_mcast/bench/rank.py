"""The measuring loop of one rank. Imports torch.

For each case (operation, size) the ranks warm up every backend and check one result, over
overwritten outputs. They agree on the number of operations per timing and of repetitions that fit
the time. Each repetition runs the backends in an order that all ranks draw from the same seed, with
a barrier of the control group (Gloo) before each timing. Ranks leave that barrier at different
times, milliseconds apart if cores are few and more if packets are lost. If all ranks read one
clock, a timing therefore begins when the last of them starts; else a timing has to be long compared
with that difference.

After the timings the result is checked again in the same way, and each backend runs once more alone
while bytes are counted. External programs run in their turn while the ranks sleep in the control
group's barrier. After each repetition rank 0 reports the results of the case so far, in case the
run is stopped.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torch_mcast.bench import document, meter
from torch_mcast.bench.formulas import padded_size
from torch_mcast.bench.groups import SILENT, Groups
from torch_mcast.bench.ops import Case
from torch_mcast.bench.plan import EXTERNAL, STEPS, Plan

_TIMING_S = 0.05
_TRIAL_S = 0.01
_INNER_MAX = 1000
_LEAST_REPETITIONS = 3


# Start and end by this rank's clock; CPU seconds of this process, and of the engine of its host.
Span = tuple[float, float, float, float]


class Driver(Protocol):
    """Calls that rank 0 makes to the program that started the ranks."""

    def tell(self, kind: str, value: Any) -> None:
        """Reports `value`, by kind: "case", the (operation, size) that begins; "partial", its rows
        so far; "row", a complete row; "environment", that of the ranks."""

    def counters(self, tag: Any) -> None:
        """Stores the lab's current counters under this tag."""

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Runs an external program's operation. Returns {"s": per operation, slowest rank, "cpu_s":
        of all ranks per operation, or None, "right": bool}."""


class _Bench:
    def __init__(self, plan: Plan, driver: Driver) -> None:
        self.plan, self.driver = plan, driver
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        pair = "ag_rs" in plan.ops
        self.groups = {name: Groups(name, pair) for name in plan.torch_backends}
        self.one_clock = len(set(self.gather(_boot_id()))) == 1
        self.silent = Groups(SILENT, False) if set(STEPS) & set(plan.ops) else None
        # Bytes that the counting itself moves, to be subtracted.
        self.idle_bytes = self._count(self._counted("idle", lambda: None))

    def agree(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def time_one(self, run: Callable[[], Any], inner: int) -> Span:
        """Times `inner` operations on this rank."""
        dist.barrier()
        engine, cpu, start = meter.engine_cpu_s(), meter.cpu_s(), time.perf_counter()
        for _ in range(inner):
            run()
        end = time.perf_counter()
        return start, end, meter.cpu_s() - cpu, meter.engine_cpu_s() - engine

    def seconds(self, spans: list[Span], inner: int) -> list[list[float]]:
        """Returns seconds per operation, by rank and timing; `spans` are this rank's timings."""
        return self._by_rank(self.gather([(start, end) for start, end, *_ in spans]), inner)

    def _by_rank(self, by_rank: list[list[tuple[float, float]]], inner: int) -> list[list[float]]:
        if self.one_clock:
            starts = [max(start for start, _ in timing) for timing in zip(*by_rank, strict=True)]
            by_rank = [
                [(start, end) for start, (_, end) in zip(starts, rank, strict=True)]
                for rank in by_rank
            ]
        return [[max(0.0, end - start) / inner for start, end in rank] for rank in by_rank]

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        """Runs one timing of an external program; the other ranks wait in the next barrier."""
        dist.barrier()
        if self.rank == 0:
            return self.driver.external(name, op, size, inner, check)
        return {"s": 0.0, "cpu_s": 0.0, "right": True}

    def _count(self, run: Callable[[], Any]) -> list[tuple[int, int] | None]:
        """Returns NIC bytes (sent, received) of each rank's host while all ranks run() once."""
        dist.barrier()
        before = meter.nic_bytes()
        dist.barrier()
        run()
        dist.barrier()
        after = meter.nic_bytes()
        mine = (
            None
            if before is None or after is None
            else (after[0] - before[0], after[1] - before[1])
        )
        return self.gather(mine)

    def _counted(self, name: str, run: Callable[[], Any]) -> Callable[[], None]:
        """Runs run() and reads the lab's counters before and after."""

        def counted() -> None:
            if self.rank == 0:
                self.driver.counters((name, "before"))
            dist.barrier()
            run()
            dist.barrier()
            if self.rank == 0:
                self.driver.counters((name, "after"))

        return counted

    # -- one case

    def measure(self, op: str, wanted: int) -> None:
        """Measures all backends on one operation and size; rank 0 reports the rows."""
        size = padded_size(wanted, self.world) if wanted else 0
        cases = {name: Case(op, size, groups) for name, groups in self.groups.items()}
        estimates = {name: self._warm_up(name, op, size, cases) for name in self.plan.backends}
        rows = {
            name: {
                "op": op,
                "wanted": wanted,
                "size": size,
                "backend": name,
                "right": estimates[name][1],
            }
            for name in self.plan.backends
        }
        seconds = {name: known[0] for name, known in estimates.items() if known[0] is not None}
        usable = list(seconds)
        inner = {name: self._inner(seconds[name]) for name in usable}
        repetitions = self._repetitions([seconds[name] * inner[name] for name in usable])
        # Time of a step without its communication, measured like a backend.
        silent = Case(op, size, self.silent).run if op in STEPS and self.silent else None
        if silent:
            silent()  # warm-up
            inner[SILENT] = self._inner(self._estimate(silent))
        start = {name: groups.repairs() for name, groups in self.groups.items()}
        turns = self._turns(op, size, repetitions, inner, cases, silent, rows)
        without = self.seconds(turns[SILENT], inner[SILENT]) if silent else None
        for name in usable:
            if name in EXTERNAL:
                rank_times = self.gather([got["s"] for got in turns[name]])
                cpu = [got["cpu_s"] for got in turns[name]]
            else:
                rank_times = self.seconds(turns[name], inner[name])
                cpu = [used / inner[name] for _, _, used, _ in turns[name]]
                engine = [used / inner[name] for *_, used in turns[name]]
                rows[name].update(engine_cpu=self.gather(engine), rank_silent=without)
            rows[name].update(inner=inner[name], rank_times=rank_times, rank_cpu=self.gather(cpu))
            if name in self.groups:
                rows[name]["path"] = self.groups[name].path()
                end = self.groups[name].repairs()
                mine = None if end is None else end - (start[name] or 0)
                found = self.gather(mine)
                rows[name]["repairs"] = (
                    None if None in found else sum(found) / (repetitions * inner[name])
                )
        for name in usable:
            if name in EXTERNAL and turns[name]:
                rows[name]["algorithm"] = turns[name][-1].get("algorithm")
            rows[name]["right"] = rows[name]["right"] and self._verify(name, op, size, cases)
            self._traffic(name, op, size, cases, rows[name])
        if self.rank == 0:
            for name in self.plan.backends:
                self.driver.tell("row", rows[name])

    def _turns(
        self,
        op: str,
        size: int,
        repetitions: int,
        inner: dict[str, int],
        cases: dict[str, Case],
        silent: Callable[[], Any] | None,
        rows: dict[str, dict[str, Any]],
    ) -> dict[str, list[Any]]:
        """Returns the timings of each backend that has an `inner`, and of the silent step."""
        turns: dict[str, list[Any]] = {name: [] for name in inner}
        partial = {
            name: {
                **rows[name],
                "partial": True,
                "inner": inner[name],
                "rank_times": [[] for _ in range(self.world)],
                "rank_cpu": [[] for _ in range(self.world)],
            }
            for name in inner
            if name != SILENT
        }
        for repetition in range(repetitions):
            if silent:
                turns[SILENT].append(self.time_one(silent, inner[SILENT]))
            for position in self.plan.order(op, size, repetition):
                name = self.plan.backends[position]
                if name not in inner:
                    continue
                if name in EXTERNAL:
                    turns[name].append(self.external(name, op, size, inner[name], False))
                else:
                    turns[name].append(self.time_one(cases[name].run, inner[name]))
            last = self.gather({name: turns[name][-1] for name in partial})
            if self.rank == 0:
                self._add(partial, last)
                self.driver.tell("partial", list(partial.values()))
        return turns

    def _add(self, partial: dict[str, dict[str, Any]], last: list[dict[str, Any]]) -> None:
        """Adds a repetition, by rank and backend, to the rows of an unfinished case."""
        for name, row in partial.items():
            if name in EXTERNAL:
                times = [[each[name]["s"]] for each in last]
                cpus = [each[name]["cpu_s"] for each in last]
            else:
                times = self._by_rank([[each[name][:2]] for each in last], row["inner"])
                cpus = [each[name][2] / row["inner"] for each in last]
            for rank in range(self.world):
                row["rank_times"][rank] += times[rank]
                row["rank_cpu"][rank].append(cpus[rank])

    def _warm_up(
        self, name: str, op: str, size: int, cases: dict[str, Case]
    ) -> tuple[float | None, bool]:
        """Returns (seconds of one operation, results right on all ranks); None for the first if the
        backend lacks the operation."""
        if name not in EXTERNAL:
            for _ in range(self.plan.warmup):
                self.time_one(cases[name].run, 1)
            right = self._verify(name, op, size, cases)
            return self._estimate(cases[name].run), right
        got = {"s": 0.0, "right": True}
        for _ in range(self.plan.warmup):
            got = self.external(name, op, size, 1, self.plan.check)
        return self.agree((got["s"], got["right"]))

    def _verify(self, name: str, op: str, size: int, cases: dict[str, Case]) -> bool:
        """Returns whether one more operation over overwritten outputs has the right result on all ranks."""
        if not self.plan.check:
            return True
        if name in EXTERNAL:
            return self.agree(self.external(name, op, size, 1, True)["right"])
        return all(self.gather(cases[name].verify()))

    def _estimate(self, run: Callable[[], Any]) -> float:
        """Returns the seconds of one operation at the slowest rank, from enough operations that the
        start does not matter."""
        count = 1
        while True:
            seconds = max(max(self.seconds([self.time_one(run, count)], count)))
            if seconds * count >= _TRIAL_S or count >= _INNER_MAX:
                return seconds
            count *= 4

    def _inner(self, estimate: float) -> int:
        """Returns the operations per timing if each takes `estimate` seconds."""
        wanted = round(_TIMING_S / max(estimate, 1e-6))
        return self.plan.inner or max(1, min(_INNER_MAX, wanted))

    def _repetitions(self, timings: list[float]) -> int:
        """Returns how many repetitions of timings of these lengths fit the time."""
        fits = int(self.plan.case_s / max(sum(timings), 1e-6))
        return min(self.plan.repetitions, max(_LEAST_REPETITIONS, fits))

    def _traffic(
        self, name: str, op: str, size: int, cases: dict[str, Case], row: dict[str, Any]
    ) -> None:
        """Counts the bytes of one operation into `row`, by NIC counters here and by the lab's
        counters at the driver."""

        def run() -> None:
            if name in EXTERNAL:
                self.external(name, op, size, 1, False)
            else:
                cases[name].run()

        found = self._count(self._counted(name, run))
        hosts: dict[str, tuple[int, int]] = {}
        for host, moved, idle in zip(self.gather(_host()), found, self.idle_bytes, strict=True):
            if moved is not None and idle is not None:
                hosts[host] = (max(0, moved[0] - idle[0]), max(0, moved[1] - idle[1]))
        row["nic"] = hosts or None


def _boot_id() -> str:
    """Processes with the same boot id read the same monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"unknown {os.urandom(8).hex()}"


def _host() -> str:
    return os.environ.get("MCAST_LAB_HOST") or os.uname().nodename


def initialize(plan: Plan, init_method: str = "env://") -> None:
    """Creates the control group: Gloo over all ranks."""
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo",
            init_method=init_method,
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=datetime.timedelta(seconds=plan.timeout_s),
        )


def run(plan: Plan, driver: Driver) -> dict[str, Any]:
    """Measures the whole plan and ends the process groups. Returns the versions of the measured
    software."""
    initialize(plan)
    bench = _Bench(plan, driver)
    seen = bench.gather(document.environment())
    if bench.rank == 0:
        driver.tell("environment", document.common(seen))
    for op, size in plan.cases:
        if bench.rank == 0:
            driver.tell("case", (op, size))
        bench.measure(op, size)
    dist.barrier()
    dist.destroy_process_group()
    return versions()


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__}
    try:
        import torch_mcast

        found["torch_mcast"] = str(getattr(torch_mcast, "__version__", "unknown"))
    except ImportError:
        pass
    return found


def in_pool(context: Any, plan: Plan) -> dict[str, Any]:
    """Entry point for a worker of torch_mcast.lab.pool."""
    return run(plan, _PoolDriver(context))


class _PoolDriver:
    """Calls the driver of a pool: sends an event, and waits for a signal as the reply."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def tell(self, kind: str, value: Any) -> None:
        self._context.notify(kind, value)

    def counters(self, tag: Any) -> None:
        self._context.notify("counters", tag)
        self._context.wait("answer", 60.0)

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        self._context.notify("external", (name, op, size, inner, check))
        return self._context.wait("answer", 600.0)
