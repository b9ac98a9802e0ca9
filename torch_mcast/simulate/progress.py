"""Progress bars of long computations, on standard error; silent if that is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch_mcast.simulate import helper

# Options that distinguish experiments, shown in front of a bar.
_NAMED = ("hosts", "algorithm", "aggregators", "op")


def label(experiment: str) -> str:
    """Returns the options of an experiment that are shown."""
    return " ".join(word for word in experiment.split() if word.split("=", 1)[0] in _NAMED)


class Bar:
    """A bar for each of several tasks while it runs, and one for all of them."""

    def __init__(self, labels: Sequence[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self.shown = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self.shown,
            # Else output printed meanwhile goes to standard error, even if standard output is a
            # file.
            redirect_stdout=sys.stdout.isatty(),
        )
        several = len(labels) > 1
        self._all = self._progress.add_task(
            "all", total=max(1, len(labels)), text="", visible=several
        )
        self._tasks = [
            self._progress.add_task(name, total=1, text="", visible=False, start=False)
            for name in labels
        ]
        self._ended: set[int] = set()

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def move(self, number: int, done: float, text: str = "") -> None:
        """Sets the completed share of a task: 0 when it begins, 1 when it has ended. `text` is
        shown behind its bar."""
        task = self._tasks[number]
        if done == 0:
            self._progress.start_task(task)
        self._progress.update(task, completed=done, text=text, visible=done < 1)
        if done >= 1:
            self._ended.add(number)
            count = len(self._ended)
            self._progress.update(self._all, completed=count, text=f"{count} of {len(self._tasks)}")

    def experiment(self, number: int, virtual: float, done: float) -> None:
        """Does the same for a task that is an experiment."""
        self.move(number, done, f"{virtual * 1e3:.3f} ms")


def compute(
    experiments: Sequence[str], jobs: int | None, links: bool = False, quiet_time: bool = False
) -> list[dict[str, Any]]:
    """Returns results of experiments, with a progress bar if there is a terminal. Raises ValueError
    for an invalid experiment."""
    helper.check(experiments)
    with (
        Bar([label(text) for text in experiments]) as bar,
        helper.Runs(jobs, links, quiet_time, bar.experiment if bar.shown else None) as runs,
    ):
        return runs.run(experiments)
