"""The judgement of each check on made-up figures."""

import os
import resource
import threading

import pytest

from torch_mcast.doctor.checks import (
    buffers,
    engine,
    host,
    interfaces,
    limits,
    memory,
    mtu,
    multicast,
    offload,
    rdma,
    routing,
    run_all,
    settings,
    tcp,
    versions,
)
from torch_mcast.doctor.context import Context, resolve
from torch_mcast.doctor.findings import Verdict, exit_code, ok, worst
from torch_mcast.doctor.netif import Interface, Route

ETH = Interface("eth0", 2, "10.0.0.1", 24, 1500, up=True, multicast=True)
LO = Interface("lo", 1, "127.0.0.1", 8, 65536, up=True, loopback=True)
KNOWN = {"MCAST_EAGER", "MCAST_SOCKET_IFNAME", "MCAST_RCVBUF", "MCAST_SNDBUF", "MCAST_TTL"}
OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL


@pytest.mark.parametrize(
    ("built", "present", "distributed", "error", "verdict"),
    [
        ("2.13.0", "2.13.0", True, "", OK),
        ("2.13.0", "2.13.1", True, "", OK),
        ("2.12.0", "2.13.0", True, "ImportError: built for torch 2.12.0", FAIL),
        ("2.13.0+cpu", "", False, "ModuleNotFoundError: torch", FAIL),
        ("2.13.0", "2.13.0", False, "", FAIL),
    ],
)
def test_torch(built, present, distributed, error, verdict):
    finding = versions.judge_torch(built, present, distributed, error)
    assert finding.verdict is verdict
    if error and present:
        assert error in finding.finding
        assert finding.fix.startswith("pip install")


def test_torch_that_is_there_and_broken():
    finding = versions.judge_torch(
        "2.13.0", "2.13.0+cpu", False, "x", "OSError: libtorch.so: file too short"
    )
    assert finding.verdict is FAIL and "file too short" in finding.finding
    assert finding.fix.startswith(
        "pip install --force-reinstall torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu "
    )


def test_without_any_torch_its_sizes_are_told():
    finding = versions.judge_torch("", "", False, "x")
    assert finding.fix.startswith("pip install torch  (") and "whl/cpu" in finding.fix
    assert "whl/cpu" in versions.judge_torch("2.13.0+cpu", "", False, "x").fix


def test_python_files_and_extension_of_one_version():
    assert versions.judge_package("0.2", "0.2").verdict is OK
    finding = versions.judge_package("0.2", "0.1")
    assert finding.verdict is FAIL
    assert "0.1" in finding.finding


def test_python_and_kernel():
    assert versions.judge_python((3, 9), "3.9.1").verdict is FAIL
    assert versions.judge_python((3, 10), "3.10.0").verdict is OK
    assert versions.judge_kernel("Linux", "4.19.0-x").verdict is WARN
    assert versions.judge_kernel("Linux", "5.0.1").verdict is OK
    assert versions.judge_kernel("Darwin", "23.0").verdict is FAIL


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("MCAST_EAGR", "MCAST_EAGER"),
        ("MCAST_RCVBUFF", "MCAST_RCVBUF"),
        ("MCAST_SOCKET_IFNAMES", "MCAST_SOCKET_IFNAME"),
        ("mcast_eager", "MCAST_EAGER"),
        ("MCAST_QUITE_ELSE", ""),
    ],
)
def test_unknown_variable(name, guess):
    (finding,) = settings.judge_names({name: "7", "PATH": "/bin"}, KNOWN)
    assert finding.verdict is WARN
    assert finding.data == {"variable": name, "nearest": guess}
    assert f"unset {name}" in finding.fix
    assert (f'export {guess}="7"' in finding.fix) == bool(guess)


def test_known_and_project_variables_are_quiet():
    environment = {"MCAST_EAGER": "1", "MCAST_LAB_HOST": "h1", "MCAST_CI": "1", "HOME": "/"}
    assert settings.judge_names(environment, KNOWN) == []


def test_active_faults_are_reported():
    assert settings.judge_faults("") == []
    assert settings.judge_faults("drop:rate=0.1")[0].verdict is WARN


def test_no_table_of_settings_is_a_failure():
    (finding,) = settings.run(Context({}, {}, extension_error="ImportError: x"))
    assert finding.verdict is FAIL
    assert "not checked" in finding.finding


