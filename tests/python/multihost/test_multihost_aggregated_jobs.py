"""Jobs at aggregators: two at once, quotas, a rank that cannot reach one, ranks that are killed."""

import contextlib
import time

import aggregated
import programs
import pytest
from test_multihost_failures import LIMIT, others, raised_by
from waiting import until

from torch_mcast.lab import system
from torch_mcast.lab.pool import Pool


def jobs_of(cluster, which):
    return cluster.lab.aggregation.status(which)["jobs"]


def check_undisturbed(rows):
    for row in rows:
        assert not row["failure"] and row["counters"]["ops_failed"] == 0
        assert row["counters"]["agg_results"] > 0
        lost = {name: row["counters"][name] for name in ("agg_lost", "agg_diverted")}
        assert not any(lost.values()), (row["rank"], lost, row["aggregators"])


def no_jobs(cluster):
    """Checks that closed groups leave nothing at the aggregators."""
    for host in cluster.lab.aggregators:
        until(lambda h=host: not jobs_of(cluster, h), lambda h=host: jobs_of(cluster, h))


@pytest.mark.parametrize("number", [0, 7], ids=["equal names", "different names"])
def test_two_jobs_at_once(served, number):
    """Separate processes on the same hosts, served by the same aggregators."""
    cluster = served(4, 2)
    with Pool.in_lab(cluster.lab, programs.PRELOAD) as pool:
        first = cluster.start(aggregated.until_told, 0)
        second = pool.start(aggregated.until_told, number, env={"MASTER_PORT": "33333"})
        for call in (first, second):
            call.wait("running")
        for host in cluster.lab.aggregators:
            jobs = jobs_of(cluster, host)
            assert [job["ranks"] for job in jobs] == [4, 4]
            assert len({job["name"] for job in jobs}) == (1 if number == 0 else 2)
            # An aggregator serves a job only after it has replied; the first rounds may have run
            # without it.
            until(
                lambda h=host: all(
                    j["stations"][0]["folded_bytes"] > 0 for j in jobs_of(cluster, h)
                ),
                lambda h=host: jobs_of(cluster, h),
            )
        for call in (first, second):
            call.signal("stop", ranks=[0])
        for call in (first, second):
            check_undisturbed(call.results())
    no_jobs(cluster)


def test_one_of_two_jobs_that_is_killed_leaves_the_other_alone(served):
    cluster = served(4, 2)
    with Pool.in_lab(cluster.lab, programs.PRELOAD) as pool:
        first = cluster.start(aggregated.until_told, 0)
        second = pool.start(aggregated.until_told, 0, env={"MASTER_PORT": "33334"})
        for call in (first, second):
            call.wait("running")
        for rank in range(4):
            pool.kill(rank)
        for host in cluster.lab.aggregators:
            until(lambda h=host: len(jobs_of(cluster, h)) == 1, lambda h=host: jobs_of(cluster, h))
        first.signal("stop", ranks=[0])
        check_undisturbed(first.results())
        assert {outcome.state for outcome in second.outcomes(30)} == {"died"}
    no_jobs(cluster)


@pytest.mark.parametrize("victim", [2, pytest.param(0, id="the one that has asked")])
def test_a_killed_rank_is_named_and_its_job_goes(served, victim):
    cluster = served(4, 2)
    call = cluster.start(aggregated.until_told, 0, 0, LIMIT)
    call.wait("running")
    cluster.pool.kill(victim)
    raised_by(call, others(cluster, victim), victim)
    no_jobs(cluster)  # although the group has not been closed
    call.signal("end")
    outcomes = call.outcomes(60)
    assert all(outcomes[rank].state == "error" for rank in others(cluster, victim))
    check_undisturbed(cluster.run(aggregated.until_served, 2))


@contextlib.contextmanager
def started_with(cluster, which, *options):
    cluster.lab.aggregation.restart(which, *options)
    try:
        yield
    finally:
        cluster.lab.aggregation.restart(which)


