"""Progress, counted from completion markers: the same on a laptop and on a cluster that reports nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.text import Text

from splice.storage import is_url
from splice.task import Task, receipts

POLL_SECONDS = 0.25
STORE_POLL_SECONDS = 2.0  # a store is asked for a listing each time
LINE_SECONDS = 10.0  # between lines where the output is no terminal


class StageProgress(AbstractContextManager["StageProgress"]):
    """Shows one stage while its tasks run: documents, tokens, tokens a second and time left.

    weights: the work in each task (bytes or documents, any unit); what is shown as done is the receipts' own counts.
    """

    def __init__(self, console: Console, stage: str, tasks: list[Task], weights: list[int]) -> None:
        self.console = console
        self.stage = stage
        self.waiting = list(zip(tasks, weights, strict=True))
        self.total = max(sum(weights), 1)
        self.done = 0
        self.counts = {"documents": 0, "tokens": 0, "examples": 0}
        self._documents: Counter[str] = Counter()  # by stage: several that run together see the same documents
        self.started = time.monotonic()
        self._poll_seconds = STORE_POLL_SECONDS if is_url(tasks[0].directory) else POLL_SECONDS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> StageProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def line(self) -> str:
        """What is done, at what rate, and how long the rest takes."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        said = [f"{self.counts['documents']:,} documents"] if self.counts["documents"] else []
        if self.counts["examples"]:
            said.append(f"{self.counts['examples']:,} examples")
        if self.counts["tokens"]:
            said += [f"{self.counts['tokens']:,} tokens", f"{self.counts['tokens'] / seconds:,.0f} tokens/s"]
        elif self.counts["documents"]:
            said.append(f"{self.counts['documents'] / seconds:,.0f} documents/s")
        if 0 < self.done < self.total:
            said.append(f"{_clock(seconds * (self.total - self.done) / self.done)} left")
        return ", ".join(said)

    def _watch(self) -> None:
        if self.console.is_terminal:
            self._draw()
            return
        last = self.started
        while not self._stop.wait(self._poll_seconds):
            if time.monotonic() - last >= LINE_SECONDS:
                last = time.monotonic()
                self._count()
                self.console.print(f"  {self.stage}: {self.done / self.total:.0%} {self.line()}", highlight=False)

    def _draw(self) -> None:
        columns: list[str | ProgressColumn] = [
            SpinnerColumn(), TextColumn("{task.description:<10}"), BarColumn(), _Counts(),
        ]  # fmt: skip
        with Progress(*columns, console=self.console, transient=True) as bar:
            shown = bar.add_task(self.stage, total=self.total, line="")
            while not self._stop.wait(self._poll_seconds):
                self._count()
                bar.update(shown, completed=self.done, line=self.line())

    def _count(self) -> None:
        still = []
        found = receipts([task for task, _ in self.waiting])
        for (task, weight), receipt in zip(self.waiting, found, strict=True):
            if receipt is None:
                still.append((task, weight))
                continue
            self.done += weight
            self._documents[task.stage] += int(receipt.get("documents", 0))
            for name in ("tokens", "examples"):
                self.counts[name] += int(receipt.get(name, 0))
        self.counts["documents"] = max(self._documents.values(), default=0)
        self.waiting = still


class _Counts(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(task.fields["line"])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
