"""Aggregators that are killed, stopped and restarted at random while 8 workers run: bytes stay
exact, every operation ends, and in the end all aggregators serve again.

The seed determines each event and the operation before which it happens; MCAST_TEST_SEED=n repeats
one."""

from __future__ import annotations

import random
import time

import aggregated
import pytest
import torch
import torch.distributed as dist
from contents import compare
from seeds import seed_of

import torch_mcast

# So that a stopped one delays only for a moment. The machine may delay one for longer, which costs
# no bytes.
OPTIONS = {"aggregator_patience": 300}
AHEAD = 3  # operations that begin before the driver has handled events of an earlier one


def drawn(ctx, seed, count, served, order) -> dict:
    """Runs `count` operations drawn from the seed, each reported to the driver before it begins;
    then operations that show that all `served` aggregators fold again."""
    aggregated.join(ctx, fold=order, **OPTIONS)
    draw, known = random.Random(f"{seed} operations"), aggregated.Known()
    gathered, shard = torch.zeros(ctx.world_size << 16), torch.full((1 << 16,), float(ctx.rank))
    wanted = torch.arange(ctx.world_size, dtype=torch.float32).repeat_interleave(1 << 16)
    for number in range(count):
        if ctx.rank == 0:
            ctx.notify("at", number)
            if number >= AHEAD:
                ctx.wait("seen")
        kind, which = draw.choice(["all_reduce", "scatter", "in place", "two", "both"]), number
        if kind in ("all_reduce", "two", "both"):
            flying = [known.post_all_reduce(which)]
        else:
            flying = [known.post_reduce_scatter(which, kind == "in place")]
        if kind == "two":
            flying.append(known.post_reduce_scatter(which + 1, True))
        if kind == "both":
            work = dist.all_gather_into_tensor(gathered.zero_(), shard, async_op=True)
            flying.append((work, lambda: compare(gathered, wanted, "all_gather")))
        for work, check in flying:
            work.wait()
            check()
    during = torch_mcast.stats()["counters"]
    return {**aggregated.prove_service(served, 90.0), "during": during}


# Events that may happen to an aggregator in each state, and the state after them.
CHANGES = {
    "running": ("kill", "kill", "stop", "stop", "restart", "end"),
    "stopped": ("go_on", "go_on", "restart"),
    "dead": ("start",),
}
AFTER = {"kill": "dead", "end": "dead", "stop": "stopped"}
ADMITTED_S = 3.0


class Chaos:
    """Events of aggregators, by the seed."""

    def __init__(self, lab, seed) -> None:
        self.lab = lab
        self.draw = random.Random(f"{seed} faults")
        self.states = {host.name: "running" for host in lab.aggregators}
        self.done: list[str] = []

    def around(self, number: int, go_on) -> None:
        """Runs the events of the operations from `number` on, which go_on() lets begin."""
        if self.draw.random() >= 0.25:
            return go_on()
        name = self.draw.choice(sorted(self.states))
        how = self.draw.choice(CHANGES[self.states[name]])
        pause = self.draw.uniform(0, 0.05)
        if self.states[name] == "running":
            self.await_service(name)
        go_on()
        time.sleep(pause)  # so that it happens during the operation
        self.change(number, name, how)

    def await_service(self, name: str) -> None:
        """An aggregator that has just come back is admitted soon: events after that matter more."""
        until = time.monotonic() + ADMITTED_S
        while time.monotonic() < until:
            jobs = self.lab.aggregation.status(name)["jobs"]
            if any(job["stations"][0]["connected"] == job["ranks"] for job in jobs):
                return
            time.sleep(0.05)

    def change(self, number: int, name: str, how: str) -> None:
        self.done.append(f"{number}: {how} {name}")
        getattr(self.lab.aggregation, how)(name)
        self.states[name] = AFTER.get(how, "running")

    def end(self, number: int) -> None:
        """Restores all aggregators."""
        for name, state in self.states.items():
            if state != "running":
                self.change(number, name, {"stopped": "go_on", "dead": "start"}[state])


def run_chaos(cluster, seed, count, order, record_property):
    seed = seed_of(seed)
    chaos = Chaos(cluster.lab, seed)
    call = cluster.start(drawn, seed, count, len(cluster.lab.aggregators), order)
    try:
        for number in range(count):
            [at] = call.wait("at", [0], 60)
            assert at == number
            chaos.around(number, lambda: call.signal("seen", ranks=[0]))
        chaos.end(count)
        rows = call.results(240)
    finally:
        print("; ".join(chaos.done))
    record_property("changes", len(chaos.done))
    for row in rows:
        assert not row["failure"] and row["counters"]["ops_failed"] == 0
        assert row["counters"]["agg_malformed"] == 0
    losses = [row["during"]["agg_lost"] for row in rows]
    diverted = sum(row["during"]["agg_diverted"] for row in rows)
    record_property("losses", losses)
    record_property("diverted", diverted)
    assert chaos.done and min(losses) > 0
    assert sum(row["during"]["agg_results"] for row in rows) > 0


@pytest.mark.all_tier
def test_two_aggregators_in_short(served, record_property):
    run_chaos(served(8, 2), 1, 60, "rank", record_property)


@pytest.mark.all_tier
@pytest.mark.parametrize("order", ["rank", "turn"])
@pytest.mark.parametrize("aggregators, seed", [(1, 11), (2, 12), (2, 13), (7, 14), (7, None)])
def test_200_operations(served, aggregators, seed, order, record_property):
    run_chaos(served(8, aggregators), seed, 200, order, record_property)
