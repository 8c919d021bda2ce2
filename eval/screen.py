"""An evaluation on the screen: a bar with the figure so far on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from splice.train.log.screen import duration

LINE_SECONDS = 30.0  # between lines where the output is no terminal
LINE_SHARE = 0.1  # of all groups, if that is sooner
LEAST_SECONDS = 2.0  # between lines, if there are many groups


class Screen:
    """Where a run is. `running` holds it for the run's time; `step` after each group."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def running(self, name: str, total: int | None, done: int) -> Iterator[Screen]:
        """done: groups that are there from before."""
        self._name, self._total, self._done, self._from = name, total, done, done
        self._began = self._said = time.monotonic()
        self._said_at = done
        if done:
            self.say(f"{name}: {done:,} groups are there; going on")
        if not self.console.is_terminal:
            self._progress = None
            yield self
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figure]}"),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as self._progress:
            self._task = self._progress.add_task(name, total=total, completed=done, figure="")
            yield self

    def step(self, figure: str) -> None:
        """A group is done; `figure` says what its run comes to so far."""
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._task, advance=1, figure=figure)
            return
        seconds = time.monotonic() - self._said
        share = (self._done - self._said_at) / self._total if self._total else 0.0
        if seconds >= LINE_SECONDS or (share >= LINE_SHARE and seconds >= LEAST_SECONDS):
            self._said, self._said_at = time.monotonic(), self._done
            self.say(
                f"{self._name}: {self._done:,}{f' of {self._total:,}' if self._total else ''} groups, {figure}{self._left()}"
            )

    def _left(self) -> str:
        if not self._total:
            return ""
        each = (time.monotonic() - self._began) / max(1, self._done - self._from)
        return f", {duration(each * (self._total - self._done))} left"

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)
