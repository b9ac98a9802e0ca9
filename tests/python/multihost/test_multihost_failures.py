"""Stopped, killed and cut-off ranks: those that come back survive, the others are named."""

import signal
import time

import programs
import pytest
from named_errors import SECONDS, check_error
from waiting import GUARD_S

all_tier = pytest.mark.all_tier
# Long enough that no running rank is silent for it, however busy the machine is.
LIMIT = {"liveness_limit": 6000}
SIZE = 4 << 20  # four of them take 0.14 s of the link: signals arrive in the middle


def running(cluster, *args, **fields):
    call = cluster.start(programs.until_told, *args, **fields)
    call.wait("running")
    return call


def survives(call):
    call.signal("stop")
    stats = call.results(GUARD_S)
    assert all(not row["failure"] and row["counters"]["ops_failed"] == 0 for row in stats)
    assert len({row["rounds"] for row in stats}) == 1
    return stats


def raised_by(call, ranks, culprit):
    """Checks that every one of `ranks` has raised and names the culprit. The time to that is
    asserted in virtual time (tests/cpp/collective: SleepyLanes, Failures)."""
    for rank, (_, text) in zip(ranks, call.wait("raised", ranks, GUARD_S), strict=True):
        assert f"rank {culprit} " in text.split("failed on rank")[0] + text.split("after", 1)[-1], (
            rank,
            text,
        )


def others(cluster, *without):
    return [rank for rank in range(cluster.world_size) if rank not in without]


@pytest.mark.parametrize("rank, duration", [(2, 5.0), pytest.param(0, 3.0, marks=all_tier)])
def test_a_stopped_rank_that_goes_on_survives(four, rank, duration):
    call = running(four, SIZE)
    four.pool.stop(rank)
    time.sleep(duration)  # the length of the fault
    four.pool.resume(rank)
    survives(call)


def test_a_rank_that_stays_stopped_is_named(four):
    call = running(four, SIZE, LIMIT)
    four.pool.stop(2)
    raised_by(call, others(four, 2), 2)
    four.pool.resume(2)
    states = [outcome.state for outcome in call.outcomes(60)]
    assert states == ["error"] * 4


# Phases: many all-gathers (every rank is a root), or one root's broadcasts only.
KILLS = [
    pytest.param(2, None, id="a-rank-of-all-gathers"),
    pytest.param(0, None, id="rank-0-with-the-store"),
    pytest.param(1, 1, id="the-root-of-broadcasts"),
    pytest.param(3, 1, id="a-receiver-of-broadcasts", marks=all_tier),
    pytest.param(0, 1, id="the-top-of-the-tree", marks=all_tier),
]


def named_when_killed(cluster, victim, root):
    call = running(cluster, SIZE, LIMIT, 60.0, root)
    cluster.pool.kill(victim)
    raised_by(call, others(cluster, victim), victim)
    outcomes = call.outcomes(60)
    assert outcomes[victim].text == f"signal {signal.SIGKILL.name}"
    assert all(outcomes[rank].state == "error" for rank in others(cluster, victim))


@pytest.mark.parametrize("victim, root", KILLS)
def test_a_killed_rank_is_named(four, victim, root):
    named_when_killed(four, victim, root)


@all_tier
@pytest.mark.parametrize("victim", [1, 5])
def test_a_killed_rank_of_eight_is_named(hosts, victim):
    cluster = hosts(4, 2)
    call = running(cluster, SIZE, LIMIT)
    cluster.pool.kill(victim)
    raised_by(call, others(cluster, victim), victim)
    call.outcomes(60)


def dies(ctx, phase):
    """Rank 1 is killed at a known point of its life; the others report their errors."""
    import os

    import torch
    import torch.distributed as dist

    programs.join(ctx, 20.0, **LIMIT)
    text = ""
    try:
        if phase == "idle":
            dist.barrier()
        if ctx.rank == 1:
            if phase == "posted":  # it waits for the others, which wait for the driver
                dist.all_gather_into_tensor(
                    torch.zeros(4 << 20), torch.zeros(1 << 20), async_op=True
                )
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.wait("go")
        for salt in range(3):  # the first may still succeed if its data is complete
            programs.all_gather(SIZE, salt)
    except dist.DistBackendError as error:
        text = str(error)
    ctx.notify("raised", (time.monotonic(), text))


@pytest.mark.parametrize("phase", ["idle", "before-posting", "posted"])
@all_tier
def test_a_rank_killed_at_a_known_point(four, phase):
    call = four.start(dies, phase)
    four.pool._workers[1].process.wait(60)
    call.signal("go", ranks=others(four, 1))
    raised_by(call, others(four, 1), 1)
    call.outcomes(60)


@pytest.mark.parametrize("silent", [True, False], ids=["silently", "carrier"])
def test_a_link_cut_and_healed_survives(four, silent):
    call = running(four, SIZE)
    four.lab.cut("h3", silent=silent)
    time.sleep(3)  # the length of the fault
    four.lab.heal("h3")
    survives(call)


@pytest.mark.parametrize(
    "rank, silent",
    [
        pytest.param(2, True, id="h3"),
        pytest.param(2, False, id="h3-carrier", marks=all_tier),
        pytest.param(0, True, id="h1", marks=all_tier),
    ],
)
def test_a_link_cut_for_good_is_named(four, rank, silent):
    call = running(four, SIZE, LIMIT)
    four.lab.cut(rank, silent=silent)
    raised_by(call, others(four, rank), rank)
    # The disconnected rank raises too; to it, all others are as silent as it is to them.
    [(_, text)] = call.wait("raised", [rank], GUARD_S)
    check_error(text, "rank_silent", rank={0, 1, 2, 3} - {rank}, silence=SECONDS, limit="6.0 s")
    four.lab.heal(rank)  # so that the teardown need not wait for the network
    assert [outcome.state for outcome in call.outcomes(90)] == ["error"] * 4
    # The same processes create the group again at once. Earlier connections, which TCP may give up
    # only now, do not affect the new group.
    stats = four.run(programs.rounds, 1 << 20, 3, LIMIT)
    assert all(not row["failure"] for row in stats)


def test_after_all_this_the_workers_still_work(four):
    """Failed groups do not affect the next one."""
    stats = four.run(programs.every_op, [0, 1437, 1 << 20])
    assert all(row["path"] == "multicast" and not row["failure"] for row in stats)
