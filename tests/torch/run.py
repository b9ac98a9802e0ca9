"""PyTorch's own distributed tests (of the installed wheel, nothing is copied) with mcast, each beside Gloo's
result: `make test-torch`.

    python tests/torch/run.py [--only REGEX] [--again] [--backends mcast,gloo] [--limit SECONDS]
    python tests/torch/run.py --world 8 [--write]  # what 3 ranks are too few for
    python tests/torch/run.py --security auth|sealed [--write]  # with mcast alone: what the page says passes

The tests are written for one backend at a time, whose name decides with `BACKEND == ...` which of them run.
Here they are imported under Gloo's name, so that the gates are Gloo's, and then run under the real one. A
test that compares the name with "gloo" once more inside runs a second time with that name there ("under
Gloo's name"); only the group that it makes is ours. Tests of all-to-alls have MPI's name for a gate, which is
lifted.

One process imports torch and the tests; each test runs in a fork of it, whose ranks are forks again, in a
session that ends after --limit seconds. Results are kept in build/torch-tests/<version of torch>.json; tests
that have one are not run again unless --again asks for it, so an interrupted run goes on where it was. The
table of what each test did is docs/torch-tests.md (--write); reasons.py says why a test passes under
Gloo's name only. With --security groups have that mode and a secret, and no shared memory, so all of it is
guarded; sums of sparse tensors, which the fallback serves, go in clear, as it was asked for by name. Exit
code 1: a test that passes with Gloo does not with mcast.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "torch-tests.md"
WORLD = 3
MORE_WORLDS = (4, 8)  # numbers of ranks of tests that need so many
ASKS_FOR_MORE = re.compile(r"small world size|world size of 4")
LIMIT_S = 120
GATE = "Only MPI supports"  # gates by name: the one of calls that mcast serves

os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("MCAST_SOCKET_IFNAME", "lo")
LOGS = ROOT / "build" / "torch-tests" / "logs"  # output of the ranks of each test


def load() -> tuple[Any, Any]:
    """Returns the module of the tests, and the class that contains them."""
    import torch.multiprocessing
    import torch.testing._internal.common_distributed as common

    for feature in ("ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature[feature].add("mcast")
    common.initialize_temp_directories()
    import torch.testing._internal.distributed.distributed_test as module

    import torch_mcast  # noqa: F401 - registers the backend

    class Tests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for name in gated(Tests):
        test = getattr(Tests, name)
        del test.__unittest_skip__
        test.gated = test.__unittest_skip_why__
    return module, Tests


def gated(tests: Any) -> list[str]:
    """Returns the tests that only another backend's name keeps from running: they are run anyway."""
    return sorted(
        name
        for name in dir(tests)
        if getattr(getattr(tests, name), "__unittest_skip_why__", "").startswith(GATE)
        and getattr(getattr(tests, name), "__unittest_skip__", False)
    )


def run_here(module: Any, tests: Any, name: str, backend: str, literal: str) -> dict[str, str]:
    """Runs one test in this process. `literal` is the backend's name that the tests see."""
    import unittest

    import torch.distributed as dist

    module.BACKEND = literal
    module.INIT_METHOD = f"file://{LOGS}/{name}.{os.getpid()}.store"  # for tests that init again
    if literal != backend:
        real = dist.init_process_group

        def init(*args: Any, **more: Any) -> None:
            real(*args, **{**more, "backend": backend})

        dist.init_process_group = init
        # torch checks the name before monitored_barrier().
        known = dist.distributed_c10d.get_backend

        def get_backend(group: Any = None) -> str:
            return literal if known(group) == backend else known(group)

        dist.distributed_c10d.get_backend = get_backend
    result = unittest.TestResult()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        tests(name).run(result)
    if result.skipped:
        return {"outcome": "skipped", "text": result.skipped[0][1]}
    for outcome, problems in (("failed", result.failures), ("error", result.errors)):
        if problems:
            return {"outcome": outcome, "text": problems[0][1][-6000:]}
    return {"outcome": "passed", "text": ""}


