"""Workers in hosts: functions sent, results collected, ranks killed, stopped and replaced. No torch."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from waiting import until

from torch_mcast.lab.calls import WorkerFailure
from torch_mcast.lab.pool import Pool
from torch_mcast.lab.system import package_root
from torch_mcast.lab.zygote import Order, Zygote


def test_values_come_by_rank_from_their_hosts(lab):
    cluster = lab(hosts=2, ranks_per_host=2)
    values = cluster.run(lambda ctx, x: (ctx.rank, ctx.local_rank, socket.gethostname(), x * 2), 21)
    assert values == [(0, 0, "h1", 42), (1, 1, "h1", 42), (2, 0, "h2", 42), (3, 1, "h2", 42)]


def test_workers_stay_and_rendezvous_ports_differ(lab):
    cluster = lab(hosts=2, ranks_per_host=2)

    def look(ctx):
        sys.modules.setdefault("kept_between_calls", os)
        return os.getpid(), ctx.init_method

    one, two = cluster.run(look), cluster.run(look)
    assert [pid for pid, _ in one] == [pid for pid, _ in two]
    assert len({method for _, method in one}) == 1 and one[0][1] != two[0][1]


def at_the_top_of_a_module(ctx, x):
    return ctx.rank + x


def test_functions_of_a_test_module_are_found(loopback):
    assert loopback(2).run(at_the_top_of_a_module, 10) == [10, 11]


def test_lab_code_does_not_import_torch(lab):
    assert not any(lab(hosts=2, ranks_per_host=2).run(lambda ctx: "torch" in sys.modules))


def test_an_error_names_the_rank_and_shows_its_output(loopback):
    def fail(ctx):
        print("before the end", flush=True)
        if ctx.rank == 1:
            raise KeyError("lost")
        return "fine"

    with pytest.raises(WorkerFailure) as caught:
        loopback(2).run(fail)
    assert "rank 1 error" in str(caught.value) and "before the end" in str(caught.value)
    ok, bad = caught.value.outcomes
    assert ok.ok and ok.value == "fine"
    assert isinstance(bad.error, KeyError)


def test_a_killed_rank_is_reported_and_replaced(loopback):
    cluster = loopback(2)

    def hang(ctx):
        ctx.notify("here", os.getpid())
        return ctx.wait("go")

    call = cluster.start(hang)
    pids = call.wait("here")
    cluster.pool.kill(1)
    call.signal("go", "value", ranks=[0])
    zero, one = call.outcomes(30)
    assert zero.value == "value" and one.state == "died" and one.text == "signal SIGKILL"
    again = cluster.run(lambda ctx: os.getpid())
    assert again[0] == pids[0] and again[1] != pids[1]


def test_a_stopped_rank_is_late_and_a_resumed_one_answers(loopback):
    cluster = loopback(2)

    def ready(ctx):
        ctx.notify("here")
        ctx.wait("go")
        return ctx.rank

    call = cluster.start(ready)
    call.wait("here")
    cluster.pool.stop(0)
    status = Path(f"/proc/{cluster.pool.pid(0)}/status")
    until(lambda: "State:\tT" in status.read_text(), "the rank's stop")
    call.signal("go")
    with pytest.raises(TimeoutError):
        call.wait("never", ranks=[0], timeout_s=0.2)
    cluster.pool.resume(0)
    assert call.results(30) == [0, 1]

    call = cluster.start(ready)
    call.wait("here")
    cluster.pool.stop(0)
    call.signal("go")
    states = [outcome.state for outcome in call.outcomes(1.0)]
    assert states == ["late", "ok"]
    assert cluster.run(lambda ctx: ctx.rank) == [0, 1]


def test_the_environment_of_a_call_ends_with_it(loopback):
    cluster = loopback(2)
    assert cluster.run(lambda ctx: os.environ.get("X"), env={"X": "1"}) == ["1", "1"]
    assert cluster.run(lambda ctx: os.environ.get("X")) == [None, None]


def test_closing_ends_the_workers():
    with Pool.on_loopback(2) as pool:
        pids = pool.run(lambda ctx: os.getpid())
        fds = [os.pidfd_open(pid) for pid in pids]
    for fd in fds:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(fd, 0)
        os.close(fd)


def test_workers_die_with_their_driver(tmp_path):
    """Busy workers, too: here they sleep in a call."""
    script = (
        "import time\n"
        "from torch_mcast.lab.pool import Pool\n"
        "pool = Pool.on_loopback(2)\n"
        "def hang(ctx):\n"
        "    ctx.notify('here', __import__('os').getpid())\n"
        "    time.sleep(1000)\n"
        "call = pool.start(hang)\n"
        "print(*call.wait('here'), flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": package_root(), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        fds = [os.pidfd_open(int(pid)) for pid in driver.stdout.readline().split()]
        driver.kill()
    for fd in fds:  # readable when the process has ended
        assert select.select([fd], [], [], 20)[0]
        os.close(fd)


def test_workers_outlive_the_thread_that_made_their_pool():
    made: list[Pool] = []

    def make() -> None:
        made.append(
            Pool.on_loopback(2, preload=("ast", "json"))
        )  # no other pool has forked from these
        made[0].run(lambda ctx: None)

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()
    with made[0] as pool:
        first = pool.pid(0)
        assert pool.run(lambda ctx: ctx.rank) == [0, 1]
        assert pool.pid(0) == first


def test_a_process_that_serves_no_calls_is_forked_without_cloudpickle(tmp_path):
    """Only calls need it, and it is an extra: tests of installed wheels have none."""
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('not installed')\n")
    (tmp_path / "greeting.py").write_text("def main(channel):\n    channel.send_bytes(b'here')\n")
    ours, there = socket.socketpair()
    forks = Zygote((), env={"PYTHONPATH": str(tmp_path)})
    order = Order(
        dict(os.environ), [str(tmp_path), *sys.path], str(tmp_path / "log"), None, "greeting:main"
    )
    process = forks.fork(order, there.fileno())
    there.close()
    assert Connection(ours.detach()).recv_bytes() == b"here"
    assert process.wait(60) == 0
