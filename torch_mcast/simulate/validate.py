"""`torch-mcast simulate validate`: runs the same operations in a lab and in the simulator.

A case counts if the links limited the lab: by its own figures it used less than 80 % of its CPUs and
reached 90 % of the bound, not counting bytes that pass its shapers at full speed. For these cases the times
must agree within 10 % and the bytes per host within 3 %. Other cases are shown but do not count, since the
simulator does not model the CPU costs of hosts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torch_mcast.bench.report import bytes_text, time_text
from torch_mcast.lab.units import parse_size
from torch_mcast.simulate import helper, outputs
from torch_mcast.simulate.progress import Bar, compute

OPS = ("broadcast", "all_gather", "reduce_scatter", "all_reduce")
TIME, BYTES = 0.10, 0.03  # how far the two may be apart
_CPU, _BOUND = 0.8, 0.9  # of a case that counts: most of the CPUs, least of the bound
_TOTAL = 4e9  # bits per second of all hosts together that two cores can forward


@dataclass(frozen=True)
class Case:
    """One operation, in the lab (seconds, bytes per host and operation) and simulated."""

    hosts: int
    op: str
    size: int
    lab_s: float
    lab_sent: float
    lab_received: float
    counts: bool
    simulated_s: float
    simulated_sent: float
    simulated_received: float

    @property
    def time(self) -> float:
        """Returns simulated over measured."""
        return self.simulated_s / self.lab_s

    @property
    def sent(self) -> float:
        return self.simulated_sent / self.lab_sent

    @property
    def received(self) -> float:
        return self.simulated_received / self.lab_received

    @property
    def off(self) -> bool:
        """Returns whether the case counts and the two do not agree."""
        apart = abs(self.time - 1) > TIME or max(abs(self.sent - 1), abs(self.received - 1)) > BYTES
        return self.counts and apart


def rate_for(hosts: int) -> str:
    """Returns a link rate at which the links, and not two cores, are the limit."""
    return f"{round(min(1e9, _TOTAL / hosts) / 1e6)}mbit"


def send_queue(rate: float) -> int:
    """Returns the bytes of full datagrams that a lane's socket takes at this link rate
    (transport/udp/options.h): the kernel grants twice the requested size, and charges 2272 bytes
    for 1440."""
    asked = min(1 << 20, max(64 << 10, round(rate / 8 / 500)))
    return asked * 2 * 1440 // 2272


def experiment(lab: dict[str, Any], op: str, size: int, seed: int) -> str:
    """Returns the simulator's experiment for one row of a lab's results: `lab` is the bench's
    description of it."""
    loss = sum(f["probability"] for f in lab["faults"] if f["kind"] == "loss")
    words = {
        "hosts": lab["hosts"],
        "op": op,
        "size": size,
        "rate": f"{lab['rate'] / 1e6:g}mbit",
        "mtu": lab["mtu"],
        "algorithm": "mcast",
        "frame": 14,  # counted by a shaper of the kernel
        "shaper": lab["burst"],
        "ack_every": 40,  # the kernel joins received segments (GRO) before TCP acknowledges
        "cork": 1,  # small writes wait while earlier ones are at the interface (tcp_autocorking)
        "queue": lab["queue"],
        "budget": "8M",
        "bookkeeping": 832,  # charged by Linux to a socket for each datagram of a super-packet
        "send_queue": send_queue(lab["rate"]),
        "link_rate": f"{lab['rate'] / 1e6:g}mbit",  # as the lab passes it to its ranks
        "delay": "10us",
        "wake": "50us",
        "seed": seed,
    }
    if loss:
        words["loss"] = f"{loss:g}@host-leaf-down"
    return " ".join(f"{key}={value}" for key, value in words.items())


def measure(hosts: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the bench's JSON document from a lab of so many hosts."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lab.json"
        command = [
            sys.executable, "-m", "torch_mcast", "bench", "--hosts", str(hosts), "--rate", rate_for(hosts),
            "--mtu", str(args.mtu), "--ops", args.ops, "--sizes", args.sizes, "--backends", "mcast",
            "--repetitions", str(args.repetitions), "--warmup", "1", "--inner", "1",
            "--case-seconds", str(args.case_seconds), "--json", str(out),
        ]  # fmt: skip
        if args.loss:
            command += ["--loss", args.loss]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not out.exists():
            raise ValueError(f"the lab of {hosts} hosts failed: {done.stderr.strip()[-500:]}")
        return json.loads(out.read_text())


def _links(result: dict[str, Any], way: str) -> float:
    links = result["links"][f"host-leaf {way}"]
    return links["bytes"] / result["hosts"]


@dataclass(frozen=True)
class Measured:
    """One row of a lab's results, and the experiment that it is compared with."""

    text: str
    hosts: int
    op: str
    size: int
    seconds: float
    sent: float
    received: float
    counts: bool


def measured(document: dict[str, Any], seed: int = 1) -> list[Measured]:
    """Returns the rows of a lab's results that can be compared. Raises ValueError if they are no
    such results."""
    try:
        lab = document.get("lab")
        if not lab or lab["ranks_per_host"] != 1 or lab["rate"] is None:
            raise ValueError("results of a lab with one rank per host and a rate are needed")
        return [
            _measured(row, lab, document["machine"]["cpus"], seed)
            for row in document["rows"]
            if row["op"] in OPS
            and row.get("times_s")
            and row["backend"] == "mcast"
            and not row.get("partial")
        ]
    except KeyError as error:
        raise ValueError(f"no results of torch-mcast bench: there is no {error}") from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"no results of torch-mcast bench: {error}") from None


