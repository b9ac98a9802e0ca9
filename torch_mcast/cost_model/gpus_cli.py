"""`torch-mcast estimate gpu`: computes the time of collectives between the GPUs of several hosts, by this
project's routes and by NCCL's ring. Every speed is a measurement that is named, or is marked as assumed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch_mcast.cost_model import constants, json_output
from torch_mcast.cost_model.constants import Constant
from torch_mcast.cost_model.gpus import OPS, PEERS, ROUTES, Cluster, Estimate, Model
from torch_mcast.lab.units import format_size, parse_rate, parse_size

_MANY_GBIT = ((50, 2), (200, 4))  # default of --channels: from so many Gbit/s on
_SMALL = 4 << 20
_Cells = Callable[[list[dict[str, Any]]], Iterator[list[str]]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast estimate gpu",
        description=__doc__,
        epilog="Each time is that of the busiest resource, plus the time of one part on the others. It does "
        "not include the overhead of a call (0.2 to 0.6 ms measured), so small sizes take longer. "
        "docs/gpu-estimates.md has the formulas.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--hosts", default="2,16", metavar="N,N", help="hosts [2,16]")
    add(
        "--gpus", type=int, default=8, metavar="N", help="GPUs of each host, with one rank each [8]"
    )
    add("--rate", default="25gbit,100gbit,400gbit", metavar="RATE,RATE",
        help="rates of all NICs of a host together [25gbit,100gbit,400gbit]")  # fmt: skip
    add("--channels", type=int, default=None, metavar="N",
        help="parallel rails of each GPU [1; 2 from 50 Gbit/s, 4 from 200]")  # fmt: skip
    add("--peers", choices=PEERS, default="nvlink",
        help="link between the GPUs of a host [nvlink]")  # fmt: skip
    add("--ops", default=",".join(OPS), metavar="OPS", help=f"operations [{','.join(OPS)}]")
    add("--routes", default=",".join(ROUTES), metavar="ROUTES",
        help=f"routes: rails (several hosts), peer (one host), nccl, host [{','.join(ROUTES)}]")  # fmt: skip
    add("--size", default="1G", metavar="BYTES",
        help="the larger of a rank's input and output [1G]")  # fmt: skip
    add("--ring", default="64M", metavar="BYTES",
        help="ring memory per group and lane [64M]")  # fmt: skip
    add("--constants", type=Path, default=None, metavar="FILE",
        help="measured speeds: JSON such as {\"lane\": 2.7}, or a document of `torch-mcast bench --device "
        "cuda --json`")  # fmt: skip
    add("--set", action="append", default=[], metavar="NAME=NUMBER",
        help="measured speed of a resource, in GB/s; repeatable; names: "
        + ", ".join(constants.defaults()))  # fmt: skip
    add("--wide", action="store_true", help="show the time of every resource")
    json_output.add_option(parser)
    return parser


def _listed(text: str, known: tuple[str, ...], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"{option} {name}: known are {', '.join(known)}")
    return names


def _channels(rate: int) -> int:
    return max([1, *(count for gbit, count in _MANY_GBIT if rate >= gbit * 1e9)])


def _clusters(args: argparse.Namespace) -> Iterator[Cluster]:
    try:
        hosts = [int(text) for text in args.hosts.split(",")]
    except ValueError:
        raise ValueError(f"--hosts {args.hosts}: write numbers, such as 2,16") from None
    ring = parse_size(args.ring)
    if min([*hosts, args.gpus, ring]) < 1 or (args.channels is not None and args.channels < 1):
        raise ValueError("--hosts, --gpus, --channels and --ring must be positive")
    for count in hosts:
        if count * args.gpus < 2:
            raise ValueError("one GPU has no collectives: give --hosts or --gpus")
        rates = (
            args.rate.split(",") if count > 1 else args.rate.split(",")[:1]
        )  # one host uses none
        for text in rates:
            rate = parse_rate(text)
            if rate is None:
                raise ValueError(f"--rate {text}: a rate is needed, such as 100gbit")
            yield Cluster(
                count, args.gpus, rate, args.channels or _channels(rate), args.peers, ring
            )


def _row(
    cluster: Cluster, size: int, estimate: Estimate, table: dict[str, Constant]
) -> dict[str, Any]:
    """For --json. Seconds, bytes, bytes per second."""
    row = {**asdict(cluster), "op": estimate.op, "size": size, "route": estimate.route}
    if estimate.unavailable:
        return {**row, "unavailable": estimate.unavailable}
    return {
        **row,
        "seconds": estimate.seconds,
        "busiest": estimate.busiest.name,
        "first_part_s": estimate.first_part,
        "parts": estimate.parts,
        "busy_cores_per_host": estimate.core_seconds / estimate.seconds,
        "pinned_bytes_per_host": estimate.pinned,
        "terms": [
            {**asdict(term), "seconds": term.seconds, "source": table[term.constant].source}
            for term in estimate.terms
        ],
    }


def _ms(seconds: float) -> str:
    ms = 1000 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["hosts"], row["gpus"], row["rate"], row["op"]


def _time(row: dict[str, Any]) -> str:
    star = row["route"] == "host" and row["op"] in ("reduce_scatter", "all_reduce")
    return _ms(row["seconds"]) + ("*" if star else "")


def _details(row: dict[str, Any] | None, nccl: dict[str, Any] | None) -> list[str]:
    """x nccl, busiest, + part, busy cores, pinned."""
    if row is None:
        return ["-"] * 5
    pinned = row["pinned_bytes_per_host"] / (1 << 30)
    return [
        "-" if nccl is None else f"{nccl['seconds'] / row['seconds']:.2f}",
        row["busiest"],
        _ms(row["first_part_s"]) if row["parts"] else "-",
        f"{row['busy_cores_per_host']:.1f}" if row["busy_cores_per_host"] else "-",
        f"{pinned:.1f}" if pinned else "-",
    ]


def _notes(args: argparse.Namespace, size: int, table: dict[str, Constant]) -> list[str]:
    notes = [
        "nccl: a ring at the rate that link_share gives, without a time for its steps",
        "host: the way through pinned memory; * with NCCL as the fallback, NCCL reduces instead",
        "rails, peer: arithmetic, not measured on several GPUs",
    ]
    if size < _SMALL:
        notes.append("below 4 MiB the overhead of a call dominates; these times do not include it")
    assumed = [name for name, constant in table.items() if constant.source.startswith("assumed")]
    if assumed:
        notes.append(f"assumed: {', '.join(assumed)}; --set NAME=NUMBER gives a measured speed")
    if args.peers == "pcie":
        notes.append("peers over PCIe share the link with the copies to and from host memory")
    return notes


class _Tables:
    """Text for people: a line per operation and cluster, or with --wide a line per route, too."""

    def __init__(self, wide: bool) -> None:
        from rich.console import Console

        self._console, self._wide = Console(), wide
        if not self._console.is_terminal:
            self._console = Console(width=190 if wide else 160)

    def show_times(self, rows: list[dict[str, Any]], title: str) -> None:
        from rich.table import Table

        caption = (
            "ms; x nccl: route nccl = 1; + part: what the first part adds; pinned: GiB per host"
        )
        if not self._wide:
            caption += "; columns after the times: of the first route"
        table = Table(title=title, caption=caption, header_style="bold")
        for name in ("hosts x GPUs", "Gbit/s", "operation"):
            table.add_column(name, no_wrap=True)
        places = list(dict.fromkeys(map(_place, rows)))
        lines = [[row for row in rows if _place(row) == place] for place in places]
        head, cells = (self._by_resource if self._wide else self._by_route)(rows)
        for name in head:
            left = name in ("route", "busiest")
            table.add_column(name, justify="left" if left else "right", no_wrap=left)
        for number, (place, line) in enumerate(zip(places, lines, strict=True)):
            if number and place[:3] != places[number - 1][:3]:
                table.add_section()
            hosts, gpus, rate, op = place
            start = (f"{hosts} x {gpus}", f"{rate / 1e9:g}" if hosts > 1 else "-", op)
            for rest in cells(line):
                table.add_row(*start, *rest)
        self._console.print(table)
        for reason in dict.fromkeys(
            f"{row['route']}, {row['hosts']} x {row['gpus']}, {row['op']}: {row['unavailable']}"
            for row in rows
            if "unavailable" in row
        ):
            self._console.print(f"note: {reason}", highlight=False)

    def _by_route(self, rows: list[dict[str, Any]]) -> tuple[list[str], _Cells]:
        routes = [name for name in ROUTES if any(row["route"] == name for row in rows)]
        head = [*routes, "x nccl", "busiest", "+ part", "busy cores", "pinned"]

        def cells(line: list[dict[str, Any]]) -> Iterator[list[str]]:
            by_route = {row["route"]: row for row in line if "seconds" in row}
            times = [_time(by_route[name]) if name in by_route else "-" for name in routes]
            yield [*times, *_details(by_route.get(line[0]["route"]), by_route.get("nccl"))]

        return head, cells

    def _by_resource(self, rows: list[dict[str, Any]]) -> tuple[list[str], _Cells]:
        names = list(dict.fromkeys(t["name"] for row in rows for t in row.get("terms", ())))
        head = ["route", "time", "x nccl", "busiest", "+ part", "busy cores", "pinned", *names]

        def cells(line: list[dict[str, Any]]) -> Iterator[list[str]]:
            known = [row for row in line if "seconds" in row]
            nccl = next((row for row in known if row["route"] == "nccl"), None)
            for row in known:
                times = {term["name"]: _ms(term["seconds"]) for term in row["terms"]}
                resources = [times.get(name, "-") for name in names]
                yield [row["route"], _time(row), *_details(row, nccl), *resources]

        return head, cells

    def show_constants(self, table_of: dict[str, Constant], notes: list[str]) -> None:
        from rich.table import Table

        table = Table(title="speeds", header_style="bold")
        for name in ("name", "value", "of", "from"):
            table.add_column(name, justify="right" if name == "value" else "left")
        for row in table_of.values():
            table.add_row(row.name, f"{row.value:g} {row.unit}".strip(), row.meaning, row.source)
        self._console.print(table)
        for note in notes:
            self._console.print(f"note: {note}", highlight=False)


def main(argv: list[str]) -> int:
    """Runs `torch-mcast estimate gpu ARGV`; the exit code (2: the question makes no sense)."""
    args = _parser().parse_args(argv)
    try:
        size = parse_size(args.size)
        if size < 1:
            raise ValueError("--size must be positive")
        ops = _listed(args.ops, OPS, "--ops")
        routes = _listed(args.routes, ROUTES, "--routes")
        table = constants.gather(args.constants, args.set)
        rows = [
            _row(cluster, size, Model(cluster, size, table).estimate(route, op), table)
            for cluster in _clusters(args)
            for op in ops
            for route in routes
            if route != ("rails" if cluster.hosts == 1 else "peer") or len(routes) == 1
        ]
        notes = _notes(args, size, table)
        document = {
            "size": size,
            "constants": {name: asdict(constant) for name, constant in table.items()},
            "rows": rows,
            "notes": notes,
        }
        if json_output.write(args.json, document):
            return 0
    except ValueError as error:
        print(f"torch-mcast estimate gpu: {error}", file=sys.stderr)
        return 2
    tables = _Tables(args.wide)
    tables.show_times(rows, f"collectives of {format_size(size)}")
    tables.show_constants(table, notes)
    return 0
