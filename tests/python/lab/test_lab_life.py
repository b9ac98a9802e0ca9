"""Labs are created and removed, and leave nothing behind."""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from lab_fixtures import skip_or_fail

from torch_mcast.lab import Lab, LabError, LabSpec, build, state, system, topology
from torch_mcast.lab.system import package_root, python_argv

pytestmark = pytest.mark.usefixtures("lab_rights")
ENV = {**os.environ, "PYTHONPATH": package_root()}
CLI = python_argv("cli")  # `-m torch_mcast.lab` without the import of torch


def cli(*args, **options):
    return subprocess.run(
        [*CLI, *args], env=ENV, capture_output=True, text=True, timeout=120, **options
    )


def namespaces(lab_id):
    return system.namespaces(topology.prefix(lab_id))


def test_a_lab_is_gone_after_its_block(monkeypatch):
    monkeypatch.setattr(state, "_ROOM", 0)
    with Lab(LabSpec(hosts=2)) as lab:
        assert len(namespaces(lab.id)) == 3
        sleeper = lab.popen("h1", ["sleep", "1000"])
        folder = lab.scratch("files")
        memory = lab.scratch("files", in_memory=True)
        for place in (folder, memory):
            (place / "one").touch()
        assert memory.is_relative_to("/dev/shm") and not folder.is_relative_to("/dev/shm")
        assert lab.run("h2", ["hostname"]).stdout == "h2\n"
    assert namespaces(lab.id) == [] and not state.path_of(lab.id).exists()
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not folder.parent.exists() and not memory.parent.exists()


def test_a_lab_that_cannot_be_built_leaves_nothing(monkeypatch):
    def fail(*_args):
        raise LabError("no")

    monkeypatch.setattr(build, "shape", fail)
    lab = Lab(LabSpec(hosts=2))
    with pytest.raises(LabError):
        lab.up()
    assert namespaces(lab.id) == [] and not state.path_of(lab.id).exists()


def test_two_labs_at_once_do_not_hear_each_other(traffic):
    with Lab(LabSpec(hosts=2)) as one, Lab(LabSpec(hosts=2)) as two:
        assert one.host("h2").address == two.host("h2").address
        with traffic(one).echo("h2"):
            assert traffic(one).answers("h1", "h2")
            assert not traffic(two).answers("h1", "h2")
        one.down()
        assert two.run("h1", ["hostname"]).stdout == "h1\n"


def test_a_killed_owner_leaves_nothing():
    script = (
        "from torch_mcast.lab import Lab, LabSpec\n"
        "lab = Lab(LabSpec(hosts=2)).up()\n"
        "sleeper = lab.popen('h1', ['sleep', '1000'])\n"
        "print(lab.id, lab._reaper.pid, sleeper.pid, flush=True)\n"
        "import signal; signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=ENV, stdout=subprocess.PIPE, text=True
    ) as owner:
        lab_id, reaper, sleeper = owner.stdout.readline().split()
        assert len(namespaces(lab_id)) == 3
        gone = [os.pidfd_open(int(pid)) for pid in (reaper, sleeper)]
        owner.kill()
    for fd in gone:  # readable when the process has ended
        assert _readable(fd, 20)
        os.close(fd)
    assert namespaces(lab_id) == [] and not state.path_of(lab_id).exists()


def _readable(fd, limit_s):
    return bool(select.select([fd], [], [], limit_s)[0])


def test_the_next_lab_collects_what_owner_and_reaper_left():
    script = (
        "import os, signal\n"
        "from torch_mcast.lab import Lab, LabSpec\n"
        "lab = Lab(LabSpec(hosts=2)).up()\n"
        "lab._reaper.kill(); lab._reaper.wait()\n"
        "print(lab.id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENV, stdout=subprocess.PIPE, text=True, timeout=60
    )
    lab_id = done.stdout.strip()
    assert len(namespaces(lab_id)) == 3
    with Lab(LabSpec(hosts=1)):
        assert namespaces(lab_id) == [] and not state.path_of(lab_id).exists()


def test_a_live_owners_lab_is_not_collected():
    with Lab(LabSpec(hosts=1)) as lab:
        assert lab.id not in state.collect_garbage()
        assert len(namespaces(lab.id)) == 2


def test_a_reused_process_id_is_not_the_owner():
    pid, start = state.process_identity(os.getpid())
    assert state.owner_alive({"owner": [pid, start]})
    assert not state.owner_alive({"owner": [pid, start - 1]})


