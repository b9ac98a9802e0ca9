"""Plots of simulated results: time and traffic against hosts, traffic over time, and a map of the load
of each link. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_mcast.simulate.tables import bound_s, title


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes a PNG; nothing if there is no result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in document["rows"] if "error" not in row]
    if not rows:
        return
    largest = max(row["hosts"] for row in rows)
    mapped = [row for row in rows if row["hosts"] == largest]
    figure, axes = pyplot.subplots(
        1 + len(mapped),
        2,
        figsize=(11, 3.6 + 2.4 * len(mapped)),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": [3.2] + [2] * len(mapped)},
    )
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(r["algorithm"] for r in rows))}
    times(axes[0][0], rows, colours)
    traffic(axes[0][1], rows, colours)
    for line, row in zip(axes[1:], mapped, strict=True):
        heat_map(line[0], row)
        over_time(line[1], row)
    figure.suptitle(f"{title(rows[0])}\n{document['caption']}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _series(
    axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str], of: Any, name: str
) -> None:
    """A curve for each algorithm, or bars where there is one number of hosts."""
    hosts = sorted({row["hosts"] for row in rows})
    if len(hosts) == 1:
        bars = axis.bar(
            [row["algorithm"] for row in rows],
            [of(row) for row in rows],
            color=[colours[row["algorithm"]] for row in rows],
            width=0.6,
        )
        axis.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
        axis.tick_params(axis="x", labelsize=8)
        axis.margins(y=0.15)
    else:
        for algorithm, colour in colours.items():
            mine = sorted(
                (r for r in rows if r["algorithm"] == algorithm), key=lambda r: r["hosts"]
            )
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
    """Time against hosts; the bound is drawn in."""
    _series(axis, rows, colours, lambda row: row["time"] / 1e6, "time (ms)")
    bounds = sorted({(row["hosts"], bound_s(row) * 1e3) for row in rows})
    if len(bounds) == 1:
        axis.axhline(bounds[0][1], color="black", linestyle="--", linewidth=1)
    else:
        axis.plot(*zip(*bounds, strict=True), color="black", linestyle="--", linewidth=1)
    axis.set_title("time, and the bound (dashed)", fontsize=9)


def traffic(axis: Any, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    _series(axis, rows, colours, lambda row: row["fabric_bytes"] / 1e9, "bytes on all links (GB)")
    axis.set_title("traffic of the fabric", fontsize=9)


def heat_map(axis: Any, row: dict[str, Any]) -> None:
    """The load of each link, a line for each class and direction; ports from left to right."""
    names = [name for name, links in row["links"].items() if links.get("each")]
    capacity = row["rate"] / 8 * row["time"] / 1e9
    width = max(len(row["links"][name]["each"]) for name in names)
    grid = []
    for name in names:
        each = row["links"][name]["each"]
        # Classes with fewer links have wider cells.
        grid.append([100 * each[i * len(each) // width] / capacity for i in range(width)])
    image = axis.imshow(
        grid, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=100
    )
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xticks([])
    axis.set_title(f"{row['algorithm']}, {row['hosts']} hosts: use of each link (%)", fontsize=9)
    axis.figure.colorbar(image, ax=axis, pad=0.01)


def over_time(axis: Any, row: dict[str, Any]) -> None:
    """Use of each class of links over time, the mean over its links."""
    timeline = row["timeline"]
    longest = max(len(bins) for bins in timeline["bytes"].values())
    join = -(-longest // 60)  # a train is booked as a whole, so narrow bins would go beyond 100 %
    width = timeline["bin"] * join
    for name, bins in timeline["bytes"].items():
        capacity = row["rate"] / 8 * width / 1e9 * row["links"][name]["links"]
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
