"""RunLog: everything a run says, to all places at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from .experts import EXPERTS, ExpertsFile
from .metrics import MetricsFile
from .screen import LineScreen, TerminalScreen
from .sink import Sink
from .trackers import TENSORBOARD, TensorBoard, WeightsAndBiases


class RunLog(AbstractContextManager["RunLog"]):
    """Writes and shows the progress of one run, on rank 0; the other ranks have RunLog.silent().

    directory: the run's, made if absent. total_steps: optimizer steps of the whole run. first_step: those done before,
    0 for a new run, whose metrics.jsonl begins empty. wandb: name of a project. settings: what wandb shows of the run.
    experts: the model has expert layers, so that there is an experts.jsonl too, which begins and is cut alike.
    Raises SpliceError at once where tensorboard or wandb is asked for and not installed, and when opened where
    metrics.jsonl or experts.jsonl is not one or wandb refuses.
    """

    def __init__(
        self,
        directory: Path,
        total_steps: int,
        first_step: int,
        console: Console,
        tensorboard: bool = False,
        wandb: str | None = None,
        settings: dict[str, Any] | None = None,
        experts: bool = False,
    ) -> None:
        self._sinks: list[Sink] = []
        if tensorboard:
            self._sinks.append(TensorBoard(directory / TENSORBOARD, first_step))
        if wandb is not None:
            self._sinks.append(WeightsAndBiases(directory, wandb, first_step, settings or {}))
        self._sinks.append(MetricsFile(directory, first_step))  # after what may refuse: opening it cuts it
        if experts or (directory / EXPERTS).exists():  # that of an earlier attempt is not this run's
            self._sinks.append(ExpertsFile(directory, first_step))
        screen = TerminalScreen if console.is_terminal else LineScreen
        self._sinks.append(screen(console, total_steps, first_step))  # last: what the others print comes before it
        self._open = ExitStack()

    @classmethod
    def silent(cls) -> RunLog:
        """A log that says nothing, for ranks other than 0."""
        return _Silent()

    def __enter__(self) -> RunLog:
        with ExitStack() as opening:
            for sink in self._sinks:
                opening.enter_context(sink)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def step(self, record: dict[str, Any]) -> None:
        """Log a finished step; `record` has the keys of a line of metrics.jsonl."""
        for sink in self._sinks:
            sink.step(record)

    def validation(self, step: int, result: dict[str, Any]) -> None:
        """Log an evaluation of the weights after `step` steps: loss, perplexity, tokens, by_position."""
        for sink in self._sinks:
            sink.validation(step, result)

    def experts(self, step: int, layers: dict[int, dict[str, Any]]) -> None:
        """Log what the expert layers did in `step`.

        By layer: load, tokens that each of E experts computed on all ranks; dropped, share of the assignments, 0 to 1;
        entropy, the mean of the router's, nats; dead, experts that computed nothing; balance and z, the losses.
        """
        for sink in self._sinks:
            sink.experts(step, layers)

    def say(self, text: str) -> None:
        """Show a sentence, above the bar where there is one."""
        for sink in self._sinks:
            sink.say(text)


class _Silent(RunLog):
    def __init__(self) -> None:
        self._sinks = []
        self._open = ExitStack()
