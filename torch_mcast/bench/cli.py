"""`torch-mcast bench`: measures collectives on this host, in a lab (--hosts), or as a rank under torchrun."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch_mcast.bench import document, peers
from torch_mcast.bench.document import Document
from torch_mcast.bench.formulas import OPS
from torch_mcast.bench.plan import EXTERNAL, Plan, parse_sizes
from torch_mcast.doctor import launcher
from torch_mcast.lab import cli as lab_cli
from torch_mcast.lab import rootless
from torch_mcast.lab.calls import WorkerFailure
from torch_mcast.lab.spec import LabSpec
from torch_mcast.lab.system import LabError
from torch_mcast.lab.units import parse_rate

_DEFAULT_OPS = "broadcast,all_gather,reduce_scatter,all_reduce,ag_rs,barrier"
_DEFAULT_SIZES = "4k:64M:16"
_UNTIL_THEN = "stopped before the end: these are the cases until then"
_END_S = 30  # limit for an orderly end after a signal
_STDOUT = Path("-")  # --json without a file
_DEVICE_OPTIONS = ("--device", "--ops", "--sizes", "--repetitions", "--json", "--ranks")
_LAUNCHER = {"RANK", "WORLD_SIZE", "MASTER_ADDR"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast bench",
        description=__doc__,
        epilog="Without --hosts the ranks run on this host, or as torchrun or srun has started them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ops", default=_DEFAULT_OPS, metavar="OPS",
        help=f"operations, out of {','.join(OPS)} [{_DEFAULT_OPS}]")  # fmt: skip
    add("--sizes", default=_DEFAULT_SIZES, metavar="BYTES",
        help=f"sizes, such as 4k,1M, or a sweep FIRST:LAST[:FACTOR] [{_DEFAULT_SIZES}]")  # fmt: skip
    add("--backends", default=None, metavar="BACKENDS",
        help="backends, such as mcast,mcast:ring,mcast:sealed,mcast:fold=turn:aggregators=2,gloo,nccl; "
        "aggregators=N: the first N of MCAST_AGGREGATORS or the lab [mcast if built, gloo]")  # fmt: skip
    add("--peers", default="", metavar="PEERS",
        help=f"external programs, if installed: {','.join(EXTERNAL)} [none]")  # fmt: skip
    add("--ratio-to", default="gloo", metavar="BACKEND",
        help="backend to compare with in the last column [gloo]")  # fmt: skip
    add("--repetitions", type=int, default=9, metavar="N", help="timings per case [9]")
    add("--warmup", type=int, default=2, metavar="N", help="runs before the timings [2]")
    add("--inner", type=int, default=None, metavar="N",
        help="operations per timing [as many as take about 50 ms]")  # fmt: skip
    add("--case-seconds", type=float, default=20.0, metavar="SECONDS",
        help="limit per case; longer cases get fewer repetitions, but at least 3 [20]")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="seed for the order of backends [1]")
    add("--no-check", action="store_true", help="do not check the results")
    add("--json", type=Path, nargs="?", const=_STDOUT, metavar="FILE",
        help="print JSON instead of the table; with FILE, write it there after every case")  # fmt: skip
    add("--device", default="cpu", metavar="TYPE",
        help="cuda: compare tensors on GPUs with the copies alone, CPU tensors, Gloo and NCCL (a GPU per "
        "rank); run FSDP2 steps; only with --ops, --sizes, --repetitions, --json, --ranks [cpu]")  # fmt: skip
    add("--plot", type=Path, metavar="FILE", help="write a plot to FILE (PNG)")
    add("--wide", action="store_true", help="show all columns: spread, bandwidths, bytes, CPU")
    add("--width", type=int, default=None, metavar="N",
        help="width of the table in characters [the terminal's]")  # fmt: skip
    here = parser.add_argument_group("on this host")
    here.add_argument("--ranks", type=int, default=2, metavar="N", help="ranks on this host [2]")
    nic = parser.add_argument_group("under torchrun")
    nic.add_argument("--link-rate", default=None, metavar="RATE",
        help="rate of the NIC, for the bound, such as 100gbit [no bound]")  # fmt: skip
    nic.add_argument("--link-mtu", type=int, default=1500, metavar="BYTES",
        help="MTU of the NIC, for the bound [1500]")  # fmt: skip
    lab_cli.add_spec_arguments(parser, hosts=None)
    return parser


def _refuse_what_is_not_used(
    parser: argparse.ArgumentParser, args: argparse.Namespace, argv: list[str], launched: bool
) -> None:
    """Raises ValueError for an option that belongs to another way to run, since it would have no effect."""
    place = "under torchrun" if launched else "the lab" if args.hosts else "on this host"
    for group in parser._action_groups:
        if group.title in (place, "positional arguments", "options"):
            continue
        for option in _given(group._group_actions, argv):
            needs = {"the lab": "needs --hosts", "under torchrun": "is for torchrun"}
            raise ValueError(
                f"{option} {needs.get(str(group.title), 'is for ranks on this host')}; "
                f"this run is {place if place != 'the lab' else 'in a lab (--hosts)'}"
            )


def _given(actions: list[argparse.Action], argv: list[str]) -> list[str]:
    """Options among `actions` that the command line has."""
    return [
        option
        for action in actions
        for option in action.option_strings
        if any(word == option or word.startswith(option + "=") for word in argv)
    ]


def torchrun(ranks: int) -> list[str]:
    """Returns the command that starts `ranks` ranks on this host, which measure tensors of a device."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    where = ("--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks))
    return [*launcher, *where, "-m", "torch_mcast.bench.device"]