def test_every_bad_value_is_named_and_good_ones_kept():
    class Options:  # refuses non-numbers one setting at a time, as the extension does
        def __init__(self, **given):
            self.given = given
            for name, text in given.items():
                if not text.isdigit():
                    raise ValueError(
                        f'torch_mcast.Options: setting {name}: "{text}" from option '
                        f"{name} is not valid"
                    )

        def resolved(self):
            return {name: str(int(text)) for name, text in self.given.items()}

    rows = [{"name": n, "env": f"MCAST_{n.upper()}", "default": "1"} for n in ("a", "b", "c", "d")]
    environment = {"MCAST_A": "x", "MCAST_B": "007", "MCAST_C": "y", "MCAST_D": " "}
    values, bad = resolve(Options, rows, environment)
    assert values == {"a": "1", "b": "7", "c": "1", "d": "1"}
    assert set(bad) == {"MCAST_A", "MCAST_C"}
    assert bad["MCAST_A"] == ('setting a: "x" from environment variable MCAST_A is not valid')
    assert all(f.verdict is FAIL for f in settings.judge_values(bad))


def test_interface_used():
    good = interfaces.judge_chosen(ETH, "why not", [LO, ETH], "auto")
    assert good.verdict is OK
    assert "why not" in good.finding
    none = interfaces.judge_chosen(None, "no match", [LO, ETH], "auto")
    assert none.verdict is FAIL
    assert none.fix == 'export MCAST_SOCKET_IFNAME="=eth0"'
    only = interfaces.judge_chosen(LO, "none else", [LO], "auto")
    assert only.verdict is WARN
    plain = Interface("eth0", 2, "10.0.0.1", 24, 1500, up=True)
    assert interfaces.judge_chosen(plain, "", [plain], "auto").verdict is WARN
    assert interfaces.judge_chosen(plain, "", [plain], "multicast").verdict is FAIL
    assert interfaces.judge_loopback(None)[0].verdict is FAIL


def test_route():
    default = Route("eth1", 0, 0, 0, False)
    rejecting = Route("*", 0xE0000000, 0xF0000000, 0, True)
    assert routing.best_route([default, rejecting]) is rejecting
    stopped = routing.judge_route([default, rejecting], "eth0", passes=False)
    assert stopped.verdict is WARN and "until reboot" in stopped.fix
    # No alarm if datagrams pass anyway.
    assert routing.judge_route([default, rejecting], "eth0", passes=True).verdict is OK
    other = routing.judge_route([default], "eth0", passes=True)
    assert other.verdict is OK
    assert "ignored" in other.finding
    assert routing.judge_route([], "eth0", passes=True).verdict is OK


IGMP = """Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
1\tlo        :     1      V3
\t\t\t\t010000E0     1 0:00000000\t\t0
2\teth0      :     2      V2
\t\t\t\t010000E0     1 0:00000000\t\t0
14\tbond0.100:     1      V3
\t\t\t\t010000E0     1 0:00000000\t\t0
"""


def test_the_version_of_igmp():
    assert [routing.igmp_version(IGMP, name) for name in ("lo", "eth0", "bond0.100", "eth1")] == [
        3,
        2,
        3,
        0,
    ]
    assert routing.judge_igmp(3, "eth0", False) == routing.judge_igmp(0, "", False) == []
    (asked,) = routing.judge_igmp(2, "eth0", False)
    assert (
        asked.verdict is WARN and "querier" in asked.finding and "mcast_igmp_version 3" in asked.fix
    )
    (forced,) = routing.judge_igmp(2, "eth0", True)
    assert "force_igmp_version=0" in forced.fix


def test_strict_reverse_path_filter():
    assert routing.judge_rp_filter([], "eth0") == []
    assert "conf.eth0.rp_filter=2" in routing.judge_rp_filter(["all"], "eth0")[0].fix


@pytest.mark.parametrize(("algorithm", "verdict"), [("auto", WARN), ("multicast", FAIL)])
def test_multicast_that_does_not_come_back(algorithm, verdict):
    assert multicast.judge_round_trip(ETH, False, "lost", algorithm).verdict is verdict
    assert multicast.judge_round_trip(ETH, True, "", algorithm).verdict is OK
    begins = {"ufw": "ufw allow in on eth0", "firewalld": "firewall-cmd", "iptables": "iptables"}
    for manager, words in begins.items():
        fix = multicast.judge_round_trip(ETH, False, "lost", algorithm, manager).fix
        assert fix.startswith(words) and "if the row firewall says" in fix


def test_memberships():
    assert multicast.judge_memberships(20, 16, "").verdict is OK
    few = multicast.judge_memberships(5, 5, "No buffer space available")
    assert few.verdict is WARN
    assert "igmp_max_memberships" in few.fix and "ulimit" not in few.fix
    files = multicast.judge_memberships(20, 5, "Too many open files").fix
    assert files.startswith("ulimit -n 65536  (in this shell")
    assert multicast.judge_memberships(0, 0, "x").verdict is FAIL


