"""`torch-mcast estimate`: computes the bytes that pass each NIC in a reduction, and its least time."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from torch_mcast.bench.formulas import payload_rate
from torch_mcast.cost_model import aggregation, gpus_cli, json_output, offload
from torch_mcast.cost_model.aggregation import Case, Loads, Servers, Tree
from torch_mcast.lab.units import format_rate, format_size, parse_rate, parse_size

# Bytes of an accumulator / bytes of an element; whether the order of the fold changes the result.
_DTYPES = {
    "f32": (1, True),
    "f64": (1, True),
    "bf16": (2, True),
    "f16": (2, True),
    "i32": (1, False),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torch-mcast estimate",
        description=__doc__,
        epilog="Times are lower bounds from link rates. The time of CPUs, and of the first and last segment, "
        "is additional. `torch-mcast estimate gpu` computes times of collectives between GPUs, "
        "`torch-mcast estimate offload` how many hardware threads of a SmartNIC receive for a host.",
    )
    add = parser.add_argument
    add("--hosts", type=int, default=8, metavar="N",
        help="worker hosts, with one contribution each [8]")  # fmt: skip
    add("--ranks-per-host", type=int, default=1, metavar="N", help="ranks of each worker host [1]")
    add("--aggregators", type=int, default=0, metavar="N",
        help="aggregators; with --racks including those of --tops [0]")  # fmt: skip
    add("--speed", type=float, default=1.0, metavar="X",
        help="speed of an aggregator's link relative to a worker's [1]")  # fmt: skip
    add("--rate", default="1gbit", help="speed of a worker's link per direction [1gbit]")
    add("--mtu", type=int, default=1500, metavar="BYTES", help="largest IP packet [1500]")
    add("--size", default="64M", metavar="BYTES", help="input of a rank [64M]")
    add("--op", choices=aggregation.OPS, default="all_reduce", help="operation [all_reduce]")
    add("--fold", choices=("rank", "turn"), default="rank", help="order of folding [rank]")
    add("--dtype", choices=tuple(_DTYPES), default="f32", help="element type [f32]")
    add("--aggregate", choices=("careful", "both"), default="careful",
        help="setting for reduce_scatter [careful]")  # fmt: skip
    add("--racks", default=None, metavar="N+N",
        help="hosts per rack, for a tree of aggregators [no racks]")  # fmt: skip
    add("--tops", type=int, default=1, metavar="N", help="aggregators at the top of the tree [1]")
    json_output.add_option(parser)
    return parser


class _Report:
    """The rows of one question."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.op: str = args.op
        self.hosts: int = args.hosts
        self.size = parse_size(args.size)
        rate = parse_rate(args.rate)
        if rate is None or args.hosts < 2 or args.aggregators < 0 or args.speed <= 0:
            raise ValueError(
                "--rate, --hosts (at least 2), --aggregators and --speed must be positive"
            )
        self.bytes_per_s = payload_rate(rate, args.mtu)
        self.racks: tuple[int, ...] = tuple(map(int, args.racks.split("+"))) if args.racks else ()
        if self.racks and (sum(self.racks) != self.hosts or min(self.racks) < 1):
            raise ValueError(f"--racks {args.racks} does not add up to {self.hosts} hosts")
        self.rows: list[dict[str, Any]] = []
        ratio, ordered = _DTYPES[args.dtype]
        self.case = Case(
            scatter=self.op != "all_reduce",
            size=self.size,
            members=self.hosts * args.ranks_per_host,
            servers=Servers(self.hosts, args.aggregators, args.aggregators * args.speed),
            segment=aggregation.segment_bytes(self.hosts),
            ratio=ratio,
            own="kept" if not ordered else "either" if args.fold == "turn" else "sent",
            mode=args.aggregate,
        )
        self.plan = aggregation.plan(self.case)
        self.workers = aggregation.workers_only(self.op, self.hosts)
        self._flat()
        if self.racks:
            self._tree(args)
        self._add("ideal switch", aggregation.ideal_switch(self.op, self.hosts))

    def _flat(self) -> None:
        op, case, servers = self.op, self.case, self.case.servers
        self._add("ring", aggregation.ring(op, self.hosts))
        self._add("workers only, multicast", self.workers)
        if servers.count:
            kept = self.plan.kept or case.own == "kept"
            self._add("aggregators, unicast results", servers.unicast(op), 1.0)
            self._add("aggregators, O", servers.by_owner(op, 1.0, kept, case.ratio), 1.0)
            if op == "all_reduce":
                self._add("aggregators, R", servers.by_server(1.0), 1.0)
            planned = servers.by_owner(op, self.plan.part, kept, case.ratio)
            self._add("mixed, O", planned, self.plan.part)
            if op == "all_reduce":
                part = aggregation.best_part(servers.by_server)
                self._add("mixed, R", servers.by_server(part), part)

    def _tree(self, args: argparse.Namespace) -> None:
        if args.tops < 1:
            raise ValueError("--tops: a tree needs at least one")
        leaves = aggregation.grow_leaves(self.racks, args.aggregators - args.tops)
        tree = Tree(self.racks, leaves, args.tops, self.case.ratio, args.speed)
        case = replace(
            self.case,
            servers=Servers(self.hosts, args.tops, args.tops * args.speed),
            own="sent",
            tree=tree,
            leaves=sum(leaves),
        )
        part = aggregation.plan(case).part
        for row in self.rows:
            if row["way"] == "mixed, O":
                row["uplinks"] = self._uplinks(tree, row["part"], False)
        self._add("mixed, O, tree", tree.loads(self.op, part), part)
        self.rows[-1]["leaves"] = leaves
        self.rows[-1]["uplinks"] = self._uplinks(tree, part, True)

    def _uplinks(self, tree: Tree, part: float, leaves: bool) -> list[tuple[float, float]]:
        loads = [tree.uplink(self.op, part, rack, leaves) for rack in range(len(self.racks))]
        return [(up * self.size, down * self.size) for up, down in loads]

    def _add(self, way: str, loads: Loads, part: float | None = None) -> None:
        nics = {
            name: None if load is None else load * self.size
            for name, load in asdict(loads).items()
            if name != "speed"
        }
        self.rows.append(
            {
                "way": way,
                "part": part,
                **nics,
                "time": loads.time,
                "bound_s": loads.time * self.size / self.bytes_per_s,
                "gain": self.workers.time / loads.time,
            }
        )

    def notes(self) -> list[str]:
        if not self.case.servers.count:
            return []
        if self.plan.reason != "placed":
            return [f"the planner leaves all to the workers: {self.plan.reason}"]
        own = "keeps" if self.plan.kept else "sends"
        said = [f"mixed, O: what the planner chooses; the owner {own} its own contribution"]
        if self.op == "reduce_scatter":
            said.append("planned for an all_gather beside it (--op ag_rs): alone it gains nothing")
        return said


