"""`torch-mcast estimate gpu`: its times beside formulas written down again here, beside the design's table and
docs/gpu-estimates.md, and properties that any cluster must have."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from seeds import seed_of

from torch_mcast.bench import formulas
from torch_mcast.cost_model import cli, constants
from torch_mcast.cost_model.gpus import OPS, ROUTES, Cluster, Estimate, Model, parts_of

DOCS = Path(__file__).parents[2] / "docs"
GIB = 1 << 30
CHANNELS = {25: 1, 100: 2, 400: 4}
TABLE = constants.defaults()


def estimate(route: str, op: str, hosts: int, gbit: int = 100, **more) -> Estimate:
    size = more.pop("size", GIB)
    more = {"gpus": 8, "channels": CHANNELS.get(gbit, 1), **more}
    return Model(Cluster(hosts, rate=gbit * 10**9, **more), size, TABLE).estimate(route, op)


# As the design of the GPU collectives has it (1 GiB, L = 8): ms of rails/nccl/host for 2 x 8 at 25, 100, 400
# Gbit/s, then for 16 x 8.
DESIGN = """
all_gather     181/339/181 45/85/165 12/21/165 339/359/339 85/90/165   21/22/165
broadcast      362/362/362 90/90/165 23/23/165 362/362/362 90/90/165   23/23/165
reduce_scatter 181/339/250 45/85/250 12/21/250 339/359/339 85/90/250   23/22/250
all_reduce     362/362/378 90/90/378 25/23/378 678/718/678 170/179/378 42/45/378
"""
PLACES = [(hosts, gbit) for hosts in (2, 16) for gbit in (25, 100, 400)]


@pytest.mark.parametrize("line", DESIGN.strip().splitlines(), ids=lambda line: line.split()[0])
def test_the_designs_table(line):
    """Compares the busiest resource: the design leaves out what the first part adds. It also counts one share for the
    root's GPU in a broadcast, although all neighbours pull all of them from there."""
    op, *cells = line.split()
    for (hosts, gbit), cell in zip(PLACES, cells, strict=True):
        for route, expected in zip(("rails", "nccl", "host"), cell.split("/"), strict=True):
            got = estimate(route, op, hosts, gbit)
            seconds = {term.name: term.seconds for term in got.terms}
            if (op, route) == ("broadcast", "rails"):
                assert seconds.pop("NVLink") == pytest.approx(7 * GIB / 300e9)
            assert round(1000 * max(seconds.values())) == int(expected), (hosts, gbit, route)


def by_hand(route: str, op: str, h: int, g: int, rate: float, channels: int) -> dict[str, float]:
    """Seconds of each resource for S = 1 byte, with NVLink. Written from the design, not from the module."""
    p, b, lane = h * g, rate / 8 * 0.95, 2.7e9
    pcie, nvlink, memory = 47e9, 300e9, 1039e9
    cross = (h - 1) / h
    nic = {"all_gather": cross, "broadcast": 1, "reduce_scatter": cross, "all_reduce": 2 * cross}
    engine = {
        "all_gather": 1 / g,
        "broadcast": 1 / g,
        "reduce_scatter": 2 * cross / g,
        "all_reduce": (3 * h - 2) / (h * g),
    }
    if route == "nccl":
        ring = {"broadcast": 1, "all_reduce": 2 * (p - 1) / p}.get(op, (p - 1) / p)
        outside = 1 if op == "all_reduce" and h == 2 else ring
        return {
            **({"NIC": outside / b} if h > 1 else {}),
            **({"NVLink": ring / nvlink} if g > 1 else {}),
        }
    network = {
        "NIC": nic[op] / b,
        "lane": engine[op] / lane / (channels if route == "rails" else 1),
    }
    if h == 1:
        network = {}
    if route == "host":
        speed = {"reduce_scatter": 4.3e9, "all_reduce": 2.84e9}.get(op, 6.5e9)
        out = 1 / p if op == "all_gather" else 1
        into = 1 / p if op == "reduce_scatter" else 1
        return {**network, "PCIe out": out / pcie, "PCIe in": into / pcie, "staging": 1 / speed}
    copies = {}
    if h > 1:
        copies = {
            "PCIe out": (1 / p if op == "all_gather" else 1 / g) / pcie,
            "PCIe in": (1 / p if op == "reduce_scatter" else 1 / g) / pcie,
        }
    if g > 1:
        pulled = {"broadcast": g - 1, "all_reduce": 2 * (g - 1) / g}.get(op, (g - 1) / g)
        inside = {
            "all_gather": 1 / p + 1 / g,
            "broadcast": 1,
            "reduce_scatter": 2,
            "all_reduce": 2 + 1 / g,
        }
        copies |= {"NVLink": pulled / nvlink, "device memory": inside[op] / memory}
    return {**network, **copies}


