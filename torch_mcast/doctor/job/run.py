"""The course of a job's check. Every rank has run its local checks before. Then:

  1. facts     every rank publishes; rank 0 waits for all, up to the timeout, and compares
  2. plan      rank 0 publishes who probes, where and with what; ranks open sockets: "ready"
  3. go        when all are ready; ranks send, listen, connect, and publish whom they heard
  4. verdict   rank 0 prints the report, then publishes the exit code, which all ranks return

A rank that is missing at one step is named and left out of the next. If the store itself fails a
rank prints its own report with the reason; a watchdog does so if a call to the store never returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Finding, exit_code, fail, worst
from torch_mcast.doctor.job import compare, diagnose, facts
from torch_mcast.doctor.job.gpus import gpus
from torch_mcast.doctor.job.reach import Heard, Probe, plan
from torch_mcast.doctor.job.rendezvous import Rendezvous, connect, say
from torch_mcast.doctor.report import colour, document, show, width
from torch_mcast.doctor.table import summary, table

_READY_S = 10.0
_PROBE_S = 10.0
_MARGIN_S = 5.0


def _alone(findings: list[Finding], problem: str, as_json: bool, rank: str) -> int:
    fix = "check MASTER_ADDR, MASTER_PORT and the way to them: nc -vz $MASTER_ADDR $MASTER_PORT"
    rows = [*findings, fail("job", f"ranks could not be compared: {problem}", fix)]
    say(f"rank {rank} alone\n")
    return show(rows, as_json)


class _Watchdog:
    """Ends the process with its own report when the exchange takes longer than its steps can."""

    def __init__(self, limit: float, findings: list[Finding], as_json: bool, rank: str) -> None:
        self._timer = threading.Timer(limit, self._expire, (limit, findings, as_json, rank))
        self._timer.daemon = True

    def _expire(self, limit: float, findings: list[Finding], as_json: bool, rank: str) -> None:
        _alone(findings, f"no answer from the store within {limit:g} s", as_json, rank)
        sys.stdout.flush()
        os._exit(1)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _open_probe(context: Context, what: dict[str, Any], rank: int) -> Probe:
    loopback, chosen = context.loopback, context.chosen
    multicast = loopback if what["path"] == "loopback" else chosen
    if multicast is None:
        raise OSError("no interface")
    addresses = {}
    if loopback is not None:
        addresses["loopback"] = loopback.address
    if chosen is not None:
        addresses["interface"] = chosen.address
    ttl, rcvbuf = context.number("ttl"), context.number("rcvbuf")
    return Probe(what, rank, multicast, addresses, ttl, rcvbuf, context.ports)


def _probe(
    rendezvous: Rendezvous, context: Context, timeout: float, stack: contextlib.ExitStack
) -> None:
    """Steps 2 and 3 of every rank. Sockets stay open, on `stack`, until all have reported."""
    rank = rendezvous.rank
    # Rank 0 waits `timeout` for the last rank, and may itself be up to that much later than this
    # one.
    what = rendezvous.fetch("plan", time.monotonic() + 2 * timeout)
    if what is None or rank not in what["ranks"]:
        return
    try:
        probe = stack.enter_context(_open_probe(context, what, rank))
    except OSError as error:
        problem = f"cannot take part: {error.strerror or error}"
        rendezvous.publish(f"ready/{rank}", {"problem": problem})
        rendezvous.publish(f"heard/{rank}", Heard(problem=problem).to_json())
        return
    rendezvous.publish(f"ready/{rank}", {"addresses": probe.addresses()})
    go = rendezvous.fetch("go", time.monotonic() + _READY_S + _MARGIN_S)
    if go is None:
        return
    peers = {int(r): addresses for r, addresses in go.items()}
    heard = probe.run(
        peers,
        lambda: rendezvous.arrive("sent", len(peers)),
        lambda: rendezvous.passed("sent"),
        _PROBE_S,
    )
    rendezvous.publish(f"heard/{rank}", heard.to_json())


def _start_probe(rendezvous: Rendezvous, what: dict[str, Any]) -> None:
    """Step 2 of rank 0, concurrent with _probe(): gives the start signal when all that can are ready."""
    ready = rendezvous.collect("ready", what["ranks"], time.monotonic() + _READY_S)
    addresses = {str(r): row["addresses"] for r, row in ready.items() if "addresses" in row}
    rendezvous.publish("go", addresses)


def _lead(rendezvous: Rendezvous, context: Context, timeout: float) -> tuple[dict[str, Any], str]:
    """Runs as rank 0. Returns (the job's part of the JSON document, the matrix)."""
    say(f"checked {os.uname().nodename}; {rendezvous.size} ranks are to report")
    known = rendezvous.collect(
        "facts", range(rendezvous.size), time.monotonic() + timeout, "waiting for the facts"
    )
    found = [*compare.compare(known, rendezvous.size), *gpus(known)]
    what = plan(known)
    rendezvous.publish("plan", what)
    say(f"trying multicast and TCP between {len(what['ranks'])} ranks")
    starter = threading.Thread(target=_start_probe, args=(rendezvous, what), daemon=True)
    starter.start()
    with contextlib.ExitStack() as stack:
        _probe(rendezvous, context, timeout, stack)
        starter.join()
        answers = rendezvous.collect(
            "heard",
            what["ranks"],
            time.monotonic() + _PROBE_S + _MARGIN_S,
            "waiting for the results",
        )
    reports = {rank: Heard.from_json(row) for rank, row in answers.items()}
    algorithm = context.values["algorithm"]
    found += diagnose.judge_reach(what, reports, known, algorithm)
    found.append(diagnose.judge_tcp(what, reports, known))
    job = {
        "world_size": rendezvous.size,
        "ranks": [
            {
                key: known[rank][key]
                for key in ("host", "host_id", "version", "torch", "interface", "findings")
            }
            | {"rank": rank}
            for rank in sorted(known)
        ],
        "findings": [f.to_json() for f in found],
        "others": [f.to_json() for f in compare.of_others(known)],
        "reach": {
            "path": what["path"],
            "ranks": what["ranks"],
            "datagram": what["size"],
            "heard": {str(rank): report.to_json() for rank, report in reports.items()},
        },
    }
    return job, diagnose.matrix(reports, what["ranks"])


def _print(findings: list[Finding], job: dict[str, Any], matrix: str, as_json: bool) -> int:
    whole = document(findings, job)
    if as_json:
        print(json.dumps(whole, indent=2), flush=True)
        return whole["exit_code"]
    together = [Finding.from_json(row) for row in job["findings"]]
    others = [Finding.from_json(row) for row in job["others"]]
    print(f"rank 0 on {whole['host']}\n")
    print(table(findings, width(), colour()))
    if others:
        print("\nother ranks, where not ok\n")
        print(table(others, width(), colour()))
    print(f"\nall {job['world_size']} ranks together\n")
    print(table(together, width(), colour()))
    if matrix:
        print(f"\nmulticast, {job['reach']['datagram']} bytes\n\n{matrix}")
    print(f"\n{summary([*findings, *others, *together])}", flush=True)
    return whole["exit_code"]


def run(context: Context, findings: list[Finding], timeout: float, as_json: bool) -> int:
    rank = context.environment["RANK"]
    if rank == "0":
        say(f"meeting the other ranks at {context.environment['MASTER_ADDR']}")
    try:
        with _Watchdog(timeout + _MARGIN_S, findings, as_json, rank):
            rendezvous = connect(context.environment, timeout)
        # Longest possible duration: wait for the plan, ready, probe, the others' reports, the end.
        limit = 3 * timeout + _READY_S + 2 * _PROBE_S + 4 * _MARGIN_S
        with _Watchdog(limit, findings, as_json, rank):
            return _run(rendezvous, context, findings, timeout, as_json)
    except Exception as error:  # noqa: BLE001 - a broken torch may raise anything
        return _alone(findings, (str(error) or repr(error)).splitlines()[0], as_json, rank)


def _run(
    rendezvous: Rendezvous, context: Context, findings: list[Finding], timeout: float, as_json: bool
) -> int:
    rendezvous.publish(f"facts/{rendezvous.rank}", facts.gather(context, findings))
    if rendezvous.rank == 0:
        job, matrix = _lead(rendezvous, context, timeout)
        code = _print(findings, job, matrix, as_json)
        rendezvous.publish("verdict", code)
        # This process may serve the store: stay until the others have read the verdict.
        present = [row["rank"] for row in job["ranks"] if row["rank"] != 0]
        rendezvous.collect("left", present, time.monotonic() + _MARGIN_S)
        return code
    with contextlib.ExitStack() as stack:
        _probe(rendezvous, context, timeout, stack)
        wait = _READY_S + 2 * _PROBE_S + 2 * _MARGIN_S + timeout
        code = rendezvous.fetch("verdict", time.monotonic() + wait)
    if code is None:
        return _alone(findings, "rank 0 gave no verdict", as_json, str(rendezvous.rank))
    rendezvous.publish(f"left/{rendezvous.rank}", True)
    return max(code, exit_code(worst(findings)))
