"""A task: a small descriptor in, files and a receipt out. It knows nothing of the engine that runs it.

A stage is a list of tasks, each run by `splice.stages.<stage>.run(args, directory, threads) -> receipt`. The receipt is
written last, as the task's marker: what has one is done, and is never done again.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import RESUME, BuildFailed, SpliceError, StoreFailed
from .files import read_json, read_jsons, write_json
from .storage import exists, location, names, remove

Receipt = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """stage: module in splice.stages; name: unique in the stage's directory; args: JSON values.

    after: a stage of which this one reads all files, so its tasks come first where both are run together.
    """

    stage: str
    name: str
    directory: str
    args: dict[str, Any] = field(default_factory=dict)
    after: str = ""

    @property
    def marker(self) -> Path:
        """Where the receipt is written when the task is done."""
        return location(self.directory) / "done" / f"{self.stage}-{self.name}.json"

    @property
    def error(self) -> Path:
        """Where a task that fails leaves its reason."""
        return location(self.directory) / "failed" / f"{self.stage}-{self.name}.json"

    def to_json(self) -> str:
        """One string: what a runner carries. Its coders take seconds for the same values as nested tuples."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        return cls(**json.loads(text))


def run_task(task: Task, threads: int = 1) -> Receipt:
    """Run one task unless its receipt is there. On failure the reason is left in `task.error` and raised."""
    done = read_json(task.marker)
    if done is not None:
        return done
    try:
        stage = importlib.import_module(f"splice.stages.{task.stage}")
        receipt = stage.run(task.args, location(task.directory), threads)
        write_json(task.marker, receipt)
    except Exception as error:
        leave_reason(task, error)
        raise
    return receipt


def failure_of(tasks: list[Task]) -> SpliceError | None:
    """The first failure that tasks left, as an error that names task, host and cause."""
    for task, reason in zip(tasks, by_directory(tasks, "error"), strict=True):
        if reason is None or exists(task.marker):  # a later attempt may have done it
            continue
        if reason["expected"]:
            error: SpliceError = SpliceError(reason["cause"])
            error.exit_code = reason["exit_code"]
            return error
        return BuildFailed(
            f"task {task.stage}/{task.name} failed on {reason['host']}: {reason['cause']}\n{reason['trace']}"
            f"Mend the cause. {RESUME}"
        )
    return None


def receipts(tasks: Sequence[Task]) -> list[Receipt | None]:
    """The receipt of each task, None of one that is not done."""
    return by_directory(tasks, "marker")


def by_directory(tasks: Sequence[Task], which: str) -> list[Any | None]:
    """What the `marker` or `error` of each task holds, read directory by directory."""
    places: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        places.setdefault(task.directory, []).append(i)
    found: list[Any | None] = [None] * len(tasks)
    for numbers in places.values():
        for i, value in zip(numbers, read_jsons([getattr(tasks[i], which) for i in numbers]), strict=True):
            found[i] = value
    return found


def forget_failures(tasks: Sequence[Task]) -> None:
    """Remove what earlier attempts of the tasks left of their failures."""
    for directory in {task.directory for task in tasks}:
        there = names(location(directory) / "failed")
        for task in tasks:
            if task.directory == directory and task.error.name in there:
                remove(task.error)


def leave_reason(task: Task, error: Exception) -> None:
    """Write why a task failed to `task.error`, for the driver on whichever host it is."""
    told = isinstance(error, SpliceError)  # in a sentence of its own
    expected = told and not isinstance(error, StoreFailed)
    reason = {
        "cause": str(error) if told else f"{type(error).__name__}: {error}",
        "expected": expected,
        "exit_code": getattr(error, "exit_code", 1),
        "host": f"{socket.gethostname()} (process {os.getpid()})",
        "trace": "" if told or isinstance(error, OSError) else traceback.format_exc(),
    }
    try:
        write_json(task.error, reason)
    except (OSError, StoreFailed):  # a full disk: the engine still carries the exception itself
        return
