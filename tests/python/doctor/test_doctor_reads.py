"""The checks as the doctor runs them, with made-up contents of the system's files and of a
launcher's variables."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

import torch_mcast
from torch_mcast.doctor.checks import (
    buffers,
    engine,
    firewall,
    host,
    limits,
    memory,
    mtu,
    multicast,
    routing,
)
from torch_mcast.doctor.context import Context
from torch_mcast.doctor.findings import Verdict
from torch_mcast.doctor.netif import Interface, Route

ETH = Interface("eth0", 2, "10.0.0.1", 24, 1500, up=True, multicast=True)
LO = Interface("lo", 1, "127.0.0.1", 8, 65536, up=True, loopback=True)
OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
MULTICAST, SITE = 0xE0000000, 0xEF000000
REJECTING = Route("*", MULTICAST, 0xF0000000, 0, True)


def context(environment: dict[str, str] | None = None, **more) -> Context:
    values = {
        "algorithm": "auto", "max_mtu": "9000", "ttl": "1", "rcvbuf": "33554432", "sndbuf": "1048576",
        **more.pop("values", {}),
    }  # fmt: skip
    return Context(environment or {}, values, **{"chosen": ETH, "loopback": LO, **more})


@pytest.fixture
def sysctls(monkeypatch, tmp_path):
    """Returns a function that sets /proc/sys/net/ipv4/conf/NAME, as the routing checks see it."""
    monkeypatch.setattr(routing, "Path", lambda path: Path(f"{tmp_path}{path}"))

    def put(name: str, value: int) -> None:
        path = tmp_path / "proc/sys/net/ipv4/conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    return put


def test_the_longest_mask_counts_before_the_least_metric():
    slow, fast = (Route(f"eth{n}", MULTICAST, 0xF0000000, n, False) for n in (100, 50))
    site = Route("eth7", SITE, 0xFF000000, 700, False)
    assert routing.best_route([slow, fast]) is fast and routing.best_route([fast, slow]) is fast
    assert routing.best_route([slow, site, fast]) is site
    assert routing.best_route([Route("eth1", 0x0A000000, 0xFF000000, 0, False)]) is None


@pytest.mark.parametrize(("value", "strict"), [(0, []), (1, ["eth0"]), (2, [])])
def test_only_1_is_strict_reverse_path_filtering(sysctls, value, strict):
    sysctls("all/rp_filter", 0)
    sysctls("eth0/rp_filter", value)
    assert routing._strict(["all", "eth0", "none"]) == strict


@pytest.mark.parametrize(
    ("of_all", "own", "forced"),
    [(0, 0, False), (0, 1, True), (0, 2, True), (0, 3, False), (1, 0, True), (2, 0, True)],
)
def test_igmp_is_forced_for_all_or_for_one_interface(sysctls, of_all, own, forced):
    sysctls("all/force_igmp_version", of_all)
    sysctls("eth0/force_igmp_version", own)
    assert routing._forced("eth0") is forced


def test_a_rejecting_route_matters_where_multicast_did_not_arrive(sysctls, monkeypatch, tmp_path):
    monkeypatch.setattr(routing, "_IGMP", tmp_path / "none")

    def judged(**more) -> tuple[Verdict, str]:
        (route,) = routing.run(context(routes=[REJECTING], **more))
        return route.verdict, route.fix.partition("  (")[0]

    assert judged() == judged(unreached={"lo"}) == (OK, "")
    replace = "ip route replace 239.0.0.0/8 dev"
    assert judged(unreached={"eth0"}) == (WARN, f"{replace} eth0")
    assert judged(chosen=None) == (WARN, f"{replace} DEV")  # not tried


def test_strict_filtering_matters_beyond_one_subnet(sysctls, monkeypatch, tmp_path):
    monkeypatch.setattr(routing, "_IGMP", tmp_path / "none")
    sysctls("eth0/rp_filter", 1)

    def checks(ttl: str) -> list[str]:
        return [row.check for row in routing.run(context(values={"ttl": ttl}))]

    assert checks("1") == ["route 224.0.0.0/4"]
    assert checks("2") == ["route 224.0.0.0/4", "rp_filter"]


def test_an_igmp_version_is_blamed_on_who_asks_for_it(sysctls, monkeypatch, tmp_path):
    table = tmp_path / "igmp"
    monkeypatch.setattr(routing, "_IGMP", table)
    table.write_text("Idx\tDevice    : Count Querier\tGroup\n2\teth0      :     2      V2\n")
    (_, asked) = routing.run(context())
    assert "a querier of this network asks for version 2" in asked.finding
    sysctls("eth0/force_igmp_version", 2)
    (_, forced) = routing.run(context())
    assert "force_igmp_version asks for version 2" in forced.finding


def test_open_files_are_for_the_whole_job_and_memory_for_its_ranks_here(monkeypatch):
    monkeypatch.setattr(memory, "read_by_child", lambda: "")
    job = context({"WORLD_SIZE": "4000", "LOCAL_WORLD_SIZE": "8"})
    assert limits.run(job)[0].data["needed"] == 256 + 6 * 4000
    assert memory.run(job)[1].data["needed"] == 8 * (64 << 20)
    assert limits.run(context())[0].data["needed"] == 256 + 6
    assert memory.run(context())[1].data["needed"] == 64 << 20


def test_memory_that_is_free_is_what_users_may_take(monkeypatch):
    monkeypatch.setattr(memory, "read_by_child", lambda: "")
    room = os.statvfs_result((4096, 1024, 400, 300, 200, 0, 0, 0, 0, 255))
    monkeypatch.setattr(memory.os, "statvfs", lambda path: room)
    shm = memory.run(context())[1]
    assert (shm.data["total"], shm.data["free"]) == (400 * 1024, 200 * 1024)


def test_cpus_are_those_that_this_process_may_use(monkeypatch, tmp_path):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {0, 2, 5})
    monkeypatch.setattr(host, "address_of", lambda name: "127.0.0.1")
    monkeypatch.setattr(host, "_CPU_MAX", tmp_path / "cpu.max")

    def cpus(ranks: int) -> tuple[Verdict, dict]:
        row, _ = host.run(context({"LOCAL_WORLD_SIZE": str(ranks), "WORLD_SIZE": "64"}))
        return row.verdict, row.data

    assert cpus(3) == (OK, {"cpus": 3, "quota": None, "ranks": 3})
    assert cpus(4)[0] is WARN
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert cpus(3) == (WARN, {"cpus": 3, "quota": 2.0, "ranks": 3})


def test_each_buffer_is_tried_with_its_own_size(monkeypatch):
    monkeypatch.setattr(buffers, "measure", lambda receive, asked: 2 * asked if receive else asked)
    receive, send = buffers.run(context())
    assert (receive.check, receive.data) == (
        "receive buffer",
        {"asked": 32 << 20, "granted": 32 << 20},
    )
    assert (send.check, send.data) == ("send buffer", {"asked": 1 << 20, "granted": 1 << 19})


STATUS = {
    "version": torch_mcast.__version__, "pid": 7, "clients": [], "draining": False,
    "limits": {"clients": 64, "groups": 256, "operations": 4096, "arena_bytes": 64 << 30},
}  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "takes"),
    [
        ({}, "host"),  # no launcher: ranks may be on any host
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, "host"),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, "inproc"),
    ],
)
def test_an_engine_is_taken_unless_all_ranks_are_known_to_be_here(environment, takes, monkeypatch):
    monkeypatch.setattr(engine, "look", lambda path, user: engine.Seen(path, STATUS))
    row, *_ = engine.run(context(environment, values={"engine": "auto"}))
    assert (row.verdict, row.data["takes"]) == (OK, takes)


def test_without_an_engine_that_was_asked_for_its_memory_is_no_row(monkeypatch):
    monkeypatch.setattr(engine, "look", lambda path, user: engine.Seen(path, silent="none"))
    assert len(engine.run(context())) == 1
    assert len(engine.run(context(values={"engine": "host"}))) == 2


@pytest.mark.parametrize(
    ("uid", "scope", "open_here", "copies"),
    [
        (4711, 0, True, "process_vm"),
        (4711, 1, True, "descriptor"),
        (4711, 1, False, "none"),
        (0, 1, True, "process_vm"),  # root may trace
        (0, 1, False, "process_vm"),
    ],
)
def test_the_way_to_copy_depends_on_user_and_ptrace_scope(
    uid, scope, open_here, copies, monkeypatch, tmp_path
):
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(engine, "_PTRACE_SCOPE", tmp_path / "scope")
    monkeypatch.setattr(engine.os, "stat", lambda path: os.stat_result((0, 0, 0, 0, uid, *[0] * 5)))
    monkeypatch.setattr(engine.os, "geteuid", lambda: uid)
    monkeypatch.setattr(engine.os, "access", lambda *_: open_here)
    assert engine.copies_by(7) == copies
    monkeypatch.setattr(engine.os, "geteuid", lambda: uid + 1)
    assert engine.copies_by(7) == ("descriptor" if open_here else "none")


def test_fixes_of_sizes_are_large_enough():
    arenas = engine.judge_memory("map", "0", 16 << 30, 8 << 30)
    assert arenas.fix == "torch-mcast engine run --arenas 17G ..."
    shm = {ranks: memory.judge_shm(64 << 20, 0, ranks).fix for ranks in (8, 16, 17, 40)}
    assert [
        f"--shm-size={size}g" in shm[ranks] for ranks, size in ((8, 1), (16, 1), (17, 2), (40, 4))
    ] == [True] * 4
    few = {hard: limits.judge_files(64, hard, 1000).fix for hard in (64, 6255)}
    assert all("nofile 8192" in fix for fix in few.values())


def test_few_open_files_fail_below_what_a_process_alone_needs():
    assert limits.judge_files(127, 127, 2).verdict is FAIL
    assert limits.judge_files(128, 128, 2).verdict is WARN
    assert limits.judge_files(256 + 12, 256 + 12, 2).verdict is OK
    assert limits.judge_files(256 + 11, 256 + 11, 2).verdict is WARN
    unlimited = limits.judge_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2)
    assert (
        unlimited.finding.startswith("unlimited")
        and "127;" in limits.judge_files(127, 127, 2).finding
    )


def test_ranks_of_one_host_need_no_packet_filter_to_let_them_in(monkeypatch):
    asked = []
    monkeypatch.setattr(firewall, "read_chains", lambda name: asked.append(name))
    for chosen in (None, LO, Interface("eth1", 3, up=True)):
        (row,) = firewall.run(context(chosen=chosen))
        assert (row.verdict, asked) == (OK, []) and "not looked at" in row.finding
    (row,) = firewall.run(context())
    assert asked == ["eth0"] and "not known" in row.finding

    def odd(name):
        raise ValueError("line 3")

    monkeypatch.setattr(firewall, "read_chains", odd)
    (row,) = firewall.run(context())
    assert (row.verdict, row.data) == (OK, {"read": False}) and "line 3" in row.finding


def test_a_packet_filter_is_asked_for_the_ports_of_the_job(monkeypatch, tmp_path):
    dropping = firewall.iptables.read("-P INPUT DROP")
    monkeypatch.setattr(firewall, "read_chains", lambda name: dropping)
    monkeypatch.setattr(firewall, "_LOCAL_PORTS", tmp_path / "range")

    def tcp(port_range: str) -> list[str]:
        rows = firewall.run(context(values={"port_range": port_range}))
        return [f"{row.finding} {row.fix}" for row in rows if row.data["packets"] == "TCP"]

    (narrow,) = tcp("42000-42999")
    assert "TCP (ports 42000 to 42999)" in narrow and "--dport 42000:42999" in narrow
    (any_port,) = tcp("")
    assert "TCP (ports 32768 to 60999)" in any_port and "MCAST_PORT_RANGE" in any_port
    (tmp_path / "range").write_text("1024\t2048\n")
    assert "TCP (ports 1024 to 2048)" in tcp("")[0]


def test_ranks_of_a_host_share_the_address_space_of_pools(monkeypatch):
    monkeypatch.setattr(engine, "_POOLS", 8 << 20)
    monkeypatch.setattr(engine.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert [engine.pool_bytes(ranks) >> 20 for ranks in (0, 1, 2, 8)] == [8, 8, 4, 1]
    monkeypatch.setattr(engine.resource, "getrlimit", lambda _: (8 << 20, 8 << 20))
    assert engine.pool_bytes(1) == 2 << 20


@pytest.mark.parametrize(("size", "proposed"), [(9000, 1500), (1400, 1400)])
def test_a_full_datagram_that_is_lost_calls_for_an_mtu_that_arrives(size, proposed):
    interface = Interface("eth0", 2, "10.0.0.1", 24, size, up=True, multicast=True)
    row = mtu.judge(interface, 9000, mtu.Result(size - 28, False, "not received"))
    assert (row.verdict, row.fix) == (WARN, f"export MCAST_MAX_MTU={proposed}")


def test_an_interface_where_multicast_does_not_arrive_is_remembered(monkeypatch):
    monkeypatch.setattr(multicast, "round_trip", lambda i, ttl: (i is LO, "lost"))
    monkeypatch.setattr(multicast.firewall, "manager_here", lambda name: "ufw")
    monkeypatch.setattr(multicast, "try_joins", lambda interface: (16, ""))
    seen = context()
    found = {row.check: row for row in multicast.run(seen)}
    assert seen.unreached == {"eth0"}
    assert {name: row.verdict for name, row in found.items()} == {
        "multicast on eth0": WARN,
        "multicast on lo": OK,
        "memberships": OK,
    }
    assert found["multicast on eth0"].fix.startswith("ufw allow in on eth0")
    assert "not tried" in mtu.run(context(unreached={"eth0", "lo"}))[0].finding


def test_paths_are_the_chosen_interface_and_loopback_each_once():
    assert context().paths == [ETH, LO]
    assert context(chosen=LO).paths == [LO]
    assert context(chosen=None).paths == [LO] and context(loopback=None).paths == [ETH]


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", None), ("42000", (42000, 42000)), ("42000-42999", (42000, 42999)), ("many", None)],
)
def test_ports_are_both_ends_of_the_setting(text, ports):
    assert context(values={"port_range": text}).ports == ports


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("", 1), ("-3", 1), ("many", 1), ("٣", 1)])
def test_a_count_that_is_none_is_the_default(text, count):
    assert context({"WORLD_SIZE": text}).whole("WORLD_SIZE", 1) == count
