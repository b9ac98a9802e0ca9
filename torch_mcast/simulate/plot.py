"""Plots simulated results: time and traffic against hosts, traffic over time, and a map of the load
of each link. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch_mcast.lab.units import parse_rate
from torch_mcast.simulate.tables import algorithm_text, bound_s, option, title

# The first ones against hosts, side by side at the top; the others for each row of the largest
# network, below.
_SWEEP, _RUN = ("time", "traffic"), ("links", "use")
PARTS = (*_SWEEP, *_RUN)


def parts_of(text: str) -> list[str]:
    """Parses `time,links`. Raises ValueError if there is no such part."""
    parts = text.split(",")
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"--plot-parts {text}: parts are {', '.join(PARTS)}")
    return parts


def draw(document: dict[str, Any], path: Path, parts: Sequence[str] = PARTS) -> None:
    """Writes a PNG; writes no file if there is no result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in document["rows"] if "error" not in row]
    if not rows:
        return
    largest = max(row["hosts"] for row in rows)
    sweep, run = ([part for part in kind if part in parts] for kind in (_SWEEP, _RUN))
    mapped = [row for row in rows if row["hosts"] == largest] if run else []
    heights = [3.2] * bool(sweep) + [2.0] * len(mapped)
    columns = max(len(sweep), len(run))
    figure, axes = pyplot.subplots(
        len(heights),
        columns,
        figsize=(11 if columns > 1 else 7, 0.4 + 1.2 * sum(heights)),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(map(algorithm_text, rows)))}
    panels: list[list[Callable[[Any], None]]] = []
    if sweep:
        by_name = {"time": times, "traffic": traffic}
        panels.append([partial(by_name[part], rows=rows, colours=colours) for part in sweep])
    of_run = {"links": heat_map, "use": over_time}
    panels += [[partial(of_run[part], row=row) for part in run] for row in mapped]
    for line, drawn in zip(axes, panels, strict=True):
        for axis, panel in zip(line, drawn, strict=False):
            panel(axis)
        for axis in line[len(drawn) :]:
            axis.set_visible(False)
    figure.suptitle(f"{title(rows[0])}\n{document['caption']}", fontsize=10 if columns > 1 else 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _of(rows: Sequence[dict[str, Any]], algorithm: str) -> list[dict[str, Any]]:
    """Returns an algorithm's rows, by the number of hosts."""
    return sorted((r for r in rows if algorithm_text(r) == algorithm), key=lambda r: r["hosts"])


def _series(
    axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str], of: Any, name: str
) -> None:
    """Draws a curve for each algorithm, or bars if there is one number of hosts."""
    hosts = sorted({row["hosts"] for row in rows})
    if len(hosts) == 1:
        bars = axis.bar(
            [algorithm_text(row).replace(" ", "\n", 1) for row in rows],
            [of(row) for row in rows],
            color=[colours[algorithm_text(row)] for row in rows],
            width=0.6,
        )
        axis.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
        axis.tick_params(axis="x", labelsize=8)
        axis.margins(y=0.15)
    else:
        for algorithm, colour in colours.items():
            mine = _of(rows, algorithm)
            axis.plot(
                [row["hosts"] for row in mine],
                [of(row) for row in mine],
                color=colour,
                marker="o",
                markersize=3,
                label=algorithm,
            )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(hosts, [str(h) for h in hosts], fontsize=8)
        axis.minorticks_off()
        axis.set_xlabel("hosts", fontsize=8)
        axis.legend(fontsize=8)
    axis.set_ylabel(name, fontsize=8)
    axis.grid(True, axis="y", alpha=0.3)


def times(axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    """Draws time against hosts, with the bound."""
    _series(axis, rows, colours, lambda row: row["time"] / 1e6, "time (ms)")
    _bounds(axis, rows, colours)
    axis.set_title("time, and the bound (dashed)", fontsize=9)


def _bounds(axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    """Draws one dashed line if all have the same bound, else one for each algorithm."""
    found: dict[int, set[float]] = {}
    for row in rows:
        found.setdefault(row["hosts"], set()).add(bound_s(row) * 1e3)
    same = all(len(bounds) == 1 for bounds in found.values())
    style = {"linestyle": "--", "linewidth": 1}
    if len(found) == 1:
        # Bars are at 0, 1, 2, ...
        for place, algorithm in enumerate(colours):
            bound = bound_s(_of(rows, algorithm)[0]) * 1e3
            axis.plot([place - 0.4, place + 0.4], [bound, bound], color="black", **style)
    elif same:
        axis.plot(sorted(found), [min(found[h]) for h in sorted(found)], color="black", **style)
    else:
        for algorithm, colour in colours.items():
            mine = _of(rows, algorithm)
            bounds = [bound_s(row) * 1e3 for row in mine]
            axis.plot([row["hosts"] for row in mine], bounds, color=colour, **style)


def traffic(axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    _series(axis, rows, colours, lambda row: row["fabric_bytes"] / 1e9, "bytes on all links (GB)")
    axis.set_title("traffic of the fabric", fontsize=9)


def link_rates(row: dict[str, Any], name: str) -> list[float]:
    """Returns the rate of each link of a class, in its order, in bits per second."""
    count = row["links"][name]["links"]
    if not name.startswith("host-"):
        return [parse_rate(option(row, "inner_rate")) or row["rate"]] * count
    rates = [row["rate"]] * count
    if served := row.get("aggregators"):
        # Their hosts are each behind equally many of the others, in each plane.
        hosts = row["hosts"] + served["count"]
        for i in range(served["count"]):
            last = (i + 1) * hosts // served["count"] - 1
            rates[last::hosts] = [served["rate"]] * len(rates[last::hosts])
    return rates


def heat_map(axis: Any, row: dict[str, Any]) -> None:
    """Draws the load of each link, a line for each class and direction; ports from left to right."""
    names = [name for name, links in row["links"].items() if links.get("each")]
    seconds = row["time"] / 1e9
    width = max(len(row["links"][name]["each"]) for name in names)
    grid = []
    for name in names:
        each = row["links"][name]["each"]
        use = [
            100 * sent / (rate / 8 * seconds)
            for sent, rate in zip(each, link_rates(row, name), strict=True)
        ]
        # Classes with fewer links have wider cells.
        grid.append([use[i * len(use) // width] for i in range(width)])
    image = axis.imshow(
        grid, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=100
    )
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xticks([])
    axis.set_title(f"{algorithm_text(row)}, {row['hosts']} hosts: use of each link (%)", fontsize=9)
    axis.figure.colorbar(image, ax=axis, pad=0.01)


def over_time(axis: Any, row: dict[str, Any]) -> None:
    """Draws the use of each class of links over time, the mean over its links."""
    timeline = row["timeline"]
    longest = max(len(bins) for bins in timeline["bytes"].values())
    join = -(-longest // 60)  # a train is booked as a whole, so narrow bins would exceed 100 %
    width = timeline["bin"] * join
    for name, bins in timeline["bytes"].items():
        capacity = sum(link_rates(row, name)) / 8 * width / 1e9
        sums = [sum(bins[i : i + join]) for i in range(0, len(bins), join)]
        axis.step(
            [(i + 0.5) * width / 1e6 for i in range(len(sums))],
            [100 * count / capacity for count in sums],
            where="mid",
            linewidth=1,
            label=name,
        )
    axis.set_xlabel("ms", fontsize=8)
    axis.set_ylabel("mean use (%)", fontsize=8)
    axis.legend(fontsize=6)
    axis.grid(True, alpha=0.3)
