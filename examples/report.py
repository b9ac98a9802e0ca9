"""Report that train_fsdp.py prints at the end: bytes that each rank sent, compared with other backends; which
backend served which calls; and a picture of one step. All numbers are of this run, from torch_mcast.stats()
and trace()."""

from collections.abc import Callable
from dataclasses import astuple, dataclass

import timeline
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torch_mcast.bench.formulas import gloo_send_bytes, ring_send_bytes

# Name of a collective in stats(): (name in the formulas, their S computed from output bytes and ranks).
_COLLECTIVES: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "broadcast": ("broadcast", lambda size, world: size),
    "all_gather": ("all_gather", lambda size, world: size),
    "all_gather_into_tensor": ("all_gather", lambda size, world: size),
    "reduce_scatter": ("reduce_scatter", lambda size, world: size * world),
    "reduce_scatter_tensor": ("reduce_scatter", lambda size, world: size * world),
    "all_reduce": ("all_reduce", lambda size, world: size),
}
_WIDTH = 80
_COLOURS = {"multicast": "green", "reduce": "blue", "both": "magenta"}


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sent, including headers and repairs, and bytes that the same calls take elsewhere."""

    gathers: int  # on the multicast lane: all-gathers and broadcasts
    reductions: int  # on the reduce lane
    repairs: int  # payload; included in both
    ring_gathers: float  # all-gathers and broadcasts by a ring
    ring: float  # all operations by a ring
    gloo: float

    @property
    def together(self) -> int:
        return self.gathers + self.reductions


def sent(stats: dict) -> Sent:
    """Computes the bytes of one rank from its torch_mcast.stats()."""
    both, reduce = stats["counters"], stats["reduce_counters"]
    everything, reductions = (
        c["datagram_bytes_sent"] + c["frame_bytes_sent"] for c in (both, reduce)
    )
    ring = ring_gathers = gloo = 0.0
    for name, size in stats["bytes"].items():
        if name not in _COLLECTIVES:
            continue
        op, whole = _COLLECTIVES[name]
        by_ring = ring_send_bytes(op, whole(size, stats["size"]), stats["size"])
        ring += by_ring
        ring_gathers += by_ring if op in ("broadcast", "all_gather") else 0
        gloo += gloo_send_bytes(op, whole(size, stats["size"]), stats["size"])
    repairs = both["repair_bytes_sent"]
    return Sent(everything - reductions, reductions, repairs, ring_gathers, ring, gloo)


def together(rows: list[Sent]) -> Sent:
    return Sent(*map(sum, zip(*map(astuple, rows), strict=True)))


def comparison(row: Sent) -> list[str]:
    """Says how many times as many bytes a ring and Gloo would have sent."""
    lines = []
    if row.gathers and row.ring_gathers:
        times = row.ring_gathers / row.gathers
        lines.append(f"All-gathers alone: a ring would have sent {times:.2f} times as much.")
    if row.together and row.ring:
        ring, gloo = row.ring / row.together, row.gloo / row.together
        lines.append(f"In all: a ring {ring:.2f} times as much, Gloo {gloo:.2f} times.")
    return lines


def _sent_table(stats: list[dict], console: Console) -> None:
    rows = {str(row["rank"]): sent(row) for row in stats}
    all_ranks = together(list(rows.values()))
    table = Table(
        title="sent, MB", caption="ring and Gloo: computed for the same calls, no headers"
    )
    for column in ("rank", "all-gathers", "reductions", "together", "a ring", "Gloo", "repairs"):
        table.add_column(column, justify="right")
    for name, row in {**rows, "all": all_ranks}.items():
        if name == "all":
            table.add_section()
        numbers = (row.gathers, row.reductions, row.together, row.ring, row.gloo, row.repairs)
        table.add_row(name, *(f"{number / 1e6:,.1f}" for number in numbers))
    console.print(table)
    for line in comparison(all_ranks):
        console.print(line, highlight=False)


def _calls_table(stats: dict, console: Console) -> None:
    table = Table(title=f"calls of rank {stats['rank']}")
    for column in ("operation", "engine", "fallback"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for name, count in stats["calls"].items():
        table.add_row(name, str(count["engine"]), str(count["fallback"]))
    console.print(table)


def _timeline(rank: int, trace: list[dict], steps: list[timeline.Step], console: Console) -> None:
    steps = timeline.covered(trace, steps)
    if not steps:
        return  # MCAST_TRACE=0
    step = max(steps, key=lambda s: timeline.shares(trace, [s])["both"])
    ascii_only = not console.encoding.lower().startswith("utf")
    lines = [
        "",
        f"When the lanes of rank {rank} moved data, in the step in which both did most:",
        "",
        *timeline.picture(step, trace, min(_WIDTH, console.width), ascii_only),
        "",
        *shares_table({"this step": [step], f"all {len(steps)} steps": steps}, trace),
    ]
    for line in lines:
        colour = next((c for name, c in _COLOURS.items() if line.startswith(name)), "")
        console.print(Text(line, style=colour), no_wrap=True, crop=False)


def shares_table(rows: dict[str, list[timeline.Step]], trace: list[dict]) -> list[str]:
    """Formats, per row, the share of the time of its steps in which each lane, and both, were busy."""
    lines = [f"{'busy, of the time of':<22}{'multicast':>10}{'reduce':>10}{'both at once':>15}"]
    for name, steps in rows.items():
        share = timeline.shares(trace, steps)
        lines.append(
            f"{name:<22}{share['multicast']:>10.1%}{share['reduce']:>10.1%}{share['both']:>15.1%}"
        )
    return lines


def report(
    stats: list[dict], trace: list[dict], steps: list[timeline.Step], console: Console
) -> None:
    """Prints the report. `stats` are those of all ranks; `trace` and `steps` those of the first rank."""
    first = stats[0]
    if first["path"] == "shared memory":
        c = first["counters"]
        console.print(
            f"all ranks are on one host: rank 0 copied {c['shm_slot_bytes']:,} bytes into shared memory and "
            f"read {c['shm_direct_bytes']:,} from the others' memory; nothing crossed a network. "
            "MCAST_SHARED_MEMORY=off shows the same training over multicast on loopback."
        )
        return
    console.print(f"path: {first['path']} ({first['reason']})", highlight=False)
    _sent_table(stats, console)
    _calls_table(first, console)
    _timeline(first["rank"], trace, steps, console)
