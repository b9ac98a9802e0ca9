"""A picture of one training step in text: when each lane of torch-mcast moved data, and when both did.

Each column of the picture is a part of the step. The darker it is, the longer the lane was busy in it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Spans = list[tuple[int, int]]

SHADES, ASCII_SHADES = "░▒▓█", ".:+#"
LANES = ("multicast", "reduce")
_LABEL = 10  # columns of the names on the left
_LEAST = 20  # columns of the picture


@dataclass(frozen=True)
class Step:
    """One training step: ns of time.monotonic_ns(), as in torch_mcast.trace()."""

    phases: tuple[tuple[str, int], ...]  # (name, start), in order
    end: int

    @property
    def start(self) -> int:
        return self.phases[0][1]

    @property
    def duration(self) -> int:
        return self.end - self.start


def merged(spans: Iterable[tuple[int, int]]) -> Spans:
    """Returns the union of the spans, in order and without overlaps."""
    result: Spans = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def common(a: Spans, b: Spans) -> Spans:
    """Returns the intersection of two lists, each without overlaps."""
    pairs = ((max(s, t), min(e, f)) for s, e in a for t, f in b)
    return merged((start, end) for start, end in pairs if start < end)


def total(spans: Spans) -> int:
    return sum(end - start for start, end in spans)


def busy(trace: list[dict], start: int, end: int) -> dict[str, Spans]:
    """Returns, by lane, when data of its operations moved within [start, end]."""
    lanes: dict[str, Spans] = {}
    for lane in LANES:
        spans = (
            (op["first_byte"], op["last_byte"])
            for op in trace
            if op["lane"] == lane and op["first_byte"] is not None and op["last_byte"] is not None
        )
        lanes[lane] = common(merged(spans), [(start, end)])
    return lanes


def covered(trace: list[dict], steps: list[Step]) -> list[Step]:
    """Returns the steps that the trace covers completely; it keeps only the last operations."""
    oldest = min((op["posted"] for op in trace), default=None)
    return [step for step in steps if oldest is not None and oldest <= step.phases[-1][1]]


def bar(spans: Spans, start: int, end: int, columns: int, shades: str) -> str:
    """Draws a character per column, by the share of the column that lies in `spans`; a blank for none."""
    text = ""
    for column in range(columns):
        left = start + (end - start) * column // columns
        right = start + (end - start) * (column + 1) // columns
        inside = total(common(spans, [(left, right)]))
        level = -(-inside * len(shades) // max(1, right - left))
        text += shades[level - 1] if level else " "
    return text


def headings(step: Step, columns: int) -> str:
    """Writes the name of each phase where it begins, as far as it fits."""
    text = ""
    starts = [start for _, start in step.phases] + [step.end]
    for (name, start), following in zip(step.phases, starts[1:], strict=True):
        left = (start - step.start) * columns // max(1, step.duration)
        right = (following - step.start) * columns // max(1, step.duration)
        text = text.ljust(left) + f"|{name}"[: right - left]
    return text.ljust(columns)


def picture(step: Step, trace: list[dict], width: int, ascii_only: bool = False) -> list[str]:
    """Returns lines of at most `width` characters (at least 30): phases, one line per lane, both, time."""
    columns = max(_LEAST, width - _LABEL)
    shades = ASCII_SHADES if ascii_only else SHADES
    lanes = busy(trace, step.start, step.end)
    rows = {**lanes, "both": common(*lanes.values())}
    lines = [" " * _LABEL + headings(step, columns)]
    for name, spans in rows.items():
        lines.append(name.ljust(_LABEL) + bar(spans, step.start, step.end, columns, shades))
    scale = f"{step.duration / 1e6:.0f} ms"
    lines.append(" " * _LABEL + "0" + scale.rjust(columns - 1))
    return [line.rstrip() for line in lines]


def shares(trace: list[dict], steps: list[Step]) -> dict[str, float]:
    """Returns the share of the time of these steps in which each lane, and "both", moved data."""
    spent = dict.fromkeys((*LANES, "both"), 0)
    for step in steps:
        lanes = busy(trace, step.start, step.end)
        for name, spans in {**lanes, "both": common(*lanes.values())}.items():
            spent[name] += total(spans)
    whole = sum(step.duration for step in steps)
    return {name: time / whole if whole else 0.0 for name, time in spent.items()}
