"""A run's log as a file: a JSON object with a step in each line, written, cut when the run is resumed, and read again.

A line is out of this process as soon as it is written, so kill -9 loses none; a run that is resumed from step s first cuts
what is later than s, so that its file is that of a run never stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from splice.errors import SpliceError
from splice.files import replacing

from .sink import Sink


class LinesFile(Sink):
    """The file at `path`, one flushed line a record. A number that is not finite is null, as JSON has none."""

    def __init__(self, path: Path, first_step: int) -> None:
        self._path = path
        self._first_step = first_step

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            cut_after(self._path, self._first_step)
        self._file: BinaryIO = self._path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write(json.dumps(_finite(record), allow_nan=False).encode() + b"\n")
        self._file.flush()


def cut_after(path: Path, step: int) -> None:
    """Leave in a log the lines up to `step`, and no torn last one; none at all for step 0. Atomic.

    Raises SpliceError where a line other than the last is not one of such a log.
    """
    kept = [line for line, record in read_lines(path) if record["step"] <= step] if step else []
    with replacing(path, sync=True) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line in kept))


def read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines, raw and as records with a step; a torn last one is left out, any other is an error."""
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
            raise corrupt(path, number, wrong)


def corrupt(path: Path, number: int, wrong: str) -> SpliceError:
    """What is said of a line that is not one of the log."""
    return SpliceError(f"{path}:{number}: not a line of a run's log ({wrong}); delete the line")


def real(value: float | None) -> float:
    """A number as it was before it was written: nan for null."""
    return math.nan if value is None else float(value)


def _finite(value: Any) -> Any:
    """`value` with None for numbers that JSON does not have: nan and the infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
