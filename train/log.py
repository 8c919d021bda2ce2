"""What a training run says: metrics.jsonl, one JSON line a step, and the same on the screen.

The file is the record: a line is out of this process as soon as its step is done, so kill -9 loses none, and a run that
is resumed from step s first cuts what is later than s, so that its file is that of a run never stopped. tensorboard and
wandb get the same numbers when asked for.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from splice.errors import SpliceError
from splice.files import read_json, replacing, write_json

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"  # directory, in the run's own
WANDB = "wandb.json"  # which run of wandb this is, so that a resumed run goes on there

FIRST_LINES = 3  # steps that each have a line where the output is no terminal
LINE_SHARE = 1 / 20  # of all steps, between later lines
LINE_SECONDS = 30.0  # between lines, if that is sooner
LEAST_SHARE = 1 / 500  # of all steps, between any two: slow steps do not make a line each
DRAW_SECONDS = 0.1  # between pictures on a terminal
MEMORY = 0.95  # of the smoothed loss, from step to step: about 20 steps are in it


class Sink(AbstractContextManager["Sink"]):
    """A place that a run's figures go to. Opened by `with`; each says only what it has a use for."""

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def step(self, record: dict[str, Any]) -> None:
        """A finished step, keys as in metrics.jsonl."""

    def validation(self, step: int, result: dict[str, Any]) -> None:
        """An evaluation after `step` steps: loss, perplexity, tokens, by_position."""

    def say(self, text: str) -> None:
        """A sentence for whoever watches."""