def test_where_multicast_does_not_arrive_nothing_else_is_blamed():
    values = {"max_mtu": "9000", "ttl": "1", "algorithm": "auto"}
    context = Context({}, values, chosen=ETH, loopback=LO, unreached={"eth0", "lo"})
    findings = [*mtu.run(context), *offload.run(context)]
    assert len(findings) == 5
    assert all("not tried" in f.finding and not f.fix for f in findings)


@pytest.mark.parametrize(
    ("size", "max_mtu", "result", "verdict", "words"),
    [
        (1500, 9000, mtu.Result(1472, True), OK, "jumbo"),
        (9000, 9000, mtu.Result(8972, True), OK, "8972"),
        (9000, 1500, mtu.Result(1472, True), OK, "MCAST_MAX_MTU is 1500"),
        (1400, 9000, mtu.Result(1372, True), WARN, "below Ethernet"),
        (9000, 9000, mtu.Result(8972, False, "not received"), WARN, "not received"),
        (1500, 9000, mtu.Result(1472, True, fragments=True), WARN, "fragmented"),
        (68, 9000, mtu.Result(40), FAIL, "no room"),
    ],
)
def test_mtu(size, max_mtu, result, verdict, words):
    interface = Interface("eth0", 2, "10.0.0.1", 24, size, up=True, multicast=True)
    finding = mtu.judge(interface, max_mtu, result)
    assert finding.verdict is verdict
    assert words in finding.finding


def test_buffers():
    assert buffers.judge(True, 32 << 20, 64 << 20).verdict is OK
    short = buffers.judge(True, 32 << 20, 425984)
    assert short.verdict is WARN
    assert short.fix.startswith("sysctl -w net.core.rmem_max=33554432  (until reboot; to keep it: ")
    assert short.data == {"asked": 33554432, "granted": 212992}
    assert buffers.judge(False, 1 << 20, 1).fix.startswith("sysctl -w net.core.wmem_max=")
    assert [buffers.size_text(n) for n in (1, 2048, 3 << 20)] == ["1 B", "2 KiB", "3 MiB"]


def test_offload():
    assert offload.judge_gso("eth0", offload.Result(8)).verdict is OK
    assert offload.judge_gso("eth0", offload.Result(problem="Input/output error")).verdict is WARN
    assert offload.judge_gro(offload.Result(8, True)).verdict is OK
    assert offload.judge_gro(offload.Result(8, False)).verdict is WARN


def test_tcp():
    assert tcp.judge(ETH, "").verdict is OK
    assert tcp.judge(ETH, "timed out").verdict is FAIL


def test_rdma():
    assert rdma.judge("auto", "").verdict is OK
    assert "used between hosts" in rdma.judge("auto", "").finding
    assert "transport=udp" in rdma.judge("udp", "").finding
    assert rdma.judge("auto", "this host has no RDMA device").verdict is OK
    assert rdma.judge("auto", "no active RDMA port; there are: mlx5_0:1").verdict is WARN
    failed = rdma.judge("verbs", "this host has no RDMA device")
    assert failed.verdict is FAIL and failed.fix


def test_files():
    unlimited = resource.RLIM_INFINITY
    assert limits.judge_files(1024, 4096, 8).verdict is OK
    assert limits.judge_files(unlimited, unlimited, 4096).verdict is OK
    # The engine raises the soft limit up to the hard one.
    assert limits.judge_files(1024, unlimited, 1000).verdict is OK
    few = limits.judge_files(1024, 4096, 1000)
    assert few.verdict is WARN and "nofile 8192" in few.fix and "limits.d/" in few.fix
    assert limits.judge_files(64, 64, 2).verdict is FAIL


def test_memlock_matters_with_rdma_only():
    assert limits.judge_memlock(8 << 20, []).verdict is OK
    short = limits.judge_memlock(8 << 20, ["mlx5_0"])
    assert short.verdict is WARN and '"*' not in short.fix  # for one user
    assert limits.judge_memlock(resource.RLIM_INFINITY, ["mlx5_0"]).verdict is OK


def test_readv_and_shm():
    assert memory.judge_readv("", "1").verdict is OK
    yama = memory.judge_readv("Operation not permitted", "2")
    assert yama.fix.startswith("sysctl -w kernel.yama.ptrace_scope=1  (until reboot")
    assert "from the next boot on" in memory.judge_readv("Operation not permitted", "3").fix
    assert "SYS_PTRACE" in memory.judge_readv("Operation not permitted", "").fix
    assert memory.judge_shm(64 << 20, 64 << 20, 1).verdict is OK
    small = memory.judge_shm(64 << 20, 60 << 20, 8)
    assert small.verdict is WARN
    assert "--shm-size=1g" in small.fix