def run(
    module: Any, tests: Any, name: str, backend: str, literal: str, limit: float
) -> dict[str, Any]:
    """Runs the same in a fork, within the limit."""
    receive, send = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(receive)
        log = os.open(LOGS / f"{name}.{backend}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            answer = run_here(module, tests, name, backend, literal)
        except BaseException as error:  # noqa: BLE001 - it is the result
            answer = {"outcome": "error", "text": repr(error)}
        os.write(send, json.dumps(answer).encode()[:60_000])
        os._exit(0)
    os.close(send)
    answer = answer_within(receive, limit)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(receive)
    return {**answer, "seconds": round(time.monotonic() - start, 1)}


def answer_within(descriptor: int, limit: float) -> dict[str, Any]:
    import select

    deadline, text = time.monotonic() + limit, b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], left)[0]:
            break
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return {"outcome": "error", "text": "the process died"}
        text += piece
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return {"outcome": "hung", "text": f"no result within {limit:.0f} s"}


def passed(row: dict[str, Any], way: str) -> bool:
    return row.get(way, {}).get("outcome") == "passed"


def good(row: dict[str, Any]) -> bool:
    return passed(row, "mcast") or passed(row, "mcast as gloo")


def listed() -> dict[str, str]:
    """Reads the page: tests that pass with mcast, and how."""
    found = re.findall(r"^\| `(\w+)` \| (passed[^|]*?) \|", PAGE.read_text(), re.M)
    return {name: "mcast as gloo" if "under" in way else "mcast" for name, way in found}


def kept_at(version: str, mode: str = "off", world: int = WORLD) -> Path:
    name = version if mode == "off" else f"{version}.{mode}"
    name += "" if world == WORLD else f".{world}"
    return ROOT / "build" / "torch-tests" / f"{name}.json"


def rows_at(version: str, mode: str = "off", world: int = WORLD) -> dict[str, Any]:
    kept = kept_at(version, mode, world)
    return json.loads(kept.read_text()) if kept.exists() else {}


def guard(mode: str, folder: str) -> None:
    """Sets security for all groups of this process and its children."""
    from torch_mcast.secret import new

    secret = Path(folder) / "secret"
    secret.touch(0o600)
    secret.write_text(new())
    os.environ.update(MCAST_SECURITY=mode, MCAST_SECRET_FILE=str(secret), MCAST_SHARED_MEMORY="off")
    # The effect of Options(fallback="gloo"); the tests pass no options.
    from torch_mcast import _fallback

    _fallback.kind = lambda backend, device: "gloo" if device == "cpu" else ""


GUARDED = (
    "In guarded groups without shared memory (`--security MODE`) pass, of what passes with mcast:"
)


def guarded_line(version: str) -> str:
    """Returns the page's line on guarded groups: for the modes that have been run here, else unchanged."""
    counts = [
        f"`{mode}` {sum(map(good, rows.values()))} of {len(rows)}"
        for mode in ("auth", "sealed")
        if (rows := {name: row for name, row in rows_at(version, mode).items() if row})
    ]
    if len(counts) == 2:
        return f"{GUARDED} {', '.join(counts)} ({time.strftime('%Y-%m-%d')})."
    text = PAGE.read_text() if PAGE.exists() else ""
    return next((line for line in text.splitlines() if line.startswith(GUARDED)), "")


def write_guarded(version: str) -> None:
    """Writes only that line, before the table."""
    lines = [line for line in PAGE.read_text().splitlines() if not line.startswith(GUARDED)]
    table = next(i for i, line in enumerate(lines) if line.startswith("| test that"))
    before = "\n".join(lines[:table]).rstrip()
    said = guarded_line(version)
    PAGE.write_text("\n".join([before, "", said, "", *lines[table:]]) + "\n")


def asks_for_more(row: dict[str, Any]) -> bool:
    """Returns whether it was skipped for too few ranks, with Gloo or, if Gloo lacks the call, with
    mcast."""
    said = [row.get(way, {}) for way in ("gloo", "mcast")]
    return any(s.get("outcome") == "skipped" and ASKS_FOR_MORE.search(s["text"]) for s in said)


