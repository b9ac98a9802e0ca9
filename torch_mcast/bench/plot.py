"""A plot of the result: time against size per operation, or bars where there is one size; the bound
is drawn in. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_mcast.bench.formulas import OPS
from torch_mcast.lab.units import format_size


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in document["rows"] if row["supported"]]
    ops = list(dict.fromkeys(row["op"] for row in rows if row["size"]))
    if not ops:
        return
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    colours = {name: f"C{index}" for index, name in enumerate(backends)}
    columns = min(3, len(ops))
    lines = -(-len(ops) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(4.6 * columns, 3.6 * lines), squeeze=False, layout="constrained"
    )
    for axis, op in zip(axes.flat, ops, strict=False):
        mine = [row for row in rows if row["op"] == op]
        if len({row["size"] for row in mine}) > 1:
            _curves(axis, mine, colours)
        else:
            _bars(axis, mine, colours)
        axis.set_title(OPS[op].title, fontsize=10)
        axis.grid(True, axis="y", alpha=0.3)
    for axis in axes.flat[len(ops) :]:
        axis.axis("off")
    handles = [
        pyplot.Line2D([], [], color=colours[name], marker="o", label=name) for name in backends
    ]
    if any(row["bound_s"] for row in rows):
        handles.append(
            pyplot.Line2D([], [], color="black", linestyle="--", label="bound: receiving NIC")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    figure.suptitle(document["title"], fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _curves(axis: Any, rows: list[dict[str, Any]], colours: dict[str, str]) -> None:
    """Log-log medians with the range from min to p90."""
    for name, colour in colours.items():
        mine = sorted((row for row in rows if row["backend"] == name), key=lambda row: row["size"])
        if not mine:
            continue
        sizes = [row["size"] for row in mine]
        axis.plot(
            sizes, [row["median_s"] * 1e3 for row in mine], color=colour, marker="o", markersize=3
        )
        axis.fill_between(
            sizes,
            [row["min_s"] * 1e3 for row in mine],
            [row["p90_s"] * 1e3 for row in mine],
            color=colour,
            alpha=0.15,
        )
    bounds = sorted({(row["size"], row["bound_s"]) for row in rows if row["bound_s"]})
    if bounds:
        axis.plot(
            [size for size, _ in bounds],
            [bound * 1e3 for _, bound in bounds],
            color="black",
            linestyle="--",
            linewidth=1,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    sizes = sorted({row["size"] for row in rows})
    step = -(-len(sizes) // 6)
    wanted = {row["size"]: row["wanted"] for row in rows}
    axis.set_xticks(
        sizes[::step], [format_size(wanted[size]) for size in sizes[::step]], fontsize=8
    )
    axis.minorticks_off()
    axis.set_ylabel("slowest rank, median (ms)", fontsize=8)


def _bars(axis: Any, rows: list[dict[str, Any]], colours: dict[str, str]) -> None:
    names = [row["backend"] for row in rows]
    middles = [row["median_s"] * 1e3 for row in rows]
    below = [middle - row["min_s"] * 1e3 for middle, row in zip(middles, rows, strict=True)]
    above = [
        max(0.0, row["p90_s"] * 1e3 - middle) for middle, row in zip(middles, rows, strict=True)
    ]
    bars = axis.bar(names, middles, color=[colours[name] for name in names], width=0.6)
    axis.errorbar(names, middles, yerr=[below, above], fmt="none", ecolor="black", elinewidth=1)
    axis.bar_label(bars, fmt="%.3g", fontsize=8, padding=2)
    bound = rows[0]["bound_s"]
    if bound:
        axis.axhline(bound * 1e3, color="black", linestyle="--", linewidth=1)
    axis.set_ylabel(f"ms, {format_size(rows[0]['wanted'])}", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    axis.margins(y=0.15)
