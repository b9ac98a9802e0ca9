"""Speeds that the estimates for GPUs use, each with the measurement that it comes from or "assumed".

tests/python/test_gpu_estimate.py computes the measured ones again from the tables of the pages named here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GB = 1e9


@dataclass(frozen=True)
class Constant:
    """value: in `unit`; source: begins with "measured", "assumed" or "given"."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str

    @property
    def per_second(self) -> float:
        """Bytes per second; a share stays as it is."""
        return self.value * GB if self.unit == "GB/s" else self.value


_HARDWARE = "measured: docs/device-tensors.md, On hardware"
_H200 = "measured: docs/gpu-estimates.md, Measurements"


def defaults() -> dict[str, Constant]:
    rows = (
        Constant(
            "link_share",
            0.95,
            "",
            "payload that a host's NICs carry, as a share of their line rate",
            "assumed; headers of UDP at MTU 1500 leave 0.951",
        ),
        Constant(
            "lane",
            2.7,
            "GB/s",
            "sent plus received by one lane of the engine; n channels are assumed to carry n times as much",
            f"{_HARDWARE} (all_gather 64 MiB, loopback, CPU)",
        ),
        Constant(
            "pcie",
            47.0,
            "GB/s",
            "host memory to GPU and back, per direction, both at once; each GPU is assumed to have its own",
            f"{_HARDWARE} (all_gather 64 MiB, copies of both ranks of the GPU)",
        ),
        Constant("nvlink", 300.0, "GB/s", "GPU to GPU, per direction and GPU", "assumed"),
        Constant(
            "device_memory",
            1039.0,
            "GB/s",
            "copies inside a GPU, and folds, which are assumed to be as fast",
            f"{_H200} (copy by CUDA IPC)",
        ),
        Constant(
            "host_gather",
            6.5,
            "GB/s",
            "output of all_gather and broadcast by route host; assumed for any number of GPUs",
            f"{_H200} (all_gather 256 MiB)",
        ),
        Constant(
            "host_reduce_scatter",
            4.3,
            "GB/s",
            "input of reduce_scatter by route host; assumed for any number of GPUs",
            f"{_HARDWARE} (reduce_scatter 64 MiB, shared memory, CUDA)",
        ),
        Constant(
            "host_all_reduce",
            2.84,
            "GB/s",
            "input of all_reduce by route host; assumed for any number of GPUs",
            f"{_HARDWARE} (all_reduce 64 MiB, shared memory, CUDA)",
        ),
    )
    return {row.name: row for row in rows}


def with_value(constant: Constant, value: Any, source: str) -> Constant:
    if isinstance(value, Mapping):
        source = f"{source}: {value['source']}" if value.get("source") else source
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{source}: {constant.name} is {value!r}, not a number")
    if not math.isfinite(value) or value <= 0 or (not constant.unit and value > 1):
        limit = "positive" if constant.unit else "in (0, 1]"
        raise ValueError(f"{source}: {constant.name} is {value:g}; it must be {limit}")
    return replace(constant, value=float(value), source=source)


def _known(name: str, where: str, table: Mapping[str, Constant]) -> Constant:
    if name not in table:
        raise ValueError(f"{where}: no constant {name!r}; known are {', '.join(table)}")
    return table[name]


def from_bench(document: Mapping[str, Any]) -> dict[str, float]:
    """Constants in GB/s out of a document of `torch-mcast bench --device cuda --json`: the largest
    size of each operation. Ranks in shared memory give route host; ranks on loopback give a lane."""
    world: int = document["world"]
    largest: dict[str, Any] = {}
    for row in document["rows"]:
        if row.get("bytes", 0) > largest.get(row["op"], {"bytes": 0})["bytes"]:
            largest[row["op"]] = row

    def speed(op: str, column: str, size: float) -> float | None:
        times = largest.get(op, {}).get(column)
        return size * largest[op]["bytes"] / times[1] / 1e6 if isinstance(times, list) else None

    found: dict[str, float | None] = {}
    if document.get("gpus"):
        each = world / document["gpus"]  # ranks that share a GPU and its PCIe link
        found["pcie"] = speed("all_gather", "copies", each * max(1, world - 1))
    if document["path"] == "shared memory":
        found["host_gather"] = speed("all_gather", "device", world)
        found["host_reduce_scatter"] = speed("reduce_scatter", "device", world)
        found["host_all_reduce"] = speed("all_reduce", "device", 1)
    elif str(document.get("transport", "")).startswith("udp lo "):
        found["lane"] = speed("all_gather", "cpu", world)
    return {name: value for name, value in found.items() if value}


def _from_file(path: Path, table: dict[str, Constant]) -> None:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"--constants {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--constants {path} is not JSON: {error}") from error
    source = f"given: {path}"
    if not isinstance(document, dict):
        raise ValueError(f'--constants {path}: an object is needed, such as {{"lane": 2.7}}')
    if "rows" in document and "world" in document:
        try:
            found: Mapping[str, Any] = from_bench(document)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"--constants {path}: not a document of bench: {error!r}") from error
        source += f" (torch-mcast bench --device {document.get('device')})"
        if not found:
            raise ValueError(f"--constants {path}: this document of bench gives no constant")
        document = found
    for name, value in document.items():
        table[name] = with_value(_known(name, f"--constants {path}", table), value, source)


def gather(file: Path | None, settings: Iterable[str]) -> dict[str, Constant]:
    """The constants with those of a file and then NAME=VALUE in place of the defaults."""
    table = defaults()
    if file is not None:
        _from_file(file, table)
    for setting in settings:
        name, equals, text = setting.partition("=")
        constant = _known(name, "--set", table)
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"--set {setting}: write NAME=NUMBER, such as {name}=2.7") from None
        if not equals:
            raise ValueError(f"--set {setting}: write NAME=NUMBER, such as {name}=2.7")
        table[name] = with_value(constant, value, "given: --set")
    return table