def drawn(rng: random.Random) -> tuple[Cluster, int]:
    cluster = Cluster(
        hosts=rng.choice((1, 2, 3, rng.randint(2, 64))),
        gpus=rng.choice((1, 2, 4, 8, rng.randint(2, 16))),
        rate=rng.choice((10, 25, 100, 400, 800)) * 10**9,
        channels=rng.choice((1, 1, 2, 4)),
        ring=rng.choice((64, 256, 1024)) << 20,
    )
    if cluster.ranks < 2:
        cluster = replace(cluster, hosts=2)
    return cluster, rng.randint(1 << 12, 8 << 30)


def cases(count: int = 300):
    for rng in (random.Random(1), random.Random(seed_of(None))):
        for _ in range(count):
            yield rng, *drawn(rng)


def test_terms_equal_arithmetic_by_hand():
    seen = set()
    for _, cluster, size in cases():
        for route in ROUTES:
            for op in OPS:
                got = Model(cluster, size, TABLE).estimate(route, op)
                if got.unavailable:
                    continue
                seen.add((route, op, min(cluster.hosts, 3), min(cluster.gpus, 2)))
                expected = by_hand(
                    route, op, cluster.hosts, cluster.gpus, cluster.rate, cluster.channels
                )
                seconds = {term.name: term.seconds for term in got.terms}
                assert seconds == pytest.approx({n: size * s for n, s in expected.items()}), (
                    cluster, route, op,
                )  # fmt: skip
    hosts_of = {"rails": (2, 3), "peer": (1,), "nccl": (1, 2, 3), "host": (1, 2, 3)}
    shapes = {(r, op, h, g) for r in ROUTES for op in OPS for h in hosts_of[r] for g in (1, 2)}
    assert seen == {shape for shape in shapes if shape[2:] != (1, 1)}


def test_a_time_is_the_busiest_resource_and_one_part_of_the_others():
    """2 x 8 at 400 Gbit/s: 64 MiB blocks in 12 parts, since a slot of 16 MiB holds 3 of a block (H + 1)."""
    got = estimate("rails", "all_gather", 2, 400)
    assert got.parts == pytest.approx(12)
    seconds = {term.name: term.seconds for term in got.terms}
    assert got.busiest.name == "lane" and seconds["NIC"] < seconds["lane"]
    others = sum(seconds[n] for n in ("PCIe out", "PCIe in", "NVLink", "device memory"))
    assert got.first_part == pytest.approx(others / 12)
    assert got.seconds == pytest.approx(seconds["lane"] + others / 12)
    # The engine is one of the others where NVLink is the busiest.
    got = estimate("rails", "broadcast", 2, 400)
    seconds = {term.name: term.seconds for term in got.terms}
    others = seconds["NIC"] + sum(seconds[n] for n in ("PCIe out", "PCIe in", "device memory"))
    assert got.parts == pytest.approx(64) and got.first_part == pytest.approx(others / 64)


@pytest.mark.parametrize(
    ("op", "hosts", "gpus", "parts"),
    [
        # A slot has 16 MiB, S is 1 GiB.
        ("all_gather", 16, 8, 1024 / 128 * 17 / 16),
        ("all_gather", 4, 1, 256 * 5 / 16),
        ("broadcast", 4, 1, 1024 / 16),
        ("reduce_scatter", 2, 8, 1024 / 16),
        (
            "reduce_scatter",
            4,
            1,
            256 * 5 / 16,
        ),  # without neighbours no blocks lie in a ring on the GPU
        ("all_reduce", 2, 8, 128 * 9 / 16),
        ("all_reduce", 2, 1, 1024 / 16),
        ("all_gather", 1, 8, 128 / 16),
        ("reduce_scatter", 1, 4, 1024 / 16),
    ],
)
def test_parts_fill_the_slots_of_the_rings(op, hosts, gpus, parts):
    assert parts_of(op, GIB, Cluster(hosts, gpus, 10**11))[0] == pytest.approx(parts)


def test_no_route_is_faster_than_the_nic():
    for _, cluster, size in cases():
        for route in ROUTES:
            for op in OPS:
                got = Model(cluster, size, TABLE).estimate(route, op)
                if not got.unavailable:
                    least = formulas.receive_bytes(op, size, cluster.hosts) * 8 / cluster.rate
                    assert got.seconds >= least, (cluster, route, op)
                    assert got.seconds >= max(term.seconds for term in got.terms)
                    assert got.first_part <= sum(term.seconds for term in got.terms)


