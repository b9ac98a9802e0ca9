"""`torch-mcast bench`: measure here (loopback), in a lab (--hosts), or as a rank under torchrun."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_mcast.bench import peers, rows
from torch_mcast.bench.formulas import OPS
from torch_mcast.bench.plan import EXTERNAL, Plan, parse_sizes
from torch_mcast.lab import cli as lab_cli
from torch_mcast.lab import rootless
from torch_mcast.lab.calls import WorkerFailure
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.system import LabError
from torch_mcast.lab.units import format_rate, parse_rate

_DEFAULT_OPS = "broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,barrier"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast bench",
        description=__doc__,
        epilog="Without --hosts the ranks run on this host over loopback; under torchrun the "
        "environment decides.",
    )
    add = parser.add_argument
    add("--ops", default=_DEFAULT_OPS, help=f"of {','.join(OPS)}; default {_DEFAULT_OPS}")
    add("--sizes", default="4k:64M:16", help="4k,1M or a sweep FIRST:LAST[:FACTOR]")
    add(
        "--backends",
        default=None,
        help="e.g. mcast,mcast:ring,mcast:fold=turn:aggregators=2,gloo,nccl (aggregators=N: the first "
        "N of MCAST_AGGREGATORS or of the lab); default: mcast if it is built, and gloo",
    )
    add("--peers", default="", help="external programs, used if installed: openmpi,uftp,blaster")
    add("--ratio-to", default="gloo", metavar="BACKEND", help="the peer of the last column")
    add("--repetitions", type=int, default=9)
    add("--warmup", type=int, default=2)
    add("--inner", type=int, default=None, help="operations per timing; default: about 50 ms")
    add(
        "--case-seconds",
        type=float,
        default=20.0,
        help="fewer repetitions (3 at least) for cases that would take longer",
    )
    add("--seed", type=int, default=1, help="of the order of backends")
    add("--no-check", action="store_true", help="do not compare results with the right ones")
    add("--ranks", type=int, default=2, help="ranks on loopback")
    add("--link-rate", default=None, help="under torchrun: the NIC's rate, for the bound")
    add("--link-mtu", type=int, default=1500, help="under torchrun: its MTU, for the bound")
    add("--json", type=Path, help="write the result here")
    add("--plot", type=Path, help="write a PNG here")
    add("--width", type=int, default=None, help="columns of the table")
    lab_cli.add_spec_arguments(parser, hosts=None)
    return parser


def _plan(args: argparse.Namespace) -> tuple[Plan, list[str]]:
    """The plan, and notes on peers that are left out."""
    notes = []
    if args.backends:
        names = args.backends.split(",")
    else:
        built = importlib.util.find_spec("torch_mcast._C") is not None
        names = ["mcast", "gloo"] if built else ["gloo"]
        if not built:
            notes.append("mcast left out: torch_mcast._C is not built")
    for name in filter(None, args.peers.split(",")):
        if name not in EXTERNAL:
            raise ValueError(f"--peers {name}: known are {', '.join(EXTERNAL)}")
        reason = peers.missing(name)
        if reason:
            notes.append(f"{reason}: left out")
        else:
            names.append(name)
    plan = Plan(
        ops=tuple(args.ops.split(",")),
        sizes=parse_sizes(args.sizes),
        backends=tuple(names),
        repetitions=args.repetitions,
        warmup=args.warmup,
        inner=args.inner,
        case_s=args.case_seconds,
        seed=args.seed,
        check=not args.no_check,
    )
    return plan, notes


def _document(
    plan: Plan,
    measured: list[dict[str, Any]],
    where: str,
    notes: list[str],
    versions: dict[str, str],
    peer: str,
    argv: list[str],
    seconds: float,
    extra: dict[str, Any],
) -> dict[str, Any]:
    from torch_mcast.bench import report

    used = peer if peer in plan.backends and len(plan.backends) > 1 else None
    if used:
        rows.add_ratios(measured, used)
    unit = "per cent of the bound = least time the receiving NIC needs / median"
    return {
        "title": f"torch-mcast bench: {where}",
        "caption": f"times of the slowest rank, {plan.repetitions} interleaved repetitions or "
        f"fewer; {unit}; bytes per operation, as framed; x model: against the payload that "
        "multicast must send; ratio > 1: faster, with quartiles",
        "command": "torch-mcast bench " + shlex.join(argv),
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(seconds, 1),
        "machine": report.machine(),
        "versions": versions,
        "peer": used,
        "notes": notes + rows.engine_notes(measured) + rows.exposed_notes(measured, used),
        "rows": measured,
        **extra,
    }


def _finish(document: dict[str, Any], args: argparse.Namespace) -> int:
    """Prints and writes; 1 if a backend gave a wrong result."""
    from torch_mcast.bench import plot, report

    report.show(document, args.width)
    if args.json:
        report.write_json(args.json, document)
    if args.plot:
        plot.draw(document, args.plot)
    return 0 if all(row["right"] for row in document["rows"]) else 1


def _as_driver(args: argparse.Namespace, argv: list[str]) -> int:
    from torch_mcast.bench.driver import Run

    plan, notes = _plan(args)
    spec: LabSpec | None = None
    where = f"{args.ranks} ranks over loopback"
    if args.hosts:
        spec = lab_cli.spec_from(args)
        where = (
            f"{spec.hosts} hosts x {spec.ranks_per_host} ranks in a lab, "
            f"{format_rate(spec.rate)}, MTU {spec.mtu}"
        )
        for fault in spec.faults:
            where += f", {fault.kind} {fault.probability:g} ({fault.direction}, {fault.unit})"
        rootless.enter_if_needed([sys.executable, "-m", "torch_mcast.bench", *argv])
        if spec.rate:
            notes.append(
                f"up to {spec.burst} bytes pass a shaper at full speed: small messages do "
                "not see the link's rate and may beat the bound"
            )
    # So that labs and programs are ended in order.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    start, failure = time.monotonic(), ""
    with _Progress(len(plan.cases)) as on_case:
        run = Run(plan, spec, args.ranks, on_case)
        try:
            run.go()
        except (WorkerFailure, TimeoutError) as error:
            failure = str(error)  # what was measured before it is still shown
            notes.append("stopped by a failure before the end")
    document = _document(
        plan,
        run.rows,
        where,
        notes,
        run.versions,
        args.ratio_to,
        argv,
        time.monotonic() - start,
        {"lab": spec.to_json() if spec else None},
    )
    code = _finish(document, args)
    if failure:
        print(f"torch-mcast bench: {failure}", file=sys.stderr)
    return 2 if failure else code


class _Progress:
    """A progress bar over cases; silent where standard error is no terminal."""

    def __init__(self, cases: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        console = Console(stderr=True)
        self._bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._cases = cases

    def __enter__(self) -> Callable[[str, int], None]:
        self._bar.start()
        task = self._bar.add_task("starting", total=self._cases)
        started = [False]

        def on_case(op: str, size: int) -> None:
            self._bar.update(
                task, advance=1 if started[0] else 0, description=f"{op} {size or ''}".strip()
            )
            started[0] = True

        return on_case

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()


def _as_rank(args: argparse.Namespace, argv: list[str]) -> int:
    """One rank under torchrun (or `torch-mcast lab run`)."""
    from torch_mcast.bench import rank

    plan, notes = _plan(args)
    if any(name in EXTERNAL for name in plan.backends):
        raise ValueError("external programs are measured on loopback and in a lab only")
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    hosts = max(1, world // local)
    collector = _Collector(world, hosts, parse_rate(args.link_rate), args.link_mtu)
    start = time.monotonic()
    versions = rank.run(plan, collector)
    if os.environ["RANK"] != "0":
        return 0
    where = f"{hosts} hosts x {local} ranks"
    document = _document(
        plan,
        collector.rows,
        where,
        notes,
        versions,
        args.ratio_to,
        argv,
        time.monotonic() - start,
        {"lab": None},
    )
    return _finish(document, args)


class _Collector:
    """Rank 0's driver where nobody stands behind it."""

    def __init__(self, world: int, hosts: int, rate: int | None, mtu: int) -> None:
        self._about = (world, hosts, rate, mtu)
        self.rows: list[dict[str, Any]] = []

    def tell(self, kind: str, value: Any) -> None:
        if kind == "row":
            self.rows.append(rows.finish(value, *self._about))

    def counters(self, tag: Any) -> None:
        """No lab here; the ranks count their own NICs."""

    def external(self, name: str, op: str, size: int, inner: int, check: bool) -> dict[str, Any]:
        raise ValueError(f"no external programs under torchrun ({name})")


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast bench ARGV`; the exit code (1: a wrong result, 2: it could not run)."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv)
    under_launcher = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
    try:
        return _as_rank(args, argv) if under_launcher else _as_driver(args, argv)
    except (LabError, ValueError) as error:
        print(f"torch-mcast bench: {error}", file=sys.stderr)
        return 2
