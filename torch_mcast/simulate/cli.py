"""`torch-mcast simulate`: collectives on a network of up to thousands of hosts, in virtual time."""

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
# Options that are handed over as they are, with their help; `-` in an option is `_` in a key.
_HANDED = {
    "topology": "star, leafspine:leaves=,spines=,links= or fattree:radix=[,pod=,cores=]; default star",
    "planes": "separate fabrics, each host with a link to each; lane i uses plane i",
    "ranks": "ranks of each host; default 1",
    "rate": "of hosts' links, such as 100gbit (default)",
    "inner-rate": "of links between switches; default as the hosts'",
    "delay": "of each link; default 1us",
    "mtu": "bytes of an IP packet; default 4200: a chunk of 4096",
    "op": "broadcast, all_gather (default), reduce_scatter, all_reduce, all_to_all, gather, scatter, or two "
    "at once: A+B",
    "root": "of a broadcast, gather or scatter; default 0",
    "order": "hosts or random: how ranks are dealt to hosts",
    "type": "of reductions: float32 (default), bfloat16 or int32",
    "fold": "setting: order of folding, rank (default) or turn",
    "security": "setting: auth or sealed, whose bytes are told; default off",
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
    add("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE",
        help="print a JSON document, not the table; FILE: write it there")  # fmt: skip
    add("--plot", type=Path, help="write a PNG here: time and traffic, and the load of each link")
    add("--plot-parts", metavar="A,B", help="of time, traffic, links and use; default all")
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
    own = {word.split("=", 1)[0] for word in words}
    for word in args.set:
        name = word.split("=", 1)[0]
        if name in _OWN or name in own:  # it would take the place of the option's
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


# What the command says itself: a setting of that name would take its place.
_OWN = ("hosts", "algorithm", "aggregators", "size", "block")


def _refuse_what_has_no_effect(
    words: dict[str, str], names: Sequence[str], served: Sequence[str]
) -> None:
    """ValueError: somebody would take the results for something else."""
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
        raise ValueError(f"--root: {'+'.join(ops)} has none")
    reduces = not _gathers(ops) and not {"mcast", "mcast-aggregators"}.isdisjoint(names)
    for option in ("type", "fold"):
        if option in words and not reduces:
            raise ValueError(f"--{option}: nothing is reduced by the engine")
    # Beside one that learns a schedule is a comparison.
    learn = {"mcast", "mcast-aggregators"} | ({"ring"} if _gathers(ops) else set())
    if words.get("security", "off") != "off" and learn.isdisjoint(names):
        raise ValueError(f"--security: {','.join(names)} is a schedule, and guards nothing")
    if words.get("warmup", "0") != "0" and learn.isdisjoint(names):
        raise ValueError(f"--warmup: {','.join(names)} is a schedule, and learns nothing")


def _gathers(ops: Sequence[str]) -> bool:
    """Whether none of them reduces: then the engine's own ring is meant by one."""
    return not set(ops) & {"reduce_scatter", "all_reduce"}


def _notes(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if reason := result.get("error"):
            yield f"{' '.join(result['spec'].split()[:2])}: {reason}"


def _simulate(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from torch_mcast.simulate import plot, tables

    texts = experiments(args)
    file = None if args.json == STDOUT else args.json
    for path in filter(None, (file, args.plot)):  # not after an hour
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
    except (ValueError, OSError) as error:
        print(f"torch-mcast simulate: {error}", file=sys.stderr)
        return 2