def _show(report: _Report, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from torch_mcast.bench.report import bytes_text, time_text

    nics = ["worker in", "worker out", "aggregator in", "aggregator out"]
    if report.racks:
        nics += ["top in", "top out"]
    table = Table(title=title, caption="bytes per NIC and operation", header_style="bold")
    table.add_column("way", no_wrap=True)
    headings = ["f", *nics, *(["busiest uplink"] if report.racks else [])]
    for name in [*headings, "least time", "x workers"]:
        table.add_column(name, justify="right")
    for row in report.rows:
        cells = ["-" if row["part"] is None else f"{row['part']:.3f}"]
        cells += [bytes_text(row[name.replace(" ", "_")]) for name in nics]
        if report.racks:
            cells.append(bytes_text(max(map(max, row["uplinks"])) if "uplinks" in row else None))
        table.add_row(row["way"], *cells, time_text(row["bound_s"]), f"{row['gain']:.3f}")
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    console.print(table)
    for note in report.notes():
        console.print(f"note: {note}", highlight=False)


def main(argv: list[str] | None = None) -> int:
    """Runs `torch-mcast estimate ARGV`; the exit code (2: the question makes no sense)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["offload"]:
        return offload.main(argv[1:])
    if argv[:1] == ["gpu"]:
        return gpus_cli.main(argv[1:])
    args = _parser().parse_args(argv)
    try:
        report = _Report(args)
        asked = {"size": report.size, "bytes_per_s": report.bytes_per_s}
        document = {**vars(args), **asked, "plan": asdict(report.plan)}
        del document["json"]
        document |= {"notes": report.notes(), "rows": report.rows}
        if json_output.write(args.json, document):
            return 0
    except ValueError as error:
        print(f"torch-mcast estimate: {error}", file=sys.stderr)
        return 2
    title = (
        f"{args.op} of {format_size(report.size)}, {args.hosts} hosts, {args.aggregators} "
        f"aggregators, {format_rate(parse_rate(args.rate))}, fold {args.fold}, {args.dtype}"
    )
    _show(report, title)
    return 0