def ran_with_more(version: str) -> list[tuple[int, str, list[str]]]:
    """Returns the tests that ran with other numbers of ranks: how many, which, and their results
    with mcast and with Gloo."""
    found = []
    for world in MORE_WORLDS:
        for name, row in sorted(rows_at(version, world=world).items()):
            said = [row.get(way, {"outcome": "-"})["outcome"] for way in ("mcast", "gloo")]
            if not passed(row, "mcast") and passed(row, "mcast as gloo"):
                said[0] = "passed under Gloo's name"
            if not set(said) <= {"skipped", "-"}:
                found.append((world, name, said))
    return found


def worlds_table(more: list[tuple[int, str, list[str]]]) -> list[str]:
    lines = [
        "",
        "## With 4 and 8 ranks",
        "",
        f"Tests that {WORLD} ranks are too few for (`python tests/torch/run.py --world N`), with each number"
        " of ranks that they accept.",
        "",
        "| test | ranks | mcast | Gloo |",
        "|---|---|---|---|",
    ]
    return lines + [f"| `{name}` | {world} | {' | '.join(said)} |" for world, name, said in more]


def gated_table(rows: dict[str, Any], lifted: set[str]) -> list[str]:
    lines = [
        "",
        "## Run although their gate is MPI's name",
        "",
        f"`{GATE} ...`: the gate is lifted, the test is as it is.",
        "",
        "| test | mcast | Gloo |",
        "|---|---|---|",
    ]
    for name in sorted(lifted):
        ways = [rows[name][way] for way in ("mcast", "gloo")]
        said = [
            f"skipped: {way['text']}" if way["outcome"] == "skipped" else way["outcome"]
            for way in ways
        ]
        lines.append(f"| `{name}` | {' | '.join(said)} |")
    return lines


