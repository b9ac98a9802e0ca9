"""Plots the result by size: in the upper row how near each operation comes to the bound (or its
time, if there is no bound), in the lower row the bytes that a host sends. Each backend has its own
marker shape, and markers are side by side, so that equal values do not hide each other. Needs
matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_mcast.bench import rows
from torch_mcast.bench.formulas import OPS
from torch_mcast.lab.units import format_size

_MARKERS = "osD^vPX*"
_WIDTH = 0.09  # between the markers of two backends, as a fraction of the distance of two sizes

Row = dict[str, Any]
Figure = Callable[[Row], float | None]


def _share(row: Row) -> float | None:
    return row["bound_percent"]


def _milliseconds(row: Row) -> float | None:
    return row["median_s"] * 1e3


def _sent(row: Row) -> float | None:
    sent, _ = rows.host_bytes(row)
    return sent / 1e6 if sent else None


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes a PNG; writes no file if no operation has a size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [row for row in document["rows"] if row["supported"]]
    ops = list(dict.fromkeys(row["op"] for row in found if row["size"]))
    if not ops:
        return
    backends = list(dict.fromkeys(row["backend"] for row in found))
    bound = any(row["bound_percent"] for row in found)
    parts: list[tuple[Figure, str]] = [
        (_share, "% of the bound") if bound else (_milliseconds, "median of the slowest rank, ms")
    ]
    if any(_sent(row) for row in found):
        parts.append((_sent, "sent per host, MB"))
    figure, axes = pyplot.subplots(
        len(parts), len(ops), figsize=(1 + 3.1 * len(ops), 1 + 2.7 * len(parts)), squeeze=False,
        sharex="col", sharey="row", layout="constrained",
    )  # fmt: skip
    for line, (value, label) in enumerate(parts):
        for axis, op in zip(axes[line], ops, strict=True):
            mine = [row for row in found if row["op"] == op]
            _panel(axis, mine, backends, value, spread=value is not _sent)
            if value is _share:
                axis.axhline(100, color="black", linestyle="--", linewidth=1)
                # Only single timings of small operations lie beyond it, if any.
                axis.set_ylim(0, 1.15 * max(100, *(value(row) or 0 for row in found)))
            else:
                axis.set_yscale("log")
            if line == 0:
                axis.set_title(OPS[op].title, fontsize=9)
        axes[line][0].set_ylabel(label, fontsize=9)
    handles = [
        pyplot.Line2D(
            [],
            [],
            color=f"C{i}",
            marker=_MARKERS[i % len(_MARKERS)],
            markerfacecolor="none",
            label=name,
        )
        for i, name in enumerate(backends)
    ]
    if bound:
        label = "bound: what the receiving NIC can take"
        handles.append(pyplot.Line2D([], [], color="black", linestyle="--", label=label))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), fontsize=9
    )
    figure.suptitle(document["title"], fontsize=10, wrap=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, found: list[Row], backends: list[str], value: Figure, spread: bool) -> None:
    """Draws one panel. Sizes are equally spaced. Lines go from the shortest time to the 90th percentile."""
    sizes = sorted({row["size"] for row in found})
    wanted = {row["size"]: row["wanted"] for row in found}
    for index, name in enumerate(backends):
        points = []
        for row in sorted(found, key=lambda row: row["size"]):
            shown = value(row) if row["backend"] == name else None
            if shown is None:
                continue
            place = sizes.index(row["size"]) + _WIDTH * (index - (len(backends) - 1) / 2)
            points.append((place, shown))
            if spread:
                low, high = (
                    value({**row, "median_s": time, "bound_percent": _at(row, time)})
                    for time in (row["p90_s"], row["min_s"])
                )
                axis.plot([place] * 2, [low, high], color=f"C{index}", linewidth=1, alpha=0.6)
        if points:
            axis.plot(
                *zip(*points, strict=True), color=f"C{index}", marker=_MARKERS[index % len(_MARKERS)],
                markersize=4.5, markerfacecolor="none", linewidth=0.8 if len(points) > 1 else 0,
            )  # fmt: skip
    axis.set_xticks(range(len(sizes)), [format_size(wanted[size]) for size in sizes], fontsize=8)
    axis.set_xlim(-0.6, len(sizes) - 0.4)
    axis.tick_params(axis="x", rotation=30)
    axis.grid(True, axis="y", alpha=0.3)


def _at(row: Row, time: float) -> float | None:
    return 100 * row["bound_s"] / time if row["bound_s"] else None