def test_up_exec_set_counters_down():
    name = f"t{os.getpid()}"
    assert cli("up", "--name", name, "--hosts", "2", "--rate", "1gbit").returncode == 0
    try:
        assert cli("up", "--name", name).returncode == 2
        assert cli("exec", "--lab", name, "h2", "--", "hostname").stdout == "h2\n"
        assert cli("exec", "--lab", name, "h1", "--", "sh", "-c", "exit 7").returncode == 7
        assert cli("set", "--lab", name, "--cut", "h2", "--loss", "1%").returncode == 0
        status = cli("status").stdout
        assert f"{name}: 2 hosts" in status and "cut off: h2" in status and "loss 0.01" in status
        assert '"fabric_bytes": ' in cli("counters", "--lab", name, "--json").stdout
    finally:
        down = cli("down", name)
    assert down.returncode == 0 and namespaces(name) == []
    assert cli("exec", "--lab", name, "h1", "--", "true").returncode == 2


def test_run_gives_torchruns_environment_and_prefixes_lines():
    done = cli(
        "run",
        "--hosts",
        "2",
        "--ranks-per-host",
        "2",
        "--",
        "sh",
        "-c",
        "echo $(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK "
        "$MASTER_ADDR $MCAST_SOCKET_IFNAME",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[h1/0] h1 0/4 0/2 0 10.99.0.1 eth0",
        "[h1/1] h1 1/4 1/2 0 10.99.0.1 eth0",
        "[h2/2] h2 2/4 0/2 1 10.99.0.1 eth0",
        "[h2/3] h2 3/4 1/2 1 10.99.0.1 eth0",
    ]


@pytest.mark.parametrize(
    "failure, code, words",
    [("exit 5", 5, "exit code 5"), ("kill -KILL $$", 128 + 9, "signal SIGKILL")],
)
def test_run_returns_the_first_failure_and_ends_the_rest(failure, code, words):
    done = cli(
        "run",
        "--hosts",
        "2",
        "--grace",
        "0.2",
        "--",
        "sh",
        "-c",
        f"[ $RANK = 0 ] || {failure}; exec sleep 1000",
    )
    assert done.returncode == code
    assert f"rank 1 on h2 ended with {words}" in done.stderr


@pytest.mark.parametrize("child", ["", "sleep 1000 & "], ids=["alone", "a child holds the pipe"])
def test_all_that_ranks_have_written_is_shown(child):
    done = cli("run", "--hosts", "2", "--", "sh", "-c", child + "seq 200000; printf end")
    assert done.returncode == 0
    written = [*map(str, range(1, 200_001)), "end"]
    for start in ("[h1/0] ", "[h2/1] "):
        shown = [line for line in done.stdout.splitlines() if line.startswith(start)]
        assert [line.removeprefix(start) for line in shown] == written


# A shell may lose a signal while it starts a program, and signal.pause() one that arrives just before it. When
# the first rank ends, the launcher ends the others, which must not happen before INT.
CATCHES = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print(os.environ["MCAST_LAB"], flush=True)
signal.sigwait([signal.SIGINT])
print("caught", flush=True)
os._exit(9)
"""


def test_interrupt_reaches_the_ranks_and_the_lab_goes():
    with subprocess.Popen(
        [*CLI, "run", "--hosts", "2", "--", sys.executable, "-S", "-c", CATCHES],
        env=ENV,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        lines = [run.stdout.readline() for _ in range(2)]
        lab_id = lines[0].split()[1]
        run.send_signal(signal.SIGINT)
        rest = run.stdout.read()
    assert rest.count("caught") == 2 and run.returncode == 128 + signal.SIGINT
    assert namespaces(lab_id) == []


def test_an_aggregator_command_runs_beside_the_ranks():
    done = cli(
        "run",
        "--hosts",
        "1",
        "--aggregators",
        "1",
        "--aggregator-command",
        "sh -c 'hostname; echo up > /tmp/$MCAST_LAB; exec sleep 1000'",
        "--",
        "sh",
        "-c",
        "while ! [ -e /tmp/$MCAST_LAB ]; do sleep 0.05; done; rm /tmp/$MCAST_LAB; "
        "echo $MCAST_LAB_AGGREGATORS",
    )
    assert done.returncode == 0
    assert set(done.stdout.splitlines()) == {"[a1] a1", "[h1/0] 10.99.0.2"}


@pytest.fixture
def readable_package():
    """Makes a copy of the package for a user who may not read the folder of the tests."""
    with tempfile.TemporaryDirectory(prefix="mcast_lab_") as folder:
        copy = Path(folder) / "torch_mcast"
        os.chmod(folder, 0o755)
        shutil.copytree(
            Path(package_root()) / "torch_mcast",
            copy,
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield copy


def test_rootless_where_the_kernel_allows_it(readable_package):
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else; without root the other tests show it")
    python = Path("/usr/bin/python3")
    if not python.exists() or not system.rootless_possible():
        skip_or_fail("no user namespaces or no /usr/bin/python3")
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
            *python_argv("cli", python=str(python), package=readable_package),
            "run",
            "--hosts",
            "2",
            "--rate",
            "1gbit",
            "--",
            "hostname",
        ],
        env=ENV,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[h1/0] h1", "[h2/1] h2"]
