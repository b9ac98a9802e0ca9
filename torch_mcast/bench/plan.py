"""The plan of a measurement: plain data that is sent to the ranks."""

from __future__ import annotations

import random
from dataclasses import dataclass

from torch_mcast.bench.formulas import OPS
from torch_mcast.lab.units import parse_size

SIZELESS = ("barrier",)
STEPS = ("fsdp2", "fsdp2_async")
EXTERNAL = ("openmpi", "openmpi_tuned", "uftp", "blaster")


@dataclass(frozen=True)
class Plan:
    """ops x sizes (bytes) x backends.

    backends: names of torch.distributed, "mcast:..." = mcast with settings (variant_settings()),
        and external programs (EXTERNAL).
    repetitions: at most; fewer if one case would take longer than case_s seconds, but at least 3.
    inner: operations per timing; None = as many as take 50 ms, at most 1000.
    seed: of the order of backends in each repetition. check: compare results with the right ones.
    """

    ops: tuple[str, ...]
    sizes: tuple[int, ...]
    backends: tuple[str, ...]
    repetitions: int = 9
    warmup: int = 2
    inner: int | None = None
    case_s: float = 20.0
    seed: int = 1
    check: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in OPS]
        if unknown:
            raise ValueError(f"unknown operations {unknown}; there are {', '.join(OPS)}")
        if self.repetitions < 1 or self.warmup < 1:
            raise ValueError("a run needs at least one repetition and one warm-up")
        if len(set(self.backends)) != len(self.backends) or not self.backends:
            raise ValueError(f"backends {list(self.backends)}: name each once")
        for name in self.torch_backends:
            if ":" in name:
                variant_settings(name)

    @property
    def cases(self) -> list[tuple[str, int]]:
        """Returns (op, size) in order; operations without a size appear once, with 0."""
        return [(op, size) for op in self.ops for size in ((0,) if op in SIZELESS else self.sizes)]

    @property
    def torch_backends(self) -> list[str]:
        return [name for name in self.backends if name not in EXTERNAL]

    def order(self, op: str, size: int, repetition: int) -> list[int]:
        """Returns the positions of the backends in this repetition: the same shuffle on every rank."""
        positions = list(range(len(self.backends)))
        random.Random(f"{self.seed} {op} {size} {repetition}").shuffle(positions)
        return positions


def variant_settings(spec: str, aggregators: str | None = None) -> dict[str, str]:
    """Returns the settings that "mcast:ring" (an algorithm), "mcast:sealed" (a security mode, the
    secret through the store) or "mcast:fold=turn:aggregators=2" stand for.

    aggregators=N stands for the first N of `aggregators`, a comma-separated list of addresses, so
    that one run compares several N; None means that the list is not known here.
    """
    name, _, variant = spec.partition(":")
    if name != "mcast":
        raise ValueError(f"{spec}: only mcast has variants")
    settings = {}
    for part in variant.split(":"):
        key, equals, value = part.partition("=")
        if not part or (equals and not (key and value)):
            raise ValueError(
                f"{spec}: expected an algorithm, a security mode or NAME=VALUE[:NAME=VALUE...] after mcast:"
            )
        if equals:
            settings[key] = value
        elif part in ("auth", "sealed"):
            settings |= {"security": part, "trust_store": "1"}
        else:
            settings["algorithm"] = part
    if settings.get("aggregators", "").isdecimal():
        count = int(settings["aggregators"])
        known = [] if aggregators is None else list(filter(None, aggregators.split(",")))
        if aggregators is not None and count > len(known):
            raise ValueError(f"{spec}: there are {len(known)} aggregators (lab: --aggregators)")
        settings["aggregators"] = ",".join(known[:count])
    return settings


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parses "4k,64k,1M" or a sweep: "4k:64M" (times 4) or "4k:64M:2" (times 2)."""
    sizes: list[int] = []
    for part in text.split(","):
        if ":" not in part:
            sizes.append(parse_size(part))
            continue
        first, last, *step = part.split(":")
        size, end, factor = parse_size(first), parse_size(last), int(step[0]) if step else 4
        if size < 1 or factor < 2:
            raise ValueError(
                f"sweep {part!r}: must start above 0 and grow by a factor of 2 or more"
            )
        while size <= end:
            sizes.append(size)
            size *= factor
    return tuple(dict.fromkeys(sizes))