def test_cpus():
    assert host.judge_cpus(8, None, 8).verdict is OK
    assert host.judge_cpus(4, None, 8).verdict is WARN
    quoted = host.judge_cpus(64, 2.0, 8)
    assert (quoted.verdict, quoted.fix) == (WARN, "torchrun --nproc-per-node 2")
    assert [host.quota(t) for t in ("max 100000", "150000 100000", "", "1 0")] == [
        None,
        1.5,
        None,
        None,
    ]


def test_host_name():
    assert host.address_of("localhost") in ("127.0.0.1", "::1")
    unknown = host.judge_name("bare", host.address_of("no-such-name.invalid"))
    assert unknown.verdict is WARN and "--local-addr" in unknown.fix
    assert host.judge_name("node1", "10.1.0.1").verdict is OK


def test_a_name_server_that_hangs_is_not_waited_for(monkeypatch):
    forever, asked = threading.Event(), threading.Event()

    def hang(*_, **__):
        asked.set()
        forever.wait(60)
        raise OSError

    monkeypatch.setattr(host.socket, "getaddrinfo", hang)
    assert host.address_of("bare", 0.01) == "" and asked.wait(60)
    forever.set()


def test_a_check_that_breaks_is_a_row_and_the_rest_still_runs():
    def broken(context):
        raise KeyError("gone")

    findings = run_all(Context({}, {}), (broken, lambda context: [ok("next", "fine")]))
    assert [f.verdict for f in findings] == [FAIL, OK]
    assert "gone" in findings[0].finding


def test_exit_code_is_that_of_the_worst():
    assert worst([]) is OK
    assert [exit_code(v) for v in (OK, WARN, FAIL)] == [0, 0, 1]
    assert worst([ok("a", ""), *settings.judge_values({"MCAST_A": "bad"})]) is FAIL


LIMITS = {"clients": 64, "groups": 256, "operations": 4096, "arena_bytes": 64 << 30}
ENGINE = {"version": "0.2", "pid": 7, "clients": [], "draining": False, "limits": LIMITS}
PLACE = "/run/x/engine.sock"


@pytest.mark.parametrize(
    ("where", "seen", "one_host", "verdict", "takes", "words"),
    [
        ("inproc", {}, False, OK, "inproc", "no engine responds at /run/x/engine.sock"),
        ("auto", {}, False, OK, "inproc", "each rank runs its own network"),
        ("host", {}, False, FAIL, "none", "no group can be made"),
        ("host", {"status": ENGINE}, False, OK, "host", "4096 operations, 64 GiB shared"),
        ("host", {"status": ENGINE}, True, OK, "host", "MCAST_ENGINE=host: it runs the network"),
        ("auto", {"status": ENGINE}, False, OK, "host", "MCAST_ENGINE=auto: it runs the network"),
        ("auto", {"status": ENGINE}, True, OK, "inproc", "each rank runs its own network"),
        ("inproc", {"status": ENGINE}, False, OK, "inproc", "each rank runs its own network"),
        ("host", {"status": ENGINE, "closed_to": "mcast"}, False, FAIL, "none", "may not connect"),
        (
            "auto",
            {"status": ENGINE, "closed_to": "mcast"},
            False,
            WARN,
            "inproc",
            "may not connect",
        ),
        (
            "inproc",
            {"status": ENGINE, "closed_to": "mcast"},
            False,
            OK,
            "inproc",
            "may not connect",
        ),
        (
            "host",
            {"status": {**ENGINE, "draining": True}},
            False,
            WARN,
            "next",
            "is being replaced",
        ),
        (
            "host",
            {"status": {**ENGINE, "version": "0.1"}},
            False,
            WARN,
            "host",
            "process is of 0.2",
        ),
        ("inproc", {"status": {**ENGINE, "version": "0.1"}}, False, OK, "inproc", "0.1, process 7"),
    ],
)
def test_engine(where, seen, one_host, verdict, takes, words):
    finding = engine.judge_engine(where, engine.Seen(PLACE, **seen), "0.2", one_host)
    assert (finding.verdict, finding.data["takes"]) == (verdict, takes)
    assert words in finding.finding
    if verdict is FAIL and "closed_to" in seen:
        assert finding.fix.startswith("usermod --append --groups mcast")
    elif verdict is FAIL:
        assert finding.fix == f"torch-mcast engine run --socket {PLACE}"


