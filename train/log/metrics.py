"""metrics.jsonl: the record of a run, a line a step and a line an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splice.errors import SpliceError

from .lines import LinesFile, corrupt, read_lines, real

METRICS = "metrics.jsonl"


class MetricsFile(LinesFile):
    """metrics.jsonl in `directory`."""

    def __init__(self, directory: Path, first_step: int) -> None:
        super().__init__(directory / METRICS, first_step)

    def step(self, record: dict[str, Any]) -> None:
        self.write(record)

    def validation(self, step: int, result: dict[str, Any]) -> None:
        self.write({"step": step, "validation": result})


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
    for number, (_, record) in enumerate(read_lines(path), 1):
        try:
            if "validation" in record:
                validations[record["step"]] = _validation(record)
            else:
                steps.append([int(record[name]) for name in WHOLE] + [real(record.get(name)) for name in REAL])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise corrupt(path, number, f"{type(error).__name__}: {error}") from None
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