@pytest.mark.parametrize("change", ["size", "hosts", "rate", "channels", "ring"])
def test_times_are_monotone(change):
    """More bytes, hosts or bytes per part are not faster; faster links and more channels are not slower.
    With more hosts a GPU publishes a smaller block of the same S, so there the busiest resource is compared."""
    compared = 0
    for rng, before, size in cases():
        after, larger = before, size
        if change == "size":
            larger = size + rng.randint(1, size)
        elif change == "hosts":
            before = replace(before, hosts=max(2, before.hosts))
            after = replace(before, hosts=before.hosts + rng.choice((1, 1, 8)))
        else:
            after = replace(before, **{change: getattr(before, change) * rng.choice((2, 3))})
        slower = change in ("size", "hosts", "ring")
        for route in ROUTES:
            for op in OPS:
                first = Model(before, size, TABLE).estimate(route, op)
                second = Model(after, larger, TABLE).estimate(route, op)
                if first.unavailable or second.unavailable:
                    continue
                compared += 1
                times = [
                    e.busiest.seconds if change == "hosts" else e.seconds for e in (first, second)
                ]
                low, high = times if slower else reversed(times)
                assert low <= high * (1 + 1e-9), (before, after, route, op)
    assert compared > 1000


def test_peers_over_pcie_share_the_link_with_host_memory():
    nvlink = {t.name: t for t in estimate("rails", "all_gather", 2).terms}
    pcie = {t.name: t for t in estimate("rails", "all_gather", 2, peers="pcie").terms}
    assert "NVLink" not in pcie
    for name in ("PCIe out", "PCIe in"):
        assert pcie[name].bytes == nvlink[name].bytes + nvlink["NVLink"].bytes
    inside = estimate("nccl", "all_reduce", 1, peers="pcie")
    assert {t.name: t.bytes for t in inside.terms} == pytest.approx(
        {"PCIe out": 2 * 7 / 8 * GIB, "PCIe in": 2 * 7 / 8 * GIB}
    )


def test_cores_and_pinned_memory():
    rails, host = (estimate(route, "all_gather", 16, 400) for route in ("rails", "host"))
    assert rails.core_seconds == pytest.approx(GIB / 2.7e9) == host.core_seconds
    assert rails.pinned == 2 * 4 * 8 * (64 << 20)  # lanes, channels, GPUs
    assert estimate("rails", "all_gather", 2, 25).pinned == GIB
    assert estimate("host", "all_gather", 2, 25).pinned == 8.5 * GIB
    assert estimate("host", "all_reduce", 2, 25).pinned == 8 * GIB
    assert estimate("peer", "all_gather", 1).pinned == 0 == estimate("nccl", "all_gather", 2).pinned


# The measurements that the constants name.


