"""The host engine: groups of ranks whose networking another process does."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import test_training
import torch
import unit_files
import yaml
from forked import Forked
from host_engine import end, start
from waiting import until

from torch_mcast.engine import NoEngine, main, read
from torch_mcast.lab.state import STATE_DIR
from torch_mcast.secret import text_of

COMMAND = [sys.executable, "-m", "torch_mcast.engine"]


@pytest.fixture
def engine(tmp_path):
    path = tmp_path / "engine.sock"
    process = start(path)
    yield path
    end(process)


@pytest.mark.parametrize("name", ["fsdp2_fp32", "ddp"])
def test_training_through_the_engine_has_the_bits_of_gloo(ranks, engine, name):
    case = test_training.CASES[name]
    ours = ranks(2, test_training.run, *case, env={"MCAST_ENGINE": f"host:{engine}"})
    theirs = ranks(2, test_training.run, *case, backend="gloo")
    test_training.assert_parity(ours, theirs)
    clients = read(engine)["clients"]
    assert len(clients) == 2 and all(c["arena_bytes"] > 0 and c["in_flight"] == 0 for c in clients)


TRAIN = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
import torch_mcast
rank, store = int(sys.argv[1]), sys.argv[2]
interfaces = open("/proc/net/dev").read().count(":")
dist.init_process_group("mcast", init_method=f"file://{store}", rank=rank, world_size=2,
                        timeout=timedelta(seconds=60))
x = torch.full((100_000,), float(rank + 1))
dist.all_reduce(x)
out = torch.empty(2 * x.numel())
dist.all_gather_into_tensor(out, x)
dist.barrier()
assert torch.equal(out, torch.full_like(out, 3.0))
print(interfaces, torch_mcast.stats()["path"])
dist.destroy_process_group()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own takes root")
def test_ranks_without_any_network(engine, tmp_path):
    """Each rank is in a network namespace where not even loopback is up."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ranks = [
        Forked(
            [str(script), str(rank), str(tmp_path / "store")],
            {**os.environ, "MCAST_ENGINE": f"host:{engine}", "MCAST_SOCKET_IFNAME": "lo"},
            new_network=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        said, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert said.split() == ["1", "shared", "memory"]


# Like TRAIN, but with FSDP2, and a process that makes a network socket is killed, so there is no
# Gloo. Once the engine has been found, no socket may be made at all.
CAGED = """
import os, pickle, pwd, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/support", {tests!r} + "/lifecycle"]
import sandbox
for family in (2, 10, 16, 17):  # AF_INET, AF_INET6, AF_NETLINK, AF_PACKET
    sandbox.kill([("socket", {{0: family}})])
if sys.argv[1] == "proof":
    import socket
    socket.socket()
import test_training
import torch.distributed as dist
import torch_mcast
dist.init_process_group("mcast", init_method=sys.argv[3], rank=int(sys.argv[1]), world_size=2,
                        pg_options=torch_mcast.Options(fallback="none"))
dist.barrier()
pwd.getpwuid(os.getuid())  # glibc looks for nscd once, by a socket; torch asks for the user's name
sandbox.kill([("socket", {{}})])
trained = test_training.run(*test_training.CASES["fsdp2_fp32"])
assert torch_mcast.stats()["calls"]["all_gather_into_tensor"]["engine"] > 0
dist.destroy_process_group()
with open(sys.argv[2] + sys.argv[1], "wb") as file:
    pickle.dump(trained, file)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace of its own takes root")
@pytest.mark.parametrize(
    ("memory", "meet"),
    [
        ("map_all", "engine"),
        pytest.param("slots", "file", marks=pytest.mark.all_tier),
        pytest.param("copy", "file", marks=pytest.mark.all_tier),
    ],
)
def test_fsdp2_where_sockets_kill(ranks, stores, tmp_path, memory, meet):
    """Each rank has no network, and may not even make a network socket; after the start, no socket
    of any kind."""
    engine, port = stores
    url = f"file://{tmp_path}/store" if meet == "file" else f"engine://127.0.0.1:{port}/caged"
    script = tmp_path / "train.py"
    script.write_text(CAGED.format(tests=str(Path(__file__).parent)))
    settings = {
        "MCAST_ENGINE": f"host:{engine}",
        "MCAST_ENGINE_MEMORY": memory,
        # Equal to the ranks that it is compared with: else matrices are multiplied in another
        # order.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }

    def rank(which: str) -> subprocess.Popen[bytes]:
        results = str(tmp_path / "store")
        command = ["unshare", "--net", sys.executable, str(script), which, results, url]
        return subprocess.Popen(command, env={**os.environ, **settings}, stderr=subprocess.PIPE)

    assert rank("proof").wait(60) == -signal.SIGSYS
    for process in [rank("0"), rank("1")]:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    ours = [pickle.loads((tmp_path / f"store{r}").read_bytes()) for r in range(2)]
    test_training.assert_parity(
        ours, ranks(2, test_training.run, *test_training.CASES["fsdp2_fp32"], backend="gloo")
    )


def test_auto_takes_this_process_where_no_engine_answers(ranks, tmp_path):
    assert ranks(2, add, env={"MCAST_ENGINE": f"auto:{tmp_path}/nobody.sock"}) == [3.0, 3.0]


def add() -> float:
    x = torch.ones(10) * (torch.distributed.get_rank() + 1)
    torch.distributed.all_reduce(x)
    return float(x[0])


def test_status(engine, tmp_path):
    asked = subprocess.run(
        [*COMMAND, "status", "--json", "--socket", str(engine)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    status = json.loads(asked.stdout)
    assert status["socket"] == str(engine) and status["clients"] == []
    table = subprocess.run(
        [*COMMAND, "status", "--socket", str(engine)], capture_output=True, text=True, check=True
    )
    assert f"process {status['pid']}, at {engine}" in table.stdout
    assert status["security"] == {"modes": ["off"], "secret": False}
    assert "security: off: it has no secret" in table.stdout
    nobody = subprocess.run(
        [*COMMAND, "status", "--socket", str(tmp_path / "no.sock")], capture_output=True, text=True
    )
    assert nobody.returncode == 1 and "no engine answers" in nobody.stderr
    with pytest.raises(NoEngine):
        read(tmp_path / "no.sock")


def test_an_engine_says_what_it_guards(tmp_path, monkeypatch):
    """Options, or the variables of a rank, set the modes; its log, status and doctor report them,
    never the secret."""
    socket, secret = tmp_path / "engine.sock", tmp_path / "secret"
    secret.write_text(text_of(b"\xab" * 32))
    secret.chmod(0o600)
    monkeypatch.setenv("MCAST_SECRET_FILE", str(secret))
    monkeypatch.setenv("MCAST_SECURITY", "sealed")
    process = start(socket)
    guards = read(socket)["security"]
    assert guards["modes"] == ["sealed"] and guards["secret"] is True
    asked = [
        forked.run(
            ["-m", *command],
            {**os.environ, "MCAST_ENGINE": f"host:{socket}", "MCAST_SECRET_FILE": ""},
        ).stdout
        for command in (
            ["torch_mcast.engine", "status", "--socket", str(socket)],
            ["torch_mcast.doctor", "--json", "--local"],
        )
    ]  # fmt: skip
    end(process)
    assert "security: sealed\n" in asked[0]
    rows = {row["check"]: row for row in json.loads(asked[1])["findings"]}
    assert "and has a secret: security=sealed" in rows["engine"]["finding"]
    assert rows["secret"]["verdict"] == "ok" and "keys and guards" in rows["security"]["finding"]
    assert "ab" * 16 not in "".join(asked)
    secret.unlink()
    command = [*COMMAND, "run", "--socket", str(socket)]
    gone = subprocess.run(command, capture_output=True, text=True)
    assert gone.returncode == 1 and "No such file" in gone.stderr


def test_two_engines_at_one_socket(engine):
    second = subprocess.run(
        [*COMMAND, "run", "--socket", str(engine)], capture_output=True, text=True, timeout=30
    )
    assert second.returncode == 1
    assert f"another engine answers at {engine}" in second.stderr


@pytest.mark.parametrize(
    "options, text",
    [
        (["--arenas", "1M"], '"1M" is not valid; allowed: 64M to 16384G'),
        (["--mode", "999"], "three octal digits"),
        (["--groups", "0"], "a whole number from 1 to 65535"),
        (["--nosuch"], 'no option "--nosuch"'),
        (["--allow", "root,nosuchuser"], '"root,nosuchuser" is not valid; allowed: users of'),
        (["--group", "nosuchgroup"], "a group of this system"),
        (["--goodbye", "-1"], "seconds from 0 to 86400"),
        (["--guardian", "maybe"], '"maybe" is not valid; allowed: on or off'),
        (["--security", "auth,open"], '"auth,open" is not valid; allowed: off, auth and sealed'),
        (["--security", "off,off"], '"off,off" is not valid'),
    ],
)
def test_wrong_options_end_with_2(options, text):
    wrong = subprocess.run([*COMMAND, "run", *options], capture_output=True, text=True)
    assert wrong.returncode == 2 and text in wrong.stderr


@pytest.mark.parametrize(
    "command, code",
    [(["run"], 2), (["run", "--help"], 0), (["drain", "--limit", "1"], 1)],
)
def test_only_an_engine_minds_the_variable_of_modes(tmp_path, command, code):
    env = {**os.environ, "MCAST_SECURITY": "open"}
    where = ["--socket", str(tmp_path / "engine.sock")]
    told = subprocess.run(
        [*COMMAND, command[0], *where, *command[1:]], capture_output=True, text=True, env=env
    )
    assert told.returncode == code
    assert ("environment variable MCAST_SECURITY" in told.stderr) == (code == 2)


def test_status_of_an_engine_that_knows_no_modes(monkeypatch, capsys, engine):
    """The engine is older than the secret: an administrator checks its status before replacing it."""
    older = read(engine)
    del older["security"]
    older["clients"] = [
        {"pid": 7, "uid": 0, "in_flight": 0, "arena_bytes": 0, "copies": "none", "bounce_bytes": 0}
        | {"groups": ["0"]}
    ]
    monkeypatch.setattr("torch_mcast.engine.cli.read", lambda *_: older)
    assert main(["status"]) == 0
    assert "security: off: it has no secret" in capsys.readouterr().out


def test_without_the_program_the_command_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch_mcast._program.__file__", str(tmp_path / "b.py"))
    assert main(["run"]) == 1
    assert "was built without it" in capsys.readouterr().err
    assert main([]) == 2


def test_a_killed_engine_leaves_a_socket_that_the_next_one_takes(tmp_path):
    path = tmp_path / "engine.sock"
    first = start(path)
    first.kill()
    first.communicate()
    assert path.exists()
    second = start(path)
    assert guardian_of(read(path)["pid"]) == second.pid
    end(second)
    assert list(tmp_path.iterdir()) == []


def guardian_of(pid: int) -> int:
    """Returns the parent process of the engine's process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_without_a_guardian_there_is_one_process(tmp_path):
    process = start(tmp_path / "engine.sock", "--guardian", "off")
    assert read(tmp_path / "engine.sock")["pid"] == process.pid
    end(process)


def test_a_guardian_ends_a_stopped_engine(tmp_path):
    process = start(tmp_path / "engine.sock", "--silence", "2000")
    os.kill(read(tmp_path / "engine.sock")["pid"], signal.SIGSTOP)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "has not run for" in said and "(state T): it is killed" in said


def drain(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "drain", "--socket", str(path), *options],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_drain_and_the_next_engine(tmp_path):
    """A connection that sends nothing is a client, which keeps the engine running until it closes."""
    path = tmp_path / "engine.sock"
    first = start(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        until(lambda: read(path)["clients"], "the engine counts its client")
        assert read(path)["draining"] is False
        told = drain(path)
        assert told.returncode == 0 and "ends within 600.0 s" in told.stdout
        assert drain(path, "--limit", "700").stdout.strip().endswith("600.0 s"), (
            "the earlier end holds"
        )
        status = read(path)
        assert status["draining"] is True and status["drain_limit_s"] == 600
        assert 0 < status["drain_left_s"] <= 600
        table = subprocess.run(
            [*COMMAND, "status", "--socket", str(path)], capture_output=True, text=True, check=True
        )
        assert "draining: no new clients or groups" in table.stdout
        second = start(path)
        assert guardian_of(read(path)["pid"]) == second.pid
        assert read(path)["draining"] is False
        assert first.poll() is None
    assert first.wait(timeout=60) == 0
    assert "another engine has taken over" in first.stderr.read()
    assert guardian_of(read(path)["pid"]) == second.pid
    end(second)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_replaces_one(tmp_path):
    path = tmp_path / "engine.sock"
    first = start(path)
    second = start(path, "--replace", "on")
    assert first.wait(timeout=60) == 0, "nobody used it: it has drained at once"
    assert guardian_of(read(path)["pid"]) == second.pid
    end(second)


def test_drain_where_there_is_none(tmp_path):
    none = drain(tmp_path / "engine.sock")
    assert none.returncode == 1 and "no engine answers" in none.stderr
    wrong = drain(tmp_path / "engine.sock", "--limit", "soon")
    assert wrong.returncode == 2 and '"soon" is not valid; allowed: seconds' in wrong.stderr


def install(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "install", *arguments], capture_output=True, text=True)


def test_the_unit_is_one(tmp_path):
    written = install("systemd", "--write", str(tmp_path), "--socket", "/run/engines/e.sock")
    unit = tmp_path / "torch-mcast-engine@.service"
    assert written.stdout.strip() == str(unit)
    one = tmp_path / "torch-mcast-engine@a.service"
    one.write_text(unit.read_text())
    unit_files.verify(one)
    assert "RuntimeDirectory=engines\n" in unit.read_text()
    # Clients have time to leave before the supervisor kills.
    goodbye, stop = (
        int(re.search(rf"^{name}(\d+)", unit.read_text(), re.M)[1])
        for name in ("ExecStart=.* --goodbye ", "TimeoutStopSec=")
    )
    assert goodbye == 600 < stop


def test_no_two_daemons_share_a_folder_or_leave_dumps():
    """systemd gives the folder of a unit to the unit's user and removes it when the unit stops; a
    user who can write to the engine's folder can pose as the engine."""
    service = Path(__file__).parents[2] / "tools" / "torch-mcast-aggregator.service"
    units = [install("systemd").stdout, service.read_text()]
    folders = [re.search(r"^RuntimeDirectory=(\S+)", unit, re.M)[1] for unit in units]
    folders.append(STATE_DIR.name)
    assert sorted(set(folders)) == sorted(folders)
    for unit in units:
        assert "\nLimitCORE=0\n" in unit and "\nMemoryMax=" in unit
    assert "\nOOMScoreAdjust=-" in units[0]


def started_as(line: list[str], path: Path) -> None:
    """Checks that the program accepts the options of a supervisor's command line."""
    run = line.index("run")
    at = line.index("--socket")
    options = [*line[run + 1 : at], *line[at + 2 :]]
    end(start(path, *[o for o in options if not o.startswith("$")]))


def test_the_unit_s_command_runs(tmp_path):
    text = install("systemd").stdout
    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert "--socket /run/torch-mcast/engine.sock" in line
    started_as(line.split(), tmp_path / "engine.sock")
    wrong = install("systemd", "--socket", "/tmp/a/b/engine.sock")
    assert wrong.returncode == 2 and "below /run" in wrong.stderr
    assert install("systemd", "--write", str(tmp_path / "none")).returncode == 1


def daemonset_at(path: Path) -> dict:
    """Returns the contents of the file; if there is a kubectl, it checks them against Kubernetes'
    own types."""
    read = yaml.safe_load(path.read_text())
    assert (read["apiVersion"], read["kind"]) == ("apps/v1", "DaemonSet")
    if shutil.which("kubectl") is None:
        return read
    told = subprocess.run(
        ["kubectl", "annotate", "--local", "-o", "json", "a=b", "-f", str(path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(told.stdout)


def test_the_daemonset_is_one(tmp_path):
    install("kubernetes", "--write", str(tmp_path), "--image", "here/mcast:7", "--group", "1234")
    spec = daemonset_at(tmp_path / "torch-mcast-engine.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["hostNetwork"] and "hostPID" not in spec
    assert spec["securityContext"]["runAsUser"] == 1234
    assert container["image"] == "here/mcast:7"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    goodbye = int(container["command"][container["command"].index("--goodbye") + 1])
    assert goodbye == 600 < spec["terminationGracePeriodSeconds"]
    (volume,) = spec["volumes"]
    assert (
        volume["hostPath"]["path"]
        == container["volumeMounts"][0]["mountPath"]
        == "/run/torch-mcast"
    )
    started_as(container["command"], tmp_path / "engine.sock")


def test_the_doctor_knows_the_engine(engine, tmp_path):
    def row(setting: str) -> dict:
        asked = forked.run(
            ["-m", "torch_mcast.doctor", "--json", "--local"],
            {**os.environ, "MCAST_ENGINE": setting},
        )
        rows = {row["check"]: row for row in json.loads(asked.stdout)["findings"]}
        return {**rows["engine"], "code": asked.returncode, "rows": rows}

    here = row(f"host:{engine}")
    assert (here["verdict"], here["data"]["takes"]) == ("ok", "host")
    assert here["data"]["status"]["limits"]["groups"] == 256
    assert "engine memory" in here["rows"]
    nobody = row(f"host:{tmp_path}/no.sock")
    assert (nobody["verdict"], nobody["code"]) == ("fail", 1)
