"""Commands of the lab: concurrent, interrupted, with tools in unusual places, and with failures."""

import os
import signal
import subprocess

import pytest
from waiting import until

from torch_mcast.lab import Lab, LabError, LabSpec, cli, state, system
from torch_mcast.lab.system import package_root, python_argv

ENV = {**os.environ, "PYTHONPATH": package_root()}
CLI = python_argv("cli")


def blocked_on_the_lock(process):
    """Returns whether this process waits for the labs' lock: /proc/locks marks waiters with an arrow."""
    inode = f":{(state.STATE_DIR / '.lock').stat().st_ino} "
    with open("/proc/locks") as locks:
        return any("->" in line and inode in line and f" {process.pid} " in line for line in locks)


@pytest.mark.usefixtures("lab_rights")
@pytest.mark.parametrize("command", ["set", "down"])
def test_commands_that_change_a_lab_wait_for_each_other(command):
    name = f"w{os.getpid()}"
    lab = Lab(LabSpec(hosts=1), name, persistent=True).up()
    argv = ["set", "--lab", name, "--rate", "h1", "1gbit"] if command == "set" else ["down", name]
    try:
        with state.lock(), state.lock():  # it can be nested
            process = subprocess.Popen([*CLI, *argv], env=ENV, stderr=subprocess.PIPE, text=True)
            until(lambda: blocked_on_the_lock(process), "it waits for the lock", process=process)
            assert state.path_of(name).exists() and lab.spec.rate_of("h1") is None
        assert process.wait(60) == 0
        if command == "set":
            assert Lab.attach(name).spec.rate_of("h1") == 10**9
    finally:
        lab.down()
    assert not state.path_of(name).exists()


@pytest.mark.usefixtures("lab_rights")
def test_a_change_that_comes_too_late_does_not_bring_a_lab_back():
    name = f"l{os.getpid()}"
    Lab(LabSpec(hosts=1), name, persistent=True).up()
    late = Lab.attach(name)
    state.destroy(name)
    with pytest.raises(LabError, match="no lab"):
        late._save()
    assert not state.path_of(name).exists()


@pytest.mark.usefixtures("lab_rights")
def test_ranks_that_ignore_an_interrupt_are_ended():
    script = "trap '' INT TERM; echo $MCAST_LAB; while :; do sleep 0.1; done"
    argv = ["run", "--hosts", "1", "--grace", "0.3", "--", "sh", "-c", script]
    with subprocess.Popen(
        [*CLI, *argv], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        lab_id = run.stdout.readline().split()[1]
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT
    assert "ending 1 ranks that still run after 0.3 s" in errors
    assert not state.path_of(lab_id).exists()


def fake(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_tools_run_where_they_were_found(tmp_path, monkeypatch):
    # Like /usr/sbin, which is searched, but is in few users' PATH.
    where = fake(tmp_path / "sbin", "ip", "echo mine $PATH")
    monkeypatch.setattr(system, "_path", lambda: f"/usr/bin:/bin:{tmp_path / 'sbin'}")
    monkeypatch.setattr(system.shutil, "which", lambda name, path=None: str(where) if (
        name == "ip" and str(tmp_path) in (path or "")) else f"/usr/bin/{name}")  # fmt: skip
    assert system.call(["ip", "link"]).split()[0] == "mine"
    assert str(tmp_path / "sbin") in system.call(["ip", "link"])  # for programs that ip runs
    lab = Lab(LabSpec(hosts=1))
    assert lab.inside("h1", ["true"])[0] == str(where)


def test_a_tool_that_does_not_end_is_one_error(tmp_path, monkeypatch):
    where = fake(tmp_path, "slow", "exec sleep 100")
    monkeypatch.setattr(system, "_CALL_S", 0.1)
    with pytest.raises(LabError, match=r"slow: has not ended after 0\.1 s"):
        system.call([str(where)])


@pytest.mark.parametrize("failure", [OSError("no room"), subprocess.TimeoutExpired("x", 3)])
def test_an_error_of_the_system_is_reported_in_one_line(monkeypatch, capsys, failure):
    def refuse(*_args):
        raise failure

    monkeypatch.setattr(state, "collect_garbage", refuse)
    assert cli.main(["status"]) == 2
    errors = capsys.readouterr().err.strip()
    assert errors == f"torch-mcast lab: {failure}" and "\n" not in errors


def test_a_damaged_state_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "STATE_DIR", tmp_path)
    (tmp_path / "half.json").write_text('{"id": "ha')
    with pytest.raises(LabError, match=r"half\.json is damaged"):
        state.load("half")


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("kernel/apparmor_restrict_unprivileged_userns", "1\n", "Ubuntu, from 23.10 on"),
        ("kernel/unprivileged_userns_clone", "0\n", "for root"),
        ("user/max_user_namespaces", "0\n", "max_user_namespaces=10000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0\n", "--privileged"),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_named(
    tmp_path, monkeypatch, name, value, words
):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(value)
    monkeypatch.setattr(system, "_SYSCTLS", tmp_path)
    monkeypatch.setattr(system, "check_tools", lambda: None)
    monkeypatch.setattr(system, "capable", lambda: False)
    monkeypatch.setattr(system, "rootless_possible", lambda: False)
    with pytest.raises(LabError, match="needs root") as caught:
        system.require_rights()
    assert words in str(caught.value)