def _on_device(
    parser: argparse.ArgumentParser, args: argparse.Namespace, argv: list[str], launched: bool
) -> int:
    """Measures tensors of a device, through torch's launcher unless another one has started this rank."""
    from torch_mcast.bench import device

    if reason := device.missing(args.device):
        raise ValueError(f"--device {args.device}: {reason}")
    if args.hosts:
        raise ValueError("--device is for ranks on this host and under a launcher, not for a lab")
    for option in _given(parser._actions, argv):
        if option not in _DEVICE_OPTIONS:
            raise ValueError(f"{option} is not for --device; it takes {', '.join(_DEVICE_OPTIONS)}")
    ops = device.OPS if args.ops == _DEFAULT_OPS else tuple(args.ops.split(","))
    known = (*device.OPS, "fsdp2")
    for op in ops:
        if op not in known:
            raise ValueError(f"--ops {op} with --device: known are {', '.join(known)}")
    train = args.ops == _DEFAULT_OPS or "fsdp2" in ops
    wanted = device.Wanted(
        args.device,
        [64 << 10, 1 << 20, 8 << 20, 64 << 20]
        if args.sizes == _DEFAULT_SIZES
        else list(parse_sizes(args.sizes)),
        tuple(op for op in ops if op != "fsdp2"),
        args.repetitions,
        args.repetitions if train else 0,
    )
    own = [json.dumps(asdict(wanted)), *(["--json", str(args.json)] if args.json else [])]
    if launched:
        return device.main(own)
    return subprocess.call([*torchrun(args.ranks), *own])


def _plan(args: argparse.Namespace) -> tuple[Plan, list[str]]:
    """Returns the plan, and notes on peers that are left out."""
    notes = []
    if args.backends:
        names = args.backends.split(",")
    else:
        built = document.extension() is not None
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
    args: argparse.Namespace, argv: list[str], plan: Plan, where: str, **more: Any
) -> Document:
    """Returns the document of a run that starts now."""
    used = args.ratio_to in plan.backends and len(plan.backends) > 1
    return Document(
        where,
        "torch-mcast bench " + shlex.join(argv),
        peer=args.ratio_to if used else None,
        repetitions=plan.repetitions,
        path=None if args.json == _STDOUT else args.json,
        **more,
    )


def _finish(result: Document, args: argparse.Namespace, complete: bool = True) -> int:
    """Prints and writes the result. Returns 1 if a backend gave a wrong result."""
    from torch_mcast.bench import plot, report

    if not result.rows and not complete:
        return 0
    result.save(complete)
    whole = result.as_json(complete)
    if args.json == _STDOUT:
        print(json.dumps(whole, indent=1))
    else:
        report.show(whole, args.width, args.wide)
    if args.plot:
        plot.draw(whole, args.plot)
    return 0 if all(row["right"] for row in result.rows) else 1