@pytest.mark.parametrize(
    ("where", "modes", "mode", "verdict", "takes", "words"),
    [
        ("host", ["auth", "sealed"], "sealed", OK, "host", "and has a secret: security=sealed"),
        ("host", ["auth", "sealed"], "off", FAIL, "none", "serves security auth, sealed, not off"),
        ("host", ["auth"], "sealed", FAIL, "none", "serves security auth, not sealed"),
        ("auto", ["auth"], "auth", OK, "host", "ranks with another secret do not use the engine"),
        ("host", None, "sealed", FAIL, "none", "serves security off, not sealed"),
        ("auto", ["off"], "auth", WARN, "inproc", "serves security off, not auth"),
        ("inproc", ["off"], "auth", OK, "inproc", "each rank runs its own network"),
    ],
)
def test_engine_security(where, modes, mode, verdict, takes, words):
    guards = {} if modes is None else {"security": {"modes": modes, "secret": True}}
    seen = engine.Seen(PLACE, {**ENGINE, **guards})
    finding = engine.judge_engine(where, seen, "0.2", False, mode)
    assert (finding.verdict, finding.data["takes"]) == (verdict, takes)
    assert words in finding.finding
    if verdict is not OK:
        want = "--secret-file" if modes in (None, ["off"]) else f"MCAST_SECURITY={modes[-1]}"
        assert want in finding.fix


def test_engine_setting():
    assert engine.parse("inproc") == ("inproc", "/run/torch-mcast/engine.sock")
    assert engine.parse("host:/a/b:c") == ("host", "/a/b:c")
    assert engine.parse("auto") == ("auto", "/run/torch-mcast/engine.sock")


@pytest.mark.parametrize(
    ("setting", "overcommit", "most", "verdict", "possible", "words"),
    [
        ("slots", "0", None, OK, True, "MCAST_ENGINE_MEMORY=map is possible"),
        ("slots", "2", None, OK, False, "map is not possible: vm.overcommit_memory is 2"),
        ("map", "1", 32 << 30, OK, True, "tensors that a group allocates are mapped, up to 16 GiB"),
        ("map_all", "1", 32 << 30, OK, True, "tensors of 1 MiB and more are mapped, up to 16 GiB"),
        ("map_all", "2", 32 << 30, WARN, False, "tensors are copied: vm.overcommit_memory is 2"),
        ("map", "2", 32 << 30, WARN, False, "tensors are copied: vm.overcommit_memory is 2"),
        ("map", "0", 8 << 30, WARN, False, "more than the engine's --arenas 8 GiB"),
    ],
)
def test_engine_memory(setting, overcommit, most, verdict, possible, words):
    finding = engine.judge_memory(setting, overcommit, 16 << 30, most)
    assert (finding.verdict, finding.data["map"]) == (verdict, possible)
    assert words in finding.finding
    assert (finding.fix == "") == (verdict is OK)


@pytest.mark.parametrize(
    ("setting", "copies", "verdict", "words"),
    [
        ("copy", "process_vm", OK, "copy: the engine copies tensors by process_vm_readv"),
        ("copy", "descriptor", OK, "copy: the engine copies tensors by the ranks' /proc/self/mem"),
        ("copy", "none", WARN, "copy is requested, but tensors are copied by the ranks"),
        ("copy", "", OK, "no engine responds"),
        ("auto", "process_vm", OK, "auto: the engine copies tensors by process_vm_readv"),
        ("auto", "descriptor", OK, "auto: tensors are copied by the ranks"),
    ],
)
def test_engine_copies(setting, copies, verdict, words):
    finding = engine.judge_memory(setting, "0", 16 << 30, 32 << 30, copies)
    assert finding.verdict == verdict and finding.data["copies"] == copies
    assert words in finding.finding
    assert (finding.fix == "") == (verdict is OK)


def test_how_an_engine_would_copy(monkeypatch, tmp_path):
    scope = tmp_path / "ptrace_scope"
    scope.write_text("1\n")
    monkeypatch.setattr(engine, "_PTRACE_SCOPE", scope)
    monkeypatch.setattr(engine.os, "geteuid", lambda: os.getuid() + 1)
    assert engine.copies_by(os.getpid()) == "descriptor"
    monkeypatch.setattr(engine.os, "geteuid", os.getuid)
    assert engine.copies_by(os.getpid()) == ("process_vm" if os.getuid() == 0 else "descriptor")
    scope.write_text("0\n")
    assert engine.copies_by(os.getpid()) == "process_vm"
    monkeypatch.setattr(engine.os, "access", lambda *_: False)
    assert engine.copies_by(2**30) == "none"
