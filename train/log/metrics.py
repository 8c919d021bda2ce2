"""metrics.jsonl: the record of a run, written, cut when it is resumed, and read again.

A line is out of this process as soon as its step is done, so kill -9 loses none; a run that is resumed from step s first
cuts what is later than s, so that its file is that of a run never stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from splice.errors import SpliceError
from splice.files import replacing

from .sink import Sink

METRICS = "metrics.jsonl"


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
                steps.append([int(record[name]) for name in WHOLE] + [real(record.get(name)) for name in REAL])
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
        Bucket(int(b["from"]), int(b["to"]), real(b["loss"]), int(b["tokens"])) for b in result.get("by_position") or ()
    ]
    loss, perplexity = real(result["loss"]), real(result["perplexity"])
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


def real(value: float | None) -> float:
    return math.nan if value is None else float(value)