class _Stopped(BaseException):
    """A signal requests the end of the run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = 128 + number


def _stop(number: int, _frame: object) -> None:
    # Only once: the orderly end of labs and programs must not be interrupted. If it hangs, the
    # alarm ends this process, and the lab's reaper cleans up the rest.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    signal.alarm(_END_S)
    raise _Stopped(number)


def _words(error: BaseException) -> str:
    """Returns the text for a run that could not continue. All ranks use one installation, so a
    failed import on one rank is reported in one line, without each rank's traceback."""
    for outcome in error.outcomes if isinstance(error, WorkerFailure) else ():
        if isinstance(outcome.error, ImportError):
            return f"rank {outcome.rank}: {outcome.error} (run torch-mcast doctor for details)"
    return str(error)


def _as_driver(args: argparse.Namespace, argv: list[str]) -> int:
    from torch_mcast.bench.driver import Run

    plan, notes = _plan(args)
    spec: LabSpec | None = None
    where = f"{args.ranks} ranks on one host"
    if args.hosts:
        spec = lab_cli.spec_from(args)
        where = document.lab_text(spec)
        rootless.enter_if_needed([sys.executable, "-m", "torch_mcast.bench", *argv])
    failure, code = "", 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with _Progress(len(plan.cases)) as on_case:
        run = Run(plan, spec, args.ranks, on_case, lambda: result.save())
        result = _document(
            args, argv, plan, where, rows=run.rows, versions=run.versions, notes=notes, spec=spec,
            rate=run.rate, mtu=run.mtu, rank_environment=run.environment,
        )  # fmt: skip
        try:
            run.go()
        except (LabError, WorkerFailure, TimeoutError, _Stopped) as error:
            failure = _words(error)  # results measured before it are still shown
            code = error.code if isinstance(error, _Stopped) else 2
            notes.append(_UNTIL_THEN)
            run.keep_partial()
    signal.alarm(0)
    wrong = _finish(result, args, complete=not failure)
    if failure:
        print(f"torch-mcast bench: {failure}", file=sys.stderr)
    return code or wrong


class _Progress:
    """A progress bar over cases; silent if standard error is not a terminal."""

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
    """Runs as one rank under torchrun (or `torch-mcast lab run`)."""
    first = os.environ["RANK"] == "0"
    if first:  # before torch's threads: any that does not block a signal may get it
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    from torch_mcast.bench import launched

    plan, notes = _plan(args)
    if any(name in EXTERNAL for name in plan.backends):
        raise ValueError("external programs are measured on one host and in a lab only")
    world, local = int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    hosts = max(1, world // local)
    rate = parse_rate(args.link_rate)
    if not first:
        return launched.other_rank(plan)
    collector = launched.Collector(world, hosts, rate, args.link_mtu)
    result = _document(
        args, argv, plan, f"{hosts} hosts x {local} ranks", rows=collector.rows, notes=notes,
        rate=rate, mtu=args.link_mtu, rank_environment=collector.environment,
    )  # fmt: skip
    collector.on_row = result.save

    def stop() -> None:
        notes.append(_UNTIL_THEN)
        collector.keep_partial()
        _finish(result, args, complete=False)

    result.versions.update(launched.first_rank(plan, collector, stop))
    return _finish(result, args)


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast bench ARGV`. Returns the exit code: 1 for a wrong result, 2 if it could not
    run, 128 + N if signal N stopped it."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    args = parser.parse_args(argv)
    job = launcher.job_of(os.environ)  # a task of srun has Slurm's variables
    launched = job.keys() >= _LAUNCHER
    if launched:
        os.environ.update(job)
    try:
        _refuse_what_is_not_used(parser, args, argv, launched)
        if args.device != "cpu":
            return _on_device(parser, args, argv, launched)
        return _as_rank(args, argv) if launched else _as_driver(args, argv)
    except (LabError, ValueError, OSError) as error:
        print(f"torch-mcast bench: {error}", file=sys.stderr)
        return 2
    except _Stopped as error:  # before there was a result, or while it was shown
        print(f"torch-mcast bench: {error}", file=sys.stderr)
        return error.code
