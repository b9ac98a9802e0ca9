"""Counters of all groups of this process for a collector, in Prometheus' text format: as a string,
or in a file that is replaced every ten seconds. No port is opened: the node's own exporter reads
the file."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch_mcast._load import extension

INTERVAL = 10.0  # seconds

# Counters of the process: key of device_stats(), with Prometheus' suffix; type; help.
_PINNED = [
    ("pinned_bytes", "gauge", "Pinned memory that collectives on device tensors hold."),
    ("pinned_peak", "gauge", "Largest amount of pinned memory that they have held at once."),
    (
        "pinned_waits_total",
        "counter",
        "Collectives that waited for earlier ones to release pinned memory.",
    ),
]

_writers: dict[tuple[int, str], threading.Event] = {}
_lock = threading.Lock()


def _label(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _line(name: str, labels: dict[str, object], value: int) -> str:
    inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"


def _family(name: str, kind: str, text: str, lines: Iterable[str]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]


def _render(groups: list[dict[str, Any]]) -> str:
    labels = [{"group": g["group"], "rank": g["rank"]} for g in groups]
    pairs = list(zip(labels, groups, strict=True))
    out = _family(
        "torch_mcast_group", "gauge", "Groups of this process: size, path and security mode.",
        [
            _line("torch_mcast_group",
                  own | {"size": g["size"], "path": g["path"], "security": g["security"]["mode"]}, 1)
            for own, g in pairs
        ],
    )  # fmt: skip
    out += _family(
        "torch_mcast_group_failed", "gauge", "1: the group cannot be used any more.",
        [_line("torch_mcast_group_failed", own, int(bool(g["failure"]))) for own, g in pairs],
    )  # fmt: skip
    for counter, text in extension().counters().items():
        name = f"torch_mcast_{counter}_total"
        out += _family(
            name,
            "counter",
            f"{text}.",
            [_line(name, own, g["counters"][counter]) for own, g in pairs],
        )
    pinned = extension().device_stats()
    for key, kind, text in _PINNED:
        name = f"torch_mcast_device_{key}"
        out += _family(name, kind, text, [f"{name} {pinned[key.removesuffix('_total')]}"])
    name = "torch_mcast_refused_total"
    out += _family(
        name, "counter", "Datagrams and connections that the lanes of a group have refused, by cause.",
        [
            _line(name, own | {"cause": cause}, count)
            for own, g in pairs
            for cause, count in g["security"]["causes"].items()
        ],
    )  # fmt: skip
    name = "torch_mcast_refused_by_source_total"
    out += _family(
        name, "counter", "Refusals by source and cause, of the ten sources with most, if these are watched.",
        [
            _line(name, own | {"source": source["address"], "cause": cause}, count)
            for own, g in pairs
            for source in g["security"]["sources"]
            for cause, count in source["causes"].items()
            if count
        ],
    )  # fmt: skip
    return "\n".join(out) + "\n"


def metrics() -> str:
    """Returns the counters of every group of this process, in Prometheus' text format."""
    return _render(extension().groups())


def write(path: str) -> None:
    """Replaces the file by rename, so that a reader never sees a partial one. If others can write
    to the folder, they may have put a file under the new name, such as a link to a file of this
    user, so it is created exclusively."""
    target = Path(path.replace("%p", str(os.getpid())))
    beside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(8)}")
    text = metrics()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _keep_writing(path: str, stop: threading.Event) -> None:
    while not stop.wait(INTERVAL):
        try:
            write(path)
        except OSError:
            continue  # the first write has reported the error; a full disk may have room later


def write_every_interval(path: str) -> None:
    """Writes the file now, and then every ten seconds until the process ends; the counters of the
    last interval are not written. Raises OSError if the first write fails."""
    key = (os.getpid(), path)
    with _lock:
        if key in _writers:
            return
        stop = _writers[key] = threading.Event()
    write(path)
    threading.Thread(
        target=_keep_writing, args=(path, stop), name="mcast-metrics", daemon=True
    ).start()
    atexit.register(stop.set)
