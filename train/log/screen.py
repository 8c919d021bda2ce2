"""A run on the screen: a bar and figures on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .lines import real
from .sink import Sink

FIRST_LINES = 3  # steps that each have a line where the output is no terminal
LINE_SHARE = 1 / 20  # of all steps, between later lines
LINE_SECONDS = 30.0  # between lines, if that is sooner
LEAST_SHARE = 1 / 500  # of all steps, between any two: slow steps do not make a line each
DRAW_SECONDS = 0.1  # between pictures on a terminal
MEMORY = 0.95  # of the smoothed loss, from step to step: about 20 steps are in it


class Screen(Sink):
    """What both screens show of a run: the last step, its smoothed loss, the last evaluation, the time left."""

    def __init__(
        self, console: Console, total_steps: int, first_step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._total = total_steps
        self._done = first_step
        self._clock = clock
        self._record: dict[str, Any] = {}
        self._loss = RunningMean()
        self._validation = ""
        self._began: tuple[int, float] | None = (
            None  # the first step here and when it was done: it compiles, so is left out
        )

    def step(self, record: dict[str, Any]) -> None:
        self._record = record
        self._done = record["step"]
        self._loss.add(record["loss"])
        self._began = self._began or (self._done, self._clock())

    def validation(self, step: int, result: dict[str, Any]) -> None:
        self._validation = f"{_number(result['loss'], '.3f')} at {step:,}"
        perplexity = _number(result["perplexity"], ",.2f")
        self.say(f"validation at step {step:,}: loss {_number(result['loss'], '.3f')}, perplexity {perplexity}")

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _seconds_left(self) -> float | None:
        """From the steps done here, evaluations and checkpoints among them; None before the second."""
        if self._began is None or self._done <= self._began[0]:
            return None
        step, began = self._began
        return (self._clock() - began) / (self._done - step) * max(self._total - self._done, 0)

    def _figures(self) -> list[str]:
        """The last step in words; none before the first."""
        r = self._record
        if not r:
            return []
        said = [
            f"loss {_number(r['loss'], '.3f')} (smoothed {_number(self._loss.value, '.3f')})",
            f"lr {r['lr']:.2e}",
            f"{r['tokens_per_second']:,.0f} tokens/s",
        ]
        if r.get("mfu") is not None:
            said.append(f"MFU {r['mfu']:.1%}")
        if r.get("memory_gib") is not None:
            said.append(f"{r['memory_gib']:.1f} GiB")
        if (r.get("dead_experts") or 0) > 0:
            said.append(f"dead {r['dead_experts']}")
        if (r.get("dropped") or 0) > 0:
            said.append(f"dropped {r['dropped']:.1%}")
        return said


class LineScreen(Screen):
    """A line now and then, where the output is no terminal: at first steps, then every 5% of the run or 30 seconds."""

    _last: tuple[int, float] | None = None  # the step of the last line, and when that was
    _lines = 0

    def step(self, record: dict[str, Any]) -> None:
        super().step(record)
        if not self._due():
            return
        self._last = (self._done, self._clock())
        self._lines += 1
        left = self._seconds_left()
        said = self._figures() + ([f"{duration(left)} left"] if left and self._done < self._total else [])
        self.say(f"step {self._done:,}/{self._total:,}: {', '.join(said)}")

    def _due(self) -> bool:
        if self._last is None or self._lines < FIRST_LINES or self._done >= self._total:
            return True
        steps, seconds = self._done - self._last[0], self._clock() - self._last[1]
        return steps >= LINE_SHARE * self._total or (seconds >= LINE_SECONDS and steps >= LEAST_SHARE * self._total)


class TerminalScreen(Screen):
    """A bar and the figures beneath it, drawn anew after each step; no thread, which a fork of the loader would copy."""

    _drawn = -math.inf

    def __enter__(self) -> TerminalScreen:
        self._live = Live(self._view(), console=self._console, auto_refresh=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update(self._view(), refresh=True)
        self._live.stop()

    def step(self, record: dict[str, Any]) -> None:
        super().step(record)
        if self._clock() - self._drawn >= DRAW_SECONDS:
            self._drawn = self._clock()
            self._live.update(self._view(), refresh=True)

    def _view(self) -> Group:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        left = self._seconds_left()
        bar.add_row(
            Text(f"step {self._done:,}/{self._total:,}"),
            ProgressBar(total=max(self._total, 1), completed=self._done),
            Text(f"{self._done / max(self._total, 1):.0%}" + (f", {duration(left)} left" if left else "")),
        )
        said = self._figures() + ([f"validation {self._validation}"] if self._validation else [])
        texts = [Text(item, style="dim") for item in said or ["waiting for the first step"]]
        return Group(bar, Columns(texts, padding=(0, 2)))  # an item is never broken in two


class RunningMean:
    """The mean of the values so far, those of long ago forgotten (MEMORY); a value that is not finite is left out."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        """Take in the next value."""
        if math.isfinite(value):
            self._sum = MEMORY * self._sum + (1 - MEMORY) * value
            self._weight = MEMORY * self._weight + (1 - MEMORY)

    @property
    def value(self) -> float:
        """The mean, weights adding up to 1 from the first value on; nan before it."""
        return self._sum / self._weight if self._weight else math.nan


def _number(value: float | None, form: str) -> str:
    return format(real(value), form)


def duration(seconds: float) -> str:
    """Seconds in the two largest units that say it: 2d 03h, 3h 05m, 12m 30s, 45s."""
    left = round(seconds)
    for unit, size, lower, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if left >= size:
            return f"{left // size}{unit} {left % size // part:02d}{lower}"
    return f"{left}s"
