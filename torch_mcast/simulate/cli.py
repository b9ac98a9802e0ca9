"""`torch-mcast simulate`: simulates collectives on a network of up to thousands of hosts, in virtual time."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch_mcast.simulate import outputs
from torch_mcast.simulate.helper import parse_hosts
from torch_mcast.simulate.progress import compute

STDOUT = Path("-")  # --json without a file
# Options that are passed on unchanged: metavar and help. A `-` in an option is `_` in its key.
_HANDED = {
    "topology": (
        "SPEC",
        "star, leafspine:leaves=,spines=,links= or fattree:radix=[,pod=,cores=] [star]",
    ),
    "planes": ("N", "separate fabrics, each host with a link to each; lane i uses plane i [1]"),
    "ranks": ("N", "ranks of each host [1]"),
    "rate": ("RATE", "rate of hosts' links [100gbit]"),
    "inner-rate": ("RATE", "rate of links between switches [that of hosts' links]"),
    "delay": ("TIME", "delay of each link [1us]"),
    "mtu": ("BYTES", "largest IP packet [4200: a chunk of 4096]"),
    "op": (
        "OP",
        "broadcast, all_gather, reduce_scatter, all_reduce, all_to_all, gather, scatter, or two at the same "
        "time: A+B [all_gather]",
    ),
    "root": ("RANK", "root of a broadcast, gather or scatter [0]"),
    "order": ("ORDER", "assignment of ranks to hosts: hosts or random [hosts]"),
    "type": ("TYPE", "element type of reductions: float32, bfloat16 or int32 [float32]"),
    "fold": ("ORDER", "setting fold: order of folding, rank or turn [rank]"),
    "security": (
        "MODE",
        "setting security: off, auth or sealed; the output shows their bytes [off]",
    ),
    "aggregator-rate": ("RATE", "rate of aggregators' links [that of hosts' links]"),
    "loss": (
        "SPEC",
        "share of packets to lose, SHARE[@LINKS], such as 1e-4@leaf-spine; a list with commas [none]",
    ),
    "burst": ("N", "mean number of packets in a run of losses [1]"),
    "late": ("RANK:TIME", "delay the call of a rank, such as 5:3ms; a list with commas [none]"),
    "slow": (
        "RANK:SHARE",
        "reduce the link rate of a rank's host, such as 7:0.5; a list with commas [none]",
    ),
    "background": ("SPEC", "streams of other programs, such as load=0.3,size=1M [none]"),
    "seed": ("N", "seed of all random numbers [1]"),
    "wake": ("TIME", "time until a thread wakes up [20us]"),
    "turn": ("TIME", "time that a thread takes for one pass of its loop [2us]"),
    "queue": ("BYTES", "queue of each port of a switch [no limit]"),
    "mark": ("BYTES", "mark packets (ECN) that find more than this waiting [never]"),
    "lossless": ("0|1", "1: full ports pause their senders [0]"),
    "nic-queues": ("N", "transmit queues of a NIC; lane i uses queue i [1]"),
    "nic-limit": ("BYTES", "size of a transmit queue [no limit]"),
    "frame": (
        "BYTES",
        "bytes of a packet on the wire in addition to IP [38: Ethernet, preamble, gap]",
    ),
    "shaper": ("BYTES", "burst that passes hosts' links at full speed (tbf) [none]"),
    "ack-every": ("N", "packets of a stream per acknowledgement [2]"),
    "cork": ("0|1", "1: small writes of a stream wait while earlier ones are at the interface [0]"),
    "budget": ("BYTES", "receive buffer of a socket [16M]"),
    "warmup": ("N", "runs of the operations before the measured one, by a group that learns [0]"),
    "send-queue": ("BYTES", "send buffer of a socket [1M]"),
    "bookkeeping": (
        "BYTES",
        "buffer space that each datagram takes in addition to its bytes; Linux: 832 [0]",
    ),
    "trees": ("RULE", "what selects the spine of a multicast tree: address or source [address]"),
    "train": ("N", "most packets that move together [64]"),
    "limit": ("TIME", "limit of virtual time [600s]"),
}

_EPILOG = """Algorithms: mcast, mcast-aggregators and ring are those of the engine. ring-schedule,
recursive-doubling, binomial, chain and direct are schedules of sends without any costs of hosts: a lower
bound for programs that use them (so is ring for reductions). `torch-mcast simulate figures` reproduces the
figures of the paper, `torch-mcast simulate validate` compares the simulator with a lab, `torch-mcast simulate
swarm` runs random plans; see their --help."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast simulate", description=__doc__, epilog=_EPILOG
    )
    add = parser.add_argument
    add("--hosts", default="8", metavar="N",
        help="number of hosts, or a sweep: 2..1024 (doubling), 2,8,188 [8]")  # fmt: skip
    add("--algorithm", metavar="A,B",
        help="algorithms, see below [mcast,ring; with --aggregators also mcast-aggregators]")  # fmt: skip
    add("--aggregators", default="0", metavar="N",
        help="hosts with an aggregator each, for mcast-aggregators, or a sweep: 2,4,8 [0]")  # fmt: skip
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--size", metavar="BYTES", help="size of the larger of input and output [64M]"
    )
    size.add_argument("--block", metavar="BYTES", help="size of a rank's block, instead of --size")
    for name, (metavar, text) in _HANDED.items():
        add(f"--{name}", metavar=metavar, help=text)
    add("--set", action="append", default=[], metavar="NAME=VALUE",
        help="setting of the engine, such as window=2M (list: torch-mcast settings); repeatable")  # fmt: skip
    add("--jobs", type=int, default=None, metavar="N",
        help="experiments to run at the same time [number of cores]")  # fmt: skip
    add("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE",
        help="print a JSON document instead of the table; with FILE, write it there")  # fmt: skip
    add("--plot", type=Path, metavar="FILE",
        help="write a plot to FILE (PNG): time, traffic, load of each link")  # fmt: skip
    add("--plot-parts", metavar="A,B", help="parts of the plot: time, traffic, links, use [all]")
    add("--quiet-time", action="store_true",
        help="omit wall times, so that equal runs give equal output")  # fmt: skip
    add("--width", type=int, default=None, metavar="N",
        help="width of the table in characters [the terminal's]")  # fmt: skip
    return parser