class RunLog(AbstractContextManager["RunLog"]):
    """Writes and shows the progress of one run, on rank 0; the other ranks have RunLog.silent().

    directory: the run's, made if absent. total_steps: optimizer steps of the whole run. first_step: those done before,
    0 for a new run, whose metrics.jsonl begins empty. wandb: name of a project. settings: what wandb shows of the run.
    Raises SpliceError at once where tensorboard or wandb is asked for and not installed, and when opened where
    metrics.jsonl is not one or wandb refuses.
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
    ) -> None:
        self._sinks: list[Sink] = []
        if tensorboard:
            self._sinks.append(TensorBoard(directory / TENSORBOARD, first_step))
        if wandb is not None:
            self._sinks.append(WeightsAndBiases(directory, wandb, first_step, settings or {}))
        self._sinks.append(MetricsFile(directory, first_step))  # after what may refuse: opening it cuts it
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

    def say(self, text: str) -> None:
        """Show a sentence, above the bar where there is one."""
        for sink in self._sinks:
            sink.say(text)


class _Silent(RunLog):
    def __init__(self) -> None:
        self._sinks = []
        self._open = ExitStack()


class MetricsFile(Sink):
    """metrics.jsonl in `directory`, one flushed line a step. A number that is not finite is null, as JSON has none."""

    def __init__(self, directory: Path, first_step: int) -> None:
        self._path = directory / METRICS
        self._first_step = first_step

    def __enter__(self) -> MetricsFile:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            cut_after(self._path, self._first_step)
        self._file: BinaryIO = self._path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def step(self, record: dict[str, Any]) -> None:
        self._write(record)

    def validation(self, step: int, result: dict[str, Any]) -> None:
        self._write({"step": step, "validation": result})

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")
        self._file.flush()


def cut_after(path: Path, step: int) -> None:
    """Leave in metrics.jsonl the lines up to `step`, and no torn last one; none at all for step 0. Atomic.

    Raises SpliceError where a line other than the last is not one of this log.
    """
    kept = [line for line, record in _lines(path) if record["step"] <= step] if step else []
    with replacing(path, sync=True) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in kept))


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


class TensorBoard(Sink):
    """Event files in `directory`, through torch.utils.tensorboard. A resumed run hides what the first wrote later."""

    def __init__(self, directory: Path, first_step: int) -> None:
        _require("tensorboard")
        self._directory = directory
        self._purge = first_step + 1 if first_step else 0

    def __enter__(self) -> TensorBoard:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(self._directory), purge_step=self._purge)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def step(self, record: dict[str, Any]) -> None:
        for name, value in _train_scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])

    def validation(self, step: int, result: dict[str, Any]) -> None:
        for name, value in _validation_scalars(result).items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class WeightsAndBiases(Sink):
    """A run of wandb's `project`, the same one when the run is resumed. Where to and as whom is wandb's own business."""

    def __init__(self, directory: Path, project: str, first_step: int, settings: dict[str, Any]) -> None:
        _require("wandb")
        self._directory = directory
        self._project = project
        self._settings = settings
        self._resumed = first_step > 0

    def __enter__(self) -> WeightsAndBiases:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=self._project,
                id=self._id(),
                name=self._directory.resolve().name,
                config=self._settings,
                dir=str(self._directory),
                resume="allow",
                settings=wandb.Settings(silent=True),
            )
        except Exception as error:  # its own words are left out: they may quote a key
            raise SpliceError(
                f"wandb: no run could be started ({type(error).__name__}); run `wandb login`, set WANDB_MODE=offline to "
                "send it later, or leave wandb out"
            ) from None
        self._from = self._run.step  # earlier steps are there, and equal: wandb takes none twice
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._run.finish(exit_code=0 if kind is None else 1)

    def step(self, record: dict[str, Any]) -> None:
        self._log(record["step"], _train_scalars(record))

    def validation(self, step: int, result: dict[str, Any]) -> None:
        self._log(step, _validation_scalars(result))

    def _log(self, step: int, scalars: dict[str, float]) -> None:
        if step >= self._from:
            self._run.log(scalars, step=step)

    def _id(self) -> str:
        """The run's id with wandb: kept in the run's directory, and a fresh one for a run that begins anew."""
        path = self._directory / WANDB
        kept = read_json(path) if self._resumed else None
        if isinstance(kept, dict) and kept.get("project") == self._project:
            return str(kept["id"])
        fresh = secrets.token_hex(8)
        write_json(path, {"project": self._project, "id": fresh})
        return fresh


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


@dataclass(frozen=True)
class Bucket:
    """Validation at token positions start <= p < end: mean loss in nats, nan where it has no tokens."""

    start: int
    end: int
    loss: float
    tokens: int


@dataclass(frozen=True)
class Validation:
    """An evaluation after `step` steps: loss in nats a token, perplexity, tokens it is the mean of."""

    step: int
    loss: float
    perplexity: float
    tokens: int
    by_position: tuple[Bucket, ...]


@dataclass(frozen=True)
class Metrics:
    """A run's metrics.jsonl: arrays of one entry a step, in the file's names and units, and the evaluations by step.

    step, tokens, epoch are int64, the rest float64, nan where the file has null. tokens: all read up to that step.
    """

    step: np.ndarray
    tokens: np.ndarray
    epoch: np.ndarray
    loss: np.ndarray
    lr: np.ndarray
    grad_norm: np.ndarray
    tokens_per_second: np.ndarray
    mfu: np.ndarray
    memory_gib: np.ndarray
    seconds: np.ndarray
    validations: tuple[Validation, ...]

    def tokens_at(self, step: int) -> float:
        """Tokens read after `step` steps."""
        return float(np.interp(step, np.append(0, self.step), np.append(0, self.tokens)))


WHOLE = ("step", "tokens", "epoch")
REAL = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory_gib", "seconds")


def read_metrics(run: Path) -> Metrics:
    """The metrics of a run, going on or finished. A torn last line is left out; of two evaluations of a step the later stands.

    Raises SpliceError for a directory without metrics.jsonl, a file without a finished step, or a line that is not one
    of this log.
    """
    path = run / METRICS
    if not path.is_file():
        raise SpliceError(f"{run}: no {METRICS} there; name the directory of a training run")
    steps, validations = [], {}
    for number, (_, record) in enumerate(_lines(path), 1):
        try:
            if "validation" in record:
                validations[record["step"]] = _validation(record)
            else:
                steps.append([int(record[name]) for name in WHOLE] + [_real(record.get(name)) for name in REAL])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _corrupt(path, number, f"{type(error).__name__}: {error}") from None
    if not steps:
        raise SpliceError(f"{path}: no finished step yet; wait for the first one")
    columns = dict(zip(WHOLE + REAL, zip(*steps, strict=True), strict=True))
    arrays = {name: np.array(column, np.int64 if name in WHOLE else np.float64) for name, column in columns.items()}
    return Metrics(**arrays, validations=tuple(validations[step] for step in sorted(validations)))


def _validation(record: dict[str, Any]) -> Validation:
    result = record["validation"]
    buckets = [
        Bucket(int(b["from"]), int(b["to"]), _real(b["loss"]), int(b["tokens"]))
        for b in result.get("by_position") or ()
    ]
    loss, perplexity = _real(result["loss"]), _real(result["perplexity"])
    return Validation(int(record["step"]), loss, perplexity, int(result["tokens"]), tuple(buckets))


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of metrics.jsonl, raw and as records with a step; a torn last one is left out, any other is an error."""
    lines = path.read_bytes().split(b"\n")  # the last has no end: it is torn, or empty
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            whole = isinstance(record, dict) and isinstance(record.get("step"), int)
            wrong = "" if whole else "no step in it"
        except ValueError as error:  # of JSON or of UTF-8
            wrong = str(error)
        if not wrong:
            yield line, record
        elif number < len(lines):
            raise _corrupt(path, number, wrong)


def _corrupt(path: Path, number: int, wrong: str) -> SpliceError:
    return SpliceError(f"{path}:{number}: not a line of a run's log ({wrong}); delete the line")


def _finite(value: Any) -> Any:
    """`value` with None for numbers that JSON does not have: nan and the infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _real(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _number(value: float | None, form: str) -> str:
    return format(_real(value), form)


def _train_scalars(record: dict[str, Any]) -> dict[str, float]:
    return {f"train/{name}": value for name, value in record.items() if name != "step" and _is_number(value)}


def _validation_scalars(result: dict[str, Any]) -> dict[str, float]:
    scalars = {f"validation/{name}": value for name, value in result.items() if _is_number(value)}
    for bucket in result.get("by_position") or ():
        scalars[f"validation_loss_by_position/{bucket['from']}-{bucket['to']}"] = bucket["loss"]
    return {name: value for name, value in scalars.items() if value is not None}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _require(package: str) -> None:
    """Raise SpliceError where a package that was asked for is not installed."""
    if find_spec(package) is None:
        raise SpliceError(
            f"{package}: asked for and not installed; pip install {package}, or leave it out: {METRICS} has the same numbers"
        )


def duration(seconds: float) -> str:
    """Seconds in the two largest units that say it: 2d 03h, 3h 05m, 12m 30s, 45s."""
    left = round(seconds)
    for unit, size, lower, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if left >= size:
            return f"{left // size}{unit} {left % size // part:02d}{lower}"
    return f"{left}s"
