"""`torch-mcast simulate figures`: compares the figures of the SC24 paper and of torch-mcast's own claims: as
published, computed in closed form, and simulated. Exit code 1 if a simulated one deviates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_mcast.bench.report import time_text
from torch_mcast.simulate import analytic, outputs
from torch_mcast.simulate.progress import compute
from torch_mcast.simulate.tables import bound_s, payload, wire

# Ring and recursive doubling over multicast, as in the paper (radix 32).
PUBLISHED = {
    16: (1.875, 1.875),
    32: (1.881, 2.294),
    64: (1.886, 2.901),
    128: (1.942, 3.277),
    256: (1.971, 3.466),
    512: (1.985, 3.561),
    1024: (1.993, 3.609),
}
_PAPER = "topology=leafspine:leaves=12,spines=6,links=3 rate=56gbit mtu=4200"
_CONSTANT = "topology=fattree:radix=32 rate=100gbit mtu=4200 op=broadcast"


@dataclass(frozen=True)
class Row:
    """One figure. `low`, `high`: range that a simulated figure must be in; None: it is only shown."""

    name: str
    published: str
    expected: str
    simulated: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def off(self) -> bool:
        """Returns whether it was simulated and is outside its range."""
        if self.simulated is None or self.low is None or self.high is None:
            return False
        return not self.low <= self.simulated <= self.high

    def verdict(self) -> str:
        if self.simulated is None:
            return self.note or "not run"
        return "OFF" if self.off else self.note or ("ok" if self.low is not None else "")


def near(name: str, published: float | None, expected: float, got: float | None, by: float) -> Row:
    """Returns a row whose simulated figure may differ by `by` times the expected one."""
    text = "" if published is None else f"{published:.3f}"
    return Row(name, text, f"{expected:.3f}", got, expected * (1 - by), expected * (1 + by))


class Batch:
    """Experiments of a figure, run together; the results are then read one by one."""

    def __init__(self, jobs: int | None) -> None:
        self._jobs = jobs
        self._texts: list[str] = []
        self._results: list[dict[str, Any]] = []

    def add(self, text: str) -> int:
        self._texts.append(text)
        return len(self._texts) - 1

    def run(self) -> None:
        # The largest first, so that it does not run alone at the end.
        order = sorted(range(len(self._texts)), key=lambda i: -_hosts(self._texts[i]))
        results = compute([self._texts[i] for i in order], self._jobs)
        by_number = dict(zip(order, results, strict=True))
        self._results = [by_number[i] for i in range(len(self._texts))]

    def get(self, number: int) -> dict[str, Any] | None:
        """Returns a result, or None if there is none."""
        result = self._results[number]
        return None if "error" in result else result

    def reasons(self) -> list[str]:
        return list(dict.fromkeys(r["error"] for r in self._results if "error" in r))


def _hosts(text: str) -> int:
    return int(dict(word.split("=", 1) for word in text.split())["hosts"])


def _ratio(
    above: dict[str, Any] | None, below: dict[str, Any] | None, of: Callable[..., float]
) -> float | None:
    return None if above is None or below is None else of(above) / of(below)


def model(batch: Batch, most: int) -> Callable[[], list[Row]]:
    """Ratios of link crossings on fat trees of radix 32, in pods of 32 hosts (the paper's) and of 256."""
    wanted: list[tuple[int, int | None, list[int]]] = []
    for hosts in (h for h in PUBLISHED if h <= most):
        for pod in (32, None):
            topology = "fattree:radix=32" + (f",pod={pod}" if pod else "")
            common = f"hosts={hosts} topology={topology} op=all_gather block=4096 mtu=4200"
            names = ("ring-schedule", "recursive-doubling", "mcast")
            runs = [batch.add(f"{common} algorithm={name}") for name in names]
            wanted.append((hosts, pod, runs))

    def rows() -> list[Row]:
        found = []
        for hosts, pod, runs in wanted:
            shape = analytic.fat_tree(hosts, pod=pod)
            tree = analytic.multicast_all_gather(shape)
            ring, doubling, mcast = (batch.get(number) for number in runs)
            sums = (
                analytic.ring_all_gather(shape),
                analytic.recursive_doubling_all_gather(shape),
            )
            for k, (name, result) in enumerate((("ring", ring), ("doubling", doubling))):
                got = _ratio(result, mcast, payload)
                if got is None and result is not None:  # without the engine: the exact tree
                    got = payload(result) / (4096 * tree)
                label = f"{hosts} hosts, pods of {pod or 256}: {name} / multicast"
                published = PUBLISHED[hosts][k] if pod else None
                found.append(near(label, published, sums[k] / tree, got, 0.002))
        return found

    return rows


def paper(batch: Batch, most: int) -> Callable[[], list[Row]]:
    """188 hosts on switches with 36 ports."""
    if most < 188:
        return list
    shape = analytic.leaf_spine(188, 12)
    common = f"hosts=188 {_PAPER}"
    gather = f"{common} op=all_gather"
    small = {
        name: batch.add(f"{gather} block=64K algorithm={algorithm}")
        for name, algorithm in (
            ("ring", "ring-schedule"),
            ("bruck", "recursive-doubling"),
            ("mcast", "mcast"),
        )
    }
    shuffled = batch.add(f"{gather} block=64K algorithm=ring-schedule order=random")
    whole = _all_bytes(batch, gather)
    casts = {
        name: batch.add(f"{common} op=broadcast size=16M algorithm={name}")
        for name in ("binomial", "chain", "mcast")
    }

    def rows() -> list[Row]:
        tree = analytic.multicast_all_gather(shape)
        mcast = batch.get(small["mcast"])

        def crossings(number: int, block: int, edges: int, **of: Any) -> float | None:
            result = batch.get(number)
            return None if result is None else payload(result, **of) / (block * edges)

        ring = analytic.ring_all_gather(shape) / tree
        found = [
            near("all_gather: ring / multicast, all links", None, ring,
                 crossings(small["ring"], 65536, tree), 0.002),
            near("the same, leaf-spine links alone", None, ring,
                 crossings(small["ring"], 65536, 188 * 12, kind="leaf-spine"), 0.002),
            near("the same, only what switches send", None, 1.06,
                 crossings(small["ring"], 65536, 188 * 199, switches=True), 0.01),
            near("ring in random order / multicast", None, 3.59,
                 crossings(shuffled, 65536, tree), 0.03),
            near("Bruck / multicast", None, analytic.bruck_all_gather(shape) / tree,
                 crossings(small["bruck"], 65536, tree), 0.002),
        ]  # fmt: skip
        edges = analytic.multicast_broadcast(shape)
        for name, sends in (
            ("binomial", analytic.binomial_broadcast(shape)),
            ("chain", analytic.chain_broadcast(shape)),
        ):
            got = crossings(casts[name], 16 << 20, edges)
            found.append(near(f"broadcast: {name} / multicast", None, sends / edges, got, 0.002))
        sent = None if mcast is None else payload(mcast) / (65536 * tree)
        found.append(near("multicast: crossings / edges of the tree", None, 1, sent, 0.002))
        return found + whole()

    return rows


def _all_bytes(batch: Batch, gather: str) -> Callable[[], list[Row]]:
    """Compares all bytes of the engine's ring with those of its multicast, from 256 KiB on, where
    control traffic is small."""
    pairs = {
        size: [batch.add(f"{gather} block={size} algorithm={name}") for name in ("ring", "mcast")]
        for size in ("256K", "512K", "1M")
    }

    def rows() -> list[Row]:
        found = []
        for size, (ring, mcast) in pairs.items():
            got = _ratio(batch.get(ring), batch.get(mcast), wire)
            name = f"ring / multicast, blocks of {size}iB, with control and acks"
            found.append(Row(name, "", "2.0", got, 1.95, 2.05))
        return found

    return rows


def constant(batch: Batch, most: int) -> Callable[[], list[Row]]:
    """Broadcasts of 64 MiB at 100 Gbit/s: multiples of the least time, from 2 hosts on."""
    # For the two others only least times are known: streams of a binomial tree share links
    # depending on their hashes, and each hop of a chain begins with a small window.
    wanted = []
    hosts = 2
    while hosts <= most:
        common = f"hosts={hosts} {_CONSTANT} size=64M"
        runs = {n: batch.add(f"{common} algorithm={n}") for n in ("mcast", "chain", "binomial")}
        wanted.append((hosts, runs))
        hosts *= 2

    def rows() -> list[Row]:
        found = []
        for number, runs in wanted:
            steps = number.bit_length() - 1
            limits = {"mcast": (1, 1.1), "chain": (1, 4.5), "binomial": (steps, 2.5 * steps)}
            expected = {"mcast": "1", "chain": "1 or more", "binomial": f"{steps} or more"}
            for name, run in runs.items():
                result = batch.get(run)
                got = None if result is None else result["time"] / 1e9 / bound_s(result)
                note = "" if result is None else time_text(result["time"] / 1e9)
                low, high = limits[name]
                label = f"{number} hosts: {name}"
                found.append(Row(label, "", expected[name], got, low * 0.99, high, note))
        return found

    return rows


FIGURES: dict[str, Callable[[Batch, int], Callable[[], list[Row]]]] = {
    "model": model,
    "paper": paper,
    "constant": constant,
}


def markdown(name: str, rows: Sequence[Row]) -> str:
    """Returns a page with the table of one figure."""
    lines = [
        f"# {name}: {(FIGURES[name].__doc__ or '').strip()}",
        "",
        "| figure | published | expected | simulated | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        got = "-" if row.simulated is None else f"{row.simulated:.3f}"
        lines.append(f"| {row.name} | {row.published} | {row.expected} | {got} | {row.verdict()} |")
    return "\n".join(lines) + "\n"


def _show(name: str, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    out = Table(title=(FIGURES[name].__doc__ or "").strip(), header_style="bold")
    for column in ("figure", "published", "expected", "simulated", ""):
        out.add_column(column, justify="left" if column in ("figure", "") else "right")
    for row in rows:
        got = "-" if row.simulated is None else f"{row.simulated:.3f}"
        out.add_row(row.name, row.published, row.expected, got, row.verdict())
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(out)


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Plots the figure `constant`: multiples of the least time against hosts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5.5, 3.6), layout="constrained")
    for name in ("mcast", "chain", "binomial"):
        mine = [r for r in rows if r.name.endswith(f": {name}") and r.simulated is not None]
        hosts = [int(row.name.split()[0]) for row in mine]
        if mine:
            axis.plot(hosts, [row.simulated for row in mine], marker="o", markersize=3, label=name)
    axis.axhline(1, color="black", linestyle="--", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    hosts = sorted({int(row.name.split()[0]) for row in rows})
    axis.set_xticks(hosts, [str(count) for count in hosts], fontsize=8)
    axis.minorticks_off()
    axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axis.set_xlabel("hosts")
    axis.set_ylabel("time / least time")
    axis.legend()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch-mcast simulate figures", description=__doc__)
    add = parser.add_argument
    add(
        "--which",
        default=",".join(FIGURES),
        metavar="NAMES",
        help=f"figures, out of {','.join(FIGURES)} [all]",
    )
    add("--out", type=Path, metavar="DIR", help="write tables (Markdown) and plots into DIR")
    add(
        "--most-hosts",
        type=int,
        default=1024,
        metavar="N",
        help="largest network to simulate [1024]",
    )
    add(
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="experiments to run at the same time [number of cores]",
    )
    return parser


def main(argv: list[str]) -> int:
    """Runs `torch-mcast simulate figures ARGV`. Returns 1 if a figure deviates, or could not be
    simulated."""
    args = _parser().parse_args(argv)
    names = args.which.split(",")
    for name in names:
        if name not in FIGURES:
            raise ValueError(f"--which {name}: figures are {', '.join(FIGURES)}")
    if args.out:
        outputs.check_folder(args.out)
        if "constant" in names:
            outputs.check_plots("--out with constant")
    # Runs all of them, even if one deviates.
    off = [_figure(name, args) for name in names]
    return 1 if any(off) else 0


def _figure(name: str, args: argparse.Namespace) -> bool:
    """Runs, writes and shows one figure. Returns whether it deviates, or could not be simulated."""
    batch = Batch(args.jobs)
    ask = FIGURES[name](batch, args.most_hosts)
    batch.run()
    rows = ask()
    if args.out:
        (args.out / f"{name}.md").write_text(markdown(name, rows))
    _show(name, rows)
    if args.out and name == "constant" and rows:
        _plot(rows, args.out / f"{name}.png")
    reasons = batch.reasons()
    if all(row.simulated is None for row in rows):
        reasons.append("nothing was run")
    for reason in reasons:
        print(f"torch-mcast simulate figures: {name}: {reason}", file=sys.stderr)
    return bool(reasons) or any(row.off for row in rows)
