"""Compares the times that the planner of aggregation predicts with those of simulated all_reduces.

    python benchmarks/planner.py --hosts 8,16,32 --aggregators 4,8,15 --rates 25gbit --size 25M --trials

The all_reduces are simulated with and without aggregators. With --trials, so many operations are
simulated before the last one that the group has made its own trial
(csrc/aggregation/member/station_trial.h), which begins 10 s after aggregators are in force. The last
column then says whether aggregators fold, or rest while the ranks fold everything. So for cases that
are slower with aggregators, it shows whether the group notices.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch_mcast.simulate.progress import compute

# Durations in StationTrial: the start of the first trial, its measurement, and as much again for
# both changes of the roster.
FIRST_NS, MEASURED_NS = 10e9, 0.5e9


def simulated(**words: Any) -> dict[str, Any]:
    (result,) = compute([" ".join(f"{key}={value}" for key, value in words.items())], jobs=1)
    return result


def cell(words: dict[str, Any], aggregators: int, trial: bool) -> list[str]:
    """Returns a row of the table without its first columns."""
    plain = simulated(algorithm="mcast", warmup=2, **words)
    given = {**words, "algorithm": "mcast-aggregators", "aggregators": aggregators}
    folded = simulated(warmup=2, **given)
    without, with_ = plain["time"] / 1e6, folded["time"] / 1e6
    plan = folded["aggregators"]
    row = [
        f"{without:.2f} ms", f"{with_:.2f} ms", f"{with_ / without:.3f}", f"{plan['part']:.2f}",
        plan.get("plan") or "placed",
    ]  # fmt: skip
    if not trial or with_ <= 1.03 * without:
        return [*row, "" if not trial else "not slower"]
    count = int((FIRST_NS + 4 * MEASURED_NS) / folded["time"]) + 20
    after = simulated(warmup=count, **given)
    carried = after["aggregators"]["down"] / folded["aggregators"]["down"]  # bytes to aggregators
    kept = "they rest" if carried < 0.01 else "they fold"
    return [*row, f"{after['time'] / 1e6:.2f} ms: {kept}"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", default="8,16,32")
    parser.add_argument("--aggregators", default="4,8,15")
    parser.add_argument("--folds", default="rank,turn")
    parser.add_argument("--rates", default="25gbit")
    parser.add_argument("--size", default="25M")
    parser.add_argument(
        "--trials", action="store_true", help="simulate those that lose for 12 s and more"
    )
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    cells = list(
        itertools.product(
            arguments.rates.split(","), arguments.hosts.split(","), arguments.aggregators.split(","),
            arguments.folds.split(","),
        )
    )  # fmt: skip
    print(
        "| rate | hosts | aggregators | fold | none | with | ratio | part | plan | after the trial |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = pool.map(
            lambda key: cell(
                {"rate": key[0], "hosts": key[1], "fold": key[3], "op": "all_reduce", "size": arguments.size},
                int(key[2]), arguments.trials,
            ),
            cells,
        )  # fmt: skip
        for key, row in zip(cells, rows, strict=True):
            print(f"| {' | '.join([*key, *row])} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
