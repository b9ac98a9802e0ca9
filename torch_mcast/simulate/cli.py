"""`torch-mcast simulate`: collectives on a network of up to thousands of hosts, in virtual time."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch_mcast.simulate import helper
from torch_mcast.simulate.helper import parse_hosts

# Options that are handed over as they are, with their help; `-` in an option is `_` in a key.
_HANDED = {
    "topology": "star, leafspine:leaves=,spines=,links= or fattree:radix=[,pod=,cores=]; default star",
    "planes": "separate fabrics, each host with a link to each; lane i uses plane i",
    "ranks": "ranks of each host; default 1",
    "rate": "of hosts' links, such as 100gbit (default)",
    "inner-rate": "of links between switches; default as the hosts'",
    "delay": "of each link; default 1us",
    "mtu": "bytes of an IP packet; default 4200: a chunk of 4096",
    "op": "broadcast, all_gather (default), reduce_scatter, all_reduce, or two at once: A+B",
    "root": "of a broadcast; default 0",
    "order": "hosts or random: how ranks are dealt to hosts",
    "type": "of reductions: float32 (default), bfloat16 or int32",
    "fold": "setting: order of folding, rank (default) or turn",
    "aggregator-rate": "of aggregators' links; default as the hosts'",
    "loss": "SHARE[@LINKS], such as 1e-4@leaf-spine; several with commas",
    "burst": "mean length of a run of losses; default 1",
    "late": "RANK:TIME that a rank calls later, such as 5:3ms; several with commas",
    "slow": "RANK:SHARE of its host's link rate, such as 7:0.5; several with commas",
    "background": "streams of others: load=0.3,size=1M",
    "seed": "of everything random; default 1",
    "wake": "time until a thread runs; default 20us",
    "turn": "time that one turn of it takes; default 2us",
    "queue": "bytes at each port of a switch; default no limit",
    "mark": "packets that find more bytes waiting are marked (ECN)",
    "lossless": "1: full ports stop who feeds them",
    "nic-queues": "transmit queues of a NIC; lane i uses queue i; default 1",
    "nic-limit": "bytes of a transmit queue; default no limit",
    "frame": "wire bytes of a packet beside IP; default 38: Ethernet, preamble and gap",
    "shaper": "bytes that pass hosts' links at full speed (tbf); default none",
    "ack-every": "packets that one acknowledgement of a stream is for; default 2",
    "cork": "1: small writes of a stream wait while earlier ones are at the interface; default 0",
    "budget": "bytes that a receiver's socket holds; default 16M",
    "warmup": "runs of the operations before the one that counts, by a group that learns; default 0",
    "send-queue": "bytes that a sender's socket holds; default 1M",
    "bookkeeping": "bytes of that which a datagram takes beside its own; default 0, Linux 832",
    "trees": "address (default) or source: what chooses a multicast tree's spine",
    "train": "most packets that move together; default 64",
    "limit": "of virtual time; default 600s",
}

_EPILOG = """Algorithms: mcast, mcast-aggregators and ring are the engine's own; ring-schedule,
recursive-doubling, binomial, chain and direct are schedules of sends without any cost of hosts, a lower
bound for programs that use them (ring, too, where a reduction is asked for). `torch-mcast simulate figures
--help`: the paper's figures; `torch-mcast simulate validate --help`: against a lab; `torch-mcast simulate
swarm --help`: random plans."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast simulate", description=__doc__, epilog=_EPILOG
    )
    add = parser.add_argument
    add("--hosts", default="8", metavar="N", help="8, or a sweep: 2..1024 (doubling), 2,8,188")
    add(
        "--algorithm",
        metavar="A,B",
        help="see below; default mcast,ring, and mcast-aggregators where there are some",
    )
    add(
        "--aggregators",
        default="0",
        metavar="N",
        help="0 (default), or counts 2,4,8: hosts of their own, for mcast-aggregators",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--size", metavar="BYTES", help="the larger of input and output; default 64M")
    size.add_argument("--block", metavar="BYTES", help="a rank's part of it instead")
    for name, text in _HANDED.items():
        add(f"--{name}", metavar="VALUE", help=text)
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the engine, such as window=2M (torch-mcast settings)",
    )
    add("--jobs", type=int, default=None, help="experiments at once; default: as many as cores")
    add("--json", type=Path, help="write the results here")
    add("--plot", type=Path, help="write a PNG here: time and traffic, and the load of each link")
    add("--quiet-time", action="store_true", help="no wall times: equal runs give equal output")
    add("--width", type=int, default=None, help="columns of the table")
    return parser


def experiments(args: argparse.Namespace) -> list[str]:
    """Texts for the program: each number of hosts with each algorithm."""
    words = []
    for option in ("size", "block", *_HANDED):
        value = getattr(args, option.replace("-", "_"))
        if value is not None:
            words.append(f"{option.replace('-', '_')}={value}")
    words += args.set
    for word in words:
        if not word.split("=", 1)[-1] or any(c.isspace() for c in word):
            raise ValueError(f"{word!r}: a value without blanks is needed")
    served = [n for n in args.aggregators.split(",") if n != "0"]
    default = "mcast-aggregators,mcast,ring" if served else "mcast,ring"
    texts = []
    for hosts in parse_hosts(args.hosts):
        for name in dict.fromkeys((args.algorithm or default).split(",")):
            counts = [f"aggregators={n}" for n in served] if name == "mcast-aggregators" else []
            for count in counts or [""]:
                texts.append(
                    " ".join(filter(None, [f"hosts={hosts}", f"algorithm={name}", count, *words]))
                )
    return texts


class Bar:
    """A progress bar over experiments; silent where standard error is no terminal."""

    def __init__(self, texts: Sequence[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self.shown = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[virtual]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self.shown,
        )
        self._tasks = [
            self._progress.add_task(" ".join(text.split()[:2]), total=1, virtual="", visible=False)
            for text in texts
        ]

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def __call__(self, number: int, virtual: float, done: float) -> None:
        self._progress.update(
            self._tasks[number], completed=done, visible=True, virtual=f"{virtual * 1e3:.3f} ms"
        )


def compute(
    texts: Sequence[str], jobs: int | None, links: bool, quiet_time: bool
) -> list[dict[str, Any]]:
    """Results of experiments, with a progress bar where there is a terminal."""
    helper.check(texts)
    with (
        Bar(texts) as bar,
        helper.Runs(jobs, links, quiet_time, bar if bar.shown else None) as runs,
    ):
        return runs.run(texts)


def _notes(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if reason := result.get("error"):
            yield f"{' '.join(result['spec'].split()[:2])}: {reason}"


def _simulate(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from torch_mcast.simulate import plot, tables

    results = compute(experiments(args), args.jobs, bool(args.plot), args.quiet_time)
    document = tables.document(results, "torch-mcast simulate " + shlex.join(argv))
    tables.show(document, args.width)
    if args.json:
        tables.write_json(args.json, document)
    if args.plot:
        plot.draw(document, args.plot)
    notes = list(_notes(results))
    for note in notes:
        print(f"torch-mcast simulate: {note}", file=sys.stderr)
    return 1 if notes else 0


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast simulate ARGV`; the exit code (1: some were not run, 2: wrong options)."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["figures"]:
            from torch_mcast.simulate import figures

            return figures.main(argv[1:])
        if argv[:1] == ["validate"]:
            from torch_mcast.simulate import validate

            return validate.main(argv[1:])
        if argv[:1] == ["swarm"]:
            from torch_mcast.simulate import swarm

            return swarm.main(argv[1:])
        return _simulate(_parser().parse_args(argv), argv)
    except (ValueError, FileNotFoundError) as error:
        print(f"torch-mcast simulate: {error}", file=sys.stderr)
        return 2