def write_page(
    version: str, rows: dict[str, Any], reasons: dict[str, str], lifted: set[str]
) -> None:
    more = ran_with_more(version)
    elsewhere = lifted | {name for _, name, _ in more}
    gloos = [name for name, row in rows.items() if name not in lifted and passed(row, "gloo")]
    plain = [name for name in gloos if passed(rows[name], "mcast")]
    literal = [name for name in gloos if good(rows[name]) and name not in plain]
    lines = [
        "# PyTorch's own tests",
        "",
        f"`make test-torch`: `distributed_test` of torch {version}, CPU, {WORLD} ranks on one host, each test"
        " by itself. Written by `python tests/torch/run.py --write`.",
        "",
        f"Of {len(rows)} tests Gloo passes {len(gloos)}. mcast passes {len(plain)} of these under its own"
        f' name, and {len(literal)} more under Gloo\'s: these compare the name with "gloo" inside.',
        "",
        *([guarded, ""] if (guarded := guarded_line(version)) else []),
        "| test that Gloo passes | mcast | remark |",
        "|---|---|---|",
    ]
    for name in gloos:
        row = rows[name]
        way = (
            "passed"
            if name in plain
            else "passed under Gloo's name"
            if name in literal
            else row["mcast"]["outcome"]
        )
        lines.append(f"| `{name}` | {way} | {reasons.get(name, '')} |")
    lines += [
        *gated_table(rows, lifted),
        *worlds_table(more),
        "",
        "## Not run on this machine by either",
        "",
        "What the tests themselves say when they are skipped:",
        "",
        "| reason | tests |",
        "|---|---|",
    ]
    skipped: dict[str, list[str]] = {}
    for name, row in rows.items():
        if name not in gloos and name not in elsewhere:
            text = (
                " ".join(row["gloo"]["text"].split())[:120]
                if row["gloo"]["outcome"] == "skipped"
                else ("fails with Gloo itself: " + row["gloo"]["outcome"])
            )
            skipped.setdefault(text, []).append(name)
    for text, names in sorted(skipped.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(f"`{n}`" for n in names)
        lines.append(f"| {text} | {len(names)}: {shown} |")
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--again", action="store_true", help="run also what has a result")
    parser.add_argument(
        "--failed", action="store_true", help="run again what did not pass with mcast"
    )
    parser.add_argument("--backends", default="gloo,mcast")
    parser.add_argument("--world", type=int, default=WORLD, choices=[WORLD, *MORE_WORLDS])
    parser.add_argument("--security", default="off", choices=["off", "auth", "sealed"])
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as folder:
        if options.security != "off":
            guard(options.security, folder)
        os.environ["WORLD_SIZE"] = str(options.world)
        return run_all(options)


def run_guarded(options: argparse.Namespace) -> int:
    """Runs, with mcast only, the tests that pass without a guard."""
    import torch

    module, tests = load()
    version = torch.__version__.split("+")[0]
    kept = kept_at(version, options.security)
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = rows_at(version, options.security)
    for name, way in sorted(listed().items()):
        row = rows.setdefault(name, {})
        stale = options.again or (options.failed and not good(row))
        if not re.search(options.only, name) or (way in row and not stale):
            continue
        literal = "gloo" if way == "mcast as gloo" else "mcast"
        row[way] = run(module, tests, name, "mcast", literal, options.limit)
        print(f"{name}: {way}: {row[way]['outcome']} ({row[way]['seconds']} s)", flush=True)
        kept.write_text(json.dumps(rows, indent=1, sort_keys=True))
    rows = {name: row for name, row in rows.items() if row}
    bad = [name for name, row in rows.items() if not good(row)]
    if options.write:
        write_guarded(version)
    print(f"{options.security}: {len(rows) - len(bad)} of {len(rows)}")
    for name in bad:
        print(f"{name}: {', '.join(way['outcome'] for way in rows[name].values())}")
    return 1 if bad else 0


def run_all(options: argparse.Namespace) -> int:
    if options.security != "off":
        return run_guarded(options)
    from reasons import REASONS

    module, tests = load()
    import torch

    version = torch.__version__.split("+")[0]
    kept = kept_at(version, world=options.world)
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = rows_at(version, world=options.world)
    names = sorted(n for n in dir(tests) if n.startswith("test_") and re.search(options.only, n))
    if options.world != WORLD:
        fewer = rows_at(version)
        names = [name for name in names if asks_for_more(fewer.get(name, {}))]

    def once(name: str, way: str, backend: str, literal: str) -> None:
        row = rows.setdefault(name, {})
        stale = options.again or (options.failed and backend == "mcast" and not good(row))
        if way in row and not stale:
            return
        row[way] = run(module, tests, name, backend, literal, options.limit)
        print(f"{name}: {way}: {row[way]['outcome']} ({row[way]['seconds']} s)", flush=True)
        part = kept.with_suffix(".new")
        part.write_text(json.dumps(rows, indent=1, sort_keys=True))
        part.rename(kept)

    wanted = options.backends.split(",")
    all_lifted = {n for n in dir(tests) if hasattr(getattr(tests, n), "gated")}
    lifted = all_lifted & set(names)
    for name in names:
        if "gloo" in wanted:
            once(name, "gloo", "gloo", "gloo")
        if "mcast" in wanted and name in lifted:
            once(name, "mcast", "mcast", "mcast")
        elif "mcast" in wanted and passed(rows.get(name, {}), "gloo"):
            once(name, "mcast", "mcast", "mcast")
            if not passed(rows[name], "mcast"):
                once(name, "mcast as gloo", "mcast", "gloo")
    if options.write:
        write_page(version, rows_at(version), REASONS, all_lifted)
    anyway = [n for n in names if n in lifted]
    gloos = [n for n in names if n not in lifted and passed(rows.get(n, {}), "gloo")]
    bad = [n for n in gloos if not good(rows[n])]
    print(
        f"Gloo passes {len(gloos)} of {len(names)}; mcast {sum(good(rows[n]) for n in gloos)} of {len(gloos)}"
    )
    print(
        f"of those with MPI's gate mcast passes {sum(good(rows[n]) for n in anyway)} of {len(anyway)}"
    )
    bad += [
        n for n in anyway if rows[n].get("mcast", {}).get("outcome") not in ("passed", "skipped")
    ]
    for name in bad:
        print(f"{name}: {rows[name].get('mcast', {}).get('outcome')}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