def experiments(args: argparse.Namespace) -> list[str]:
    """Returns texts for the program: each number of hosts with each algorithm."""
    words = []
    for option in ("size", "block", *_HANDED):
        value = getattr(args, option.replace("-", "_"))
        if value is not None:
            words.append(f"{option.replace('-', '_')}={value}")
    own = {word.split("=", 1)[0] for word in words}
    for word in args.set:
        name = word.split("=", 1)[0]
        if name in _OWN or name in own:  # it would replace the option's value
            raise ValueError(f"--set {word}: that is the option --{name.replace('_', '-')}")
        words.append(word)
    for word in words:
        if not word.split("=", 1)[-1] or any(c.isspace() for c in word):
            raise ValueError(f"{word!r}: a value without blanks is needed")
    served = list(dict.fromkeys(n for n in args.aggregators.split(",") if n != "0"))
    default = "mcast-aggregators,mcast,ring" if served else "mcast,ring"
    names = list(dict.fromkeys((args.algorithm or default).split(",")))
    _refuse_what_has_no_effect(dict(word.partition("=")[::2] for word in words), names, served)
    texts = []
    for hosts in parse_hosts(args.hosts):
        for name in names:
            counts = [f"aggregators={n}" for n in served] if name == "mcast-aggregators" else []
            for count in counts or [""]:
                texts.append(
                    " ".join(filter(None, [f"hosts={hosts}", f"algorithm={name}", count, *words]))
                )
    return texts


# Set by the command itself: a setting of that name would replace it.
_OWN = ("hosts", "algorithm", "aggregators", "size", "block")


def _refuse_what_has_no_effect(
    words: dict[str, str], names: Sequence[str], served: Sequence[str]
) -> None:
    """Raises ValueError for options without effect: a user would misread the results."""
    if served and "mcast-aggregators" not in names:
        raise ValueError(f"--aggregators: {','.join(names)} uses none; add mcast-aggregators")
    if "aggregator_rate" in words and not served:
        raise ValueError("--aggregator-rate: there are no --aggregators")
    if "burst" in words and "loss" not in words:
        raise ValueError("--burst: there is no --loss")
    if "inner_rate" in words and words.get("topology", "star").startswith("star"):
        raise ValueError("--inner-rate: a star has no links between switches")
    ops = words.get("op", "all_gather").split("+")
    if "root" in words and not set(ops) & {"broadcast", "gather", "scatter"}:
        raise ValueError(f"--root: {'+'.join(ops)} has no root")
    reduces = not _gathers(ops) and not {"mcast", "mcast-aggregators"}.isdisjoint(names)
    for option in ("type", "fold"):
        if option in words and not reduces:
            raise ValueError(f"--{option}: nothing is reduced by the engine")
    # A comparison must run next to one that learns a schedule.
    learn = {"mcast", "mcast-aggregators"} | ({"ring"} if _gathers(ops) else set())
    if words.get("security", "off") != "off" and learn.isdisjoint(names):
        raise ValueError(f"--security: {','.join(names)} is a schedule, and guards nothing")
    if words.get("warmup", "0") != "0" and learn.isdisjoint(names):
        raise ValueError(f"--warmup: {','.join(names)} is a schedule, and learns nothing")


def _gathers(ops: Sequence[str]) -> bool:
    """Returns whether no operation reduces; then "ring" means the engine's own ring."""
    return not set(ops) & {"reduce_scatter", "all_reduce"}


def _notes(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if reason := result.get("error"):
            yield f"{' '.join(result['spec'].split()[:2])}: {reason}"


def _simulate(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from torch_mcast.simulate import plot, tables

    texts = experiments(args)
    file = None if args.json == STDOUT else args.json
    for path in filter(None, (file, args.plot)):  # before a run that may take an hour
        outputs.check_file(path)
    if args.plot:
        outputs.check_plots("--plot")
    elif args.plot_parts:
        raise ValueError("--plot-parts: there is no --plot")
    parts = plot.parts_of(args.plot_parts) if args.plot_parts else plot.PARTS
    results = compute(texts, args.jobs, bool(args.plot), args.quiet_time)
    document = tables.document(results, "torch-mcast simulate " + shlex.join(argv))
    if file:
        tables.write_json(file, document)
    if args.json == STDOUT:
        print(json.dumps(document, indent=1))
    else:
        tables.show(document, args.width)
    if args.plot:
        plot.draw(document, args.plot, parts)
    notes = list(_notes(results))
    for note in notes:
        print(f"torch-mcast simulate: {note}", file=sys.stderr)
    return 1 if notes else 0


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast simulate ARGV`. Returns the exit code: 1 if some experiments were not run,
    2 for wrong options."""
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
    except (ValueError, OSError) as error:
        print(f"torch-mcast simulate: {error}", file=sys.stderr)
        return 2