def _measured(row: dict[str, Any], lab: dict[str, Any], cpus: int, seed: int) -> Measured:
    sent = row["lab"]["sent_mean"]
    least = row["bound_s"] - lab["burst"] * 8 / lab["rate"]
    busy = row["cpu_s"] / (row["median_s"] * cpus)
    return Measured(
        text=experiment(lab, row["op"], row["size"], seed),
        hosts=lab["hosts"],
        op=row["op"],
        size=row["size"],
        seconds=row["median_s"],
        sent=sent,
        received=(row["lab"]["fabric"] - sent * lab["hosts"]) / lab["hosts"],
        counts=busy < _CPU and least >= _BOUND * row["median_s"],
    )


def compare(rows: Sequence[Measured], jobs: int | None = None) -> list[Case]:
    """Simulates each row of labs' results."""
    cases = []
    results = compute([row.text for row in rows], jobs, quiet_time=True)
    for row, result in zip(rows, results, strict=True):
        if reason := result.get("error"):
            raise ValueError(f"{result['spec']}: {reason}")
        cases.append(
            Case(
                hosts=row.hosts,
                op=row.op,
                size=row.size,
                lab_s=row.seconds,
                lab_sent=row.sent,
                lab_received=row.received,
                counts=row.counts,
                simulated_s=max(op["time"] for op in result["ops"]) / 1e9,
                simulated_sent=_links(result, "up"),
                simulated_received=_links(result, "down"),
            )
        )
    return cases


def show(cases: Sequence[Case], width: int | None = None) -> None:
    """Prints a table of all cases."""
    table = Table(title="lab and simulator", width=width)
    for name in ("hosts", "operation", "size", "lab", "simulated", "time", "sent", "received", ""):
        table.add_column(name, justify="left" if name in ("operation", "") else "right")
    for c in cases:
        verdict = "OFF" if c.off else "agrees" if c.counts else "not bound by links"
        table.add_row(
            str(c.hosts), c.op, bytes_text(c.size), time_text(c.lab_s), time_text(c.simulated_s),
            f"{c.time:.3f}", f"{c.sent:.3f}", f"{c.received:.3f}", verdict,
        )  # fmt: skip
    Console(width=width).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch-mcast simulate validate", description=__doc__)
    add = parser.add_argument
    add(
        "--hosts",
        default="2,4,8,16",
        metavar="N,N,..",
        help="numbers of hosts, a lab for each [2,4,8,16]",
    )
    add("--ops", default=",".join(OPS), metavar="OPS", help=f"operations [{','.join(OPS)}]")
    add("--sizes", default="1M,8M,64M", metavar="BYTES", help="sizes [1M,8M,64M]")
    add("--mtu", type=int, default=1500, metavar="BYTES", help="largest IP packet [1500]")
    add(
        "--loss",
        default="",
        metavar="SPEC",
        help="loss as for torch-mcast bench, such as 0.01 [none]",
    )
    add("--repetitions", type=int, default=5, metavar="N", help="timings per case in the lab [5]")
    add(
        "--case-seconds",
        type=float,
        default=30,
        metavar="SECONDS",
        help="limit per case in the lab [30]",
    )
    add("--seed", type=int, default=1, metavar="N", help="seed of the simulator [1]")
    add("--from", dest="files", nargs="+", type=Path, metavar="FILE",
        help="use these results of torch-mcast bench --hosts ... --json instead of measuring")  # fmt: skip
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the lab's results to FILE, one document per line",
    )
    add(
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="simulations to run at the same time [number of cores]",
    )
    add(
        "--width",
        type=int,
        default=None,
        metavar="N",
        help="width of the table in characters [the terminal's]",
    )
    return parser


def main(argv: list[str]) -> int:
    """Runs `torch-mcast simulate validate ARGV`. Returns 1 if a case that counts deviates."""
    args = _parser().parse_args(argv)
    helper.find_program()
    for size in args.sizes.split(","):
        parse_size(size)
    if args.json:
        outputs.check_file(args.json)
    rows: list[Measured] = []
    if args.files:
        documents = []
        for path in args.files:
            try:
                of_file = _documents(path)
                rows += [row for d in of_file for row in measured(d, args.seed)]
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            documents += of_file
    else:
        documents = _labs(args)
    if args.json:
        args.json.write_text("".join(json.dumps(d) + "\n" for d in documents))
    if not args.files:
        rows = [row for d in documents for row in measured(d, args.seed)]
    if not rows:
        raise ValueError("there is no operation of the lab to compare with")
    cases = compare(rows, args.jobs)
    show(cases, args.width)
    counted = [case for case in cases if case.counts]
    print(f"{len(counted)} of {len(cases)} cases count, {sum(c.off for c in counted)} are off")
    return 1 if any(case.off for case in cases) else 0


def _labs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the documents of all labs, one after the other."""
    documents = []
    counts = helper.parse_hosts(args.hosts)
    with Bar([f"lab of {hosts} hosts" for hosts in counts]) as bar:
        for number, hosts in enumerate(counts):
            bar.move(number, 0)
            documents.append(measure(hosts, args))
            bar.move(number, 1)
    return documents


def _documents(path: Path) -> list[dict[str, Any]]:
    """Reads a bench's document, or one per line as --json writes them."""
    text = path.read_text()
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]