def cells_of(page: str, *start: str) -> list[str]:
    """Cells of the only row of a page's tables that begins with these."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (DOCS / page).read_text().splitlines()
        if line.startswith("|")
    ]
    [row] = [row for row in rows if row[: len(start)] == list(start)]
    return row[len(start) :]


def test_measured_speeds_are_those_of_the_pages():
    block = 64 << 20  # bytes per rank, two ranks
    copies, cpu, cuda, *_ = cells_of("device-tensors.md", "all_gather 64 MiB", "loopback")
    assert TABLE["lane"].value == pytest.approx(2 * block / float(cpu) / 1e6, rel=0.02)
    copies = cells_of("device-tensors.md", "all_gather 64 MiB", "shared memory")[0]
    assert TABLE["pcie"].value == pytest.approx(2 * block / float(copies) / 1e6, rel=0.02)
    cuda = cells_of("device-tensors.md", "reduce_scatter 64 MiB", "shared memory")[2]
    assert TABLE["host_reduce_scatter"].value == pytest.approx(
        2 * block / float(cuda) / 1e6, rel=0.02
    )
    cuda = cells_of("device-tensors.md", "all_reduce 64 MiB", "shared memory")[2]
    assert TABLE["host_all_reduce"].value == pytest.approx(block / float(cuda) / 1e6, rel=0.02)
    [gather] = cells_of("gpu-estimates.md", "all_gather 256 MiB, `host`, of output")
    assert TABLE["host_gather"].value == float(gather)
    [copy] = cells_of("gpu-estimates.md", "copy by CUDA IPC, from the memory of the other rank")
    assert TABLE["device_memory"].value == float(copy.replace(",", ""))


def test_every_speed_names_a_measurement_or_is_assumed():
    for constant in TABLE.values():
        found = re.match(r"measured: (docs/[\w-]+\.md), (.+?) \(|assumed", constant.source)
        assert found, constant
        if found[1]:
            text = (DOCS.parent / found[1]).read_text()
            assert f"\n## {found[2]}\n" in text, constant
    for cluster, route in ((Cluster(2, 8, 10**11), "rails"), (Cluster(1, 8, 10**11), "peer")):
        for op in OPS:
            for term in Model(cluster, GIB, TABLE).estimate(route, op).terms:
                assert term.speed > 0 and term.constant in TABLE


# The command.


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["gpu", *arguments])
    return code, *capsys.readouterr()


def test_the_page_has_what_the_command_computes(capsys):
    _, out, _ = run(capsys, "--json")
    rows = json.loads(out)["rows"]
    times = {(r["op"], r["hosts"], r["rate"] // 10**9, r["route"]): r["seconds"] for r in rows}
    assert len(times) == 4 * 2 * 3 * 3
    for op in OPS:
        cells = cells_of("gpu-estimates.md", op)
        for (hosts, gbit), cell in zip(PLACES, cells, strict=True):
            expected = [
                f"{1000 * times[op, hosts, gbit, r]:.0f}" for r in ("rails", "nccl", "host")
            ]
            assert cell.rstrip("\\*").split(" / ") == expected, (op, hosts, gbit)


def test_the_table_shows_all_routes_and_sources(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    row = next(
        line for line in lines if "2 x 8" in line and "│ 100 " in line and "all_gather" in line
    )
    assert re.findall(r"[\w.*]+", row) == [
        "2", "x", "8", "100", "all_gather", "45.8", "84.8", "165", "1.85", "NIC", "0.63", "8.7", "2.0",
    ]  # fmt: skip
    assert "378*" in out and "assumed: link_share, nvlink" in out
    for name, constant in TABLE.items():
        line = next(line for line in lines if line.startswith(f"│ {name} "))
        assert re.match(r"\w+", constant.source)[0] in line
    _, out, _ = run(capsys, "--wide", "--hosts", "2", "--rate", "100gbit", "--ops", "all_gather")
    rows = [re.findall(r"[\w.]+", line) for line in out.splitlines() if "2 x 8" in line]
    assert [row[5] for row in rows] == ["rails", "nccl", "host"]
    assert "PCIe out" in out and "device memory" in out


def test_one_host_takes_peer_and_no_link(capsys):
    _, out, _ = run(capsys, "--hosts", "1", "--gpus", "4", "--json")
    rows = json.loads(out)["rows"]
    assert {row["route"] for row in rows} == {"peer", "nccl", "host"}
    assert len(rows) == 12  # once, not for each rate
    assert not any(term["name"] in ("NIC", "lane") for row in rows for term in row["terms"])


def test_a_ring_that_is_too_small_is_named(capsys):
    _, out, _ = run(
        capsys, "--hosts", "64", "--rate", "100gbit", "--ops", "reduce_scatter", "--json"
    )
    rows = {row["route"]: row for row in json.loads(out)["rows"]}
    assert rows["rails"]["unavailable"] == "--ring must be at least 128 MiB"
    assert "seconds" in rows["nccl"]
    again = ("--hosts", "64", "--rate", "100gbit", "--ops", "reduce_scatter", "--ring", "128M")
    _, out, _ = run(capsys, *again, "--json")
    assert all("seconds" in row for row in json.loads(out)["rows"])
    _, out, _ = run(capsys, *again[:-2])
    assert "note: rails, 64 x 8, reduce_scatter: --ring must be at least 128 MiB" in out


def test_own_speeds_replace_the_defaults(capsys, tmp_path):
    file = tmp_path / "own.json"
    file.write_text('{"nvlink": {"value": 150, "source": "nvbandwidth"}, "lane": 5.4}')
    arguments = ("--hosts", "2", "--rate", "400gbit", "--ops", "all_gather", "--routes", "rails")
    code, out, _ = run(capsys, *arguments, "--constants", str(file), "--set", "pcie=25", "--json")
    document = json.loads(out)
    own = document["constants"]
    assert code == 0 and own["nvlink"]["value"] == 150 and own["lane"]["value"] == 5.4
    assert own["nvlink"]["source"] == f"given: {file}: nvbandwidth"
    assert (own["pcie"]["source"], own["pcie"]["value"]) == ("given: --set", 25)
    terms = {term["name"]: term for term in document["rows"][0]["terms"]}
    assert terms["lane"]["speed"] == pytest.approx(4 * 5.4e9)
    assert terms["NVLink"]["source"] == f"given: {file}: nvbandwidth"
    assert terms["PCIe in"]["seconds"] == pytest.approx(GIB / 8 / 25e9)
    assert "assumed: link_share;" in " ".join(document["notes"])


def bench_document(**more) -> dict:
    """Two ranks on one GPU; quartiles in ms."""
    rows = [
        {"op": "all_gather", "bytes": 1 << 20, "copies": [9, 9, 9], "cpu": [9, 9, 9], "device": [9, 9, 9]},
        {"op": "all_gather", "bytes": 10**8, "copies": [3, 4, 5], "cpu": [90, 100, 110], "device": [30, 40, 50]},
        {"op": "reduce_scatter", "bytes": 10**8, "copies": [1, 2, 3], "cpu": [5, 6, 7], "device": [49, 50, 51]},
        {"op": "all_reduce", "bytes": 10**8, "copies": [1, 2, 3], "cpu": [5, 6, 7], "device": "refused"},
        {"op": "fsdp2", "weights": 1},
    ]  # fmt: skip
    document = {"device": "cuda", "world": 2, "gpus": 1, "path": "shared memory", "rows": rows}
    return {**document, "transport": "", **more}


def test_speeds_from_a_document_of_bench():
    assert constants.from_bench(bench_document()) == pytest.approx(
        {"pcie": 50, "host_gather": 5, "host_reduce_scatter": 4}
    )
    assert constants.from_bench(bench_document(gpus=2))["pcie"] == 25
    loopback = {"path": "multicast", "transport": "udp lo 127.0.0.1, mtu 65536"}
    assert constants.from_bench(bench_document(**loopback)) == pytest.approx(
        {"pcie": 50, "lane": 2}
    )
    # On a network the NIC may be what limits the lane.
    network = {"path": "multicast", "transport": "udp eth0 10.0.0.1, mtu 9000"}
    assert "lane" not in constants.from_bench(bench_document(**network))


def test_a_document_of_bench_is_a_file_of_constants(capsys, tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(bench_document()))
    _, out, _ = run(capsys, "--constants", str(file), "--json")
    own = json.loads(out)["constants"]
    assert own["pcie"]["value"] == 50
    assert own["pcie"]["source"] == f"given: {file} (torch-mcast bench --device cuda)"
    assert own["host_all_reduce"] == vars(TABLE["host_all_reduce"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--hosts", "1", "--gpus", "1"), "one GPU has no collectives"),
        (("--hosts", "two"), "--hosts two: write numbers"),
        (("--hosts", "0"), "must be positive"),
        (("--channels", "0"), "must be positive"),
        (("--rate", "fast"), "rate 'fast' is not a number"),
        (("--rate", "none"), "--rate none: a rate is needed"),
        (("--size", "0"), "--size must be positive"),
        (("--ops", "all_gather,scan"), "--ops scan: known are all_gather, broadcast"),
        (("--routes", "mail"), "--routes mail: known are rails, peer, nccl, host"),
        (("--set", "nvlink"), "--set nvlink: write NAME=NUMBER"),
        (("--set", "nvlink=fast"), "--set nvlink=fast: write NAME=NUMBER"),
        (("--set", "warp=9"), "--set: no constant 'warp'; known are link_share, lane"),
        (("--set", "lane=-1"), "given: --set: lane is -1; it must be positive"),
        (("--set", "lane=inf"), "lane is inf; it must be positive"),
        (("--set", "link_share=1.5"), "link_share is 1.5; it must be in (0, 1]"),
        (("--constants", "/nonexistent/file"), "--constants /nonexistent/file: No such file"),
    ],
)
def test_questions_without_sense(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("torch-mcast estimate gpu: ") and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "an object is needed"),
        ('{"lane": "2"}', "lane is '2', not a number"),
        ('{"lane": true}', "lane is True, not a number"),
        ('{"lane": {"source": "x"}}', "lane is None, not a number"),
        ('{"lan": 2}', "no constant 'lan'"),
        ('{"rows": [], "world": 2}', "not a document of bench: KeyError('path')"),
        ('{"rows": [], "world": 2, "path": "ring"}', "this document of bench gives no constant"),
    ],
)
def test_files_that_are_no_constants(capsys, tmp_path, text, said):
    file = tmp_path / "own.json"
    file.write_text(text)
    code, _, err = run(capsys, "--constants", str(file))
    assert code == 2 and str(file) in err and said in err