def test_a_full_quota_refuses_and_the_group_goes_on_with_the_others(served):
    cluster = served(4, 2)
    with started_with(cluster, "a1", "--quota", "1M"):
        rows = cluster.run(aggregated.until_served, 1)
        check_undisturbed(rows)
        refused, admitted = rows[0]["aggregators"]
        assert admitted["state"] == "admitted" and refused["state"] == "refused"
        assert "quota" in refused["reason"] and refused["stations"] == 0
        assert cluster.lab.aggregation.status("a1")["refused"]["quota"] > 0


def test_all_quotas_full_leave_the_ranks_alone(served):
    cluster = served(4, 2)
    with started_with(cluster, "a1", "--quota", "1M"), started_with(cluster, "a2", "--quota", "1M"):
        call = cluster.start(aggregated.until_told)
        call.wait("running")
        call.signal("stop", ranks=[0])
        rows = call.results()
        assert {row["state"] for row in rows[0]["aggregators"]} == {"refused"}
        for row in rows:
            assert row["counters"]["agg_operations"] == 0 and not row["failure"]


def test_a_place_that_is_given_back_serves_the_next(served):
    """There is room for one job: the second group is refused, and admitted when the first has closed."""
    cluster = served(4, 2)
    with contextlib.ExitStack() as stack:
        for name in ("a1", "a2"):
            stack.enter_context(started_with(cluster, name, "--jobs", "1"))
        pool = stack.enter_context(Pool.in_lab(cluster.lab, programs.PRELOAD))
        first = pool.start(aggregated.until_told, 0, env={"MASTER_PORT": "33335"})
        first.wait("running")
        second = cluster.start(aggregated.until_served, 2)
        for name in ("a1", "a2"):
            until(
                lambda n=name: cluster.lab.aggregation.status(n)["refused"]["jobs"],
                lambda n=name: cluster.lab.aggregation.status(n),
            )
        first.signal("stop", ranks=[0])
        check_undisturbed(first.results())
        check_undisturbed(second.results())


@contextlib.contextmanager
def apart(cluster, rank, aggregator):
    """Drops everything that the rank's host sends to the aggregator."""
    lab = cluster.lab
    namespace, address = lab.host(rank).namespace, lab.host(aggregator).address
    system.ip_batch([f"route add blackhole {address}/32"], namespace)
    try:
        yield
    finally:
        system.ip_batch([f"route del blackhole {address}/32"], namespace)


def rows_when(call, condition, limit_s=30.0):
    """Returns rank 0's rows of aggregators once they satisfy the condition."""
    end = time.monotonic() + limit_s
    while True:
        [rows] = call.wait("aggregators", [0], end - time.monotonic())
        if condition(rows):
            return rows


def test_one_rank_cut_from_one_aggregator(served):
    """The aggregator is out for all ranks, with the rank's name, and the other one serves, until
    the rank reaches it again."""
    cluster = served(4, 2)
    call = cluster.start(aggregated.until_told, 0, 2, {"aggregator_patience": 1000})
    call.wait("running")
    rows_when(call, lambda rows: [row["state"] for row in rows] == ["admitted"] * 2)
    with apart(cluster, 1, "a1"):
        lost = lambda rows: rows[0]["state"] == "lost"  # noqa: E731
        first = rows_when(call, lost)
        assert first[1]["state"] == "admitted" and "rank 1 " in first[0]["reason"], first
        again = rows_when(call, lost)  # requested again, admitted, and still not reached
        assert "rank 1 cannot reach the station" in again[0]["reason"], again
        assert again[1]["state"] == "admitted"
    call.signal("stop", ranks=[0])
    for row in call.results():
        assert not row["failure"] and row["counters"]["ops_failed"] == 0
        assert row["counters"]["agg_lost"] >= 2 and row["counters"]["agg_malformed"] == 0
