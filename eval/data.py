"""Where a task's rows come from: files below --data-dir, known by their sha256, or a dataset of the hub.

A file is found by its name, or that and ".gz". One of another sha256 than is known is refused, unless --unverified-data
takes it, and then the results say so.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from splice.errors import SpliceError

from .settings import EngineSettings
from .task import DataFile

AGAIN = "download it again"
SHOWN = 12  # names of files in an error


@dataclass(frozen=True)
class Known:
    """A file that a task can read.

    name    without ".gz"; with its directory where the name alone says little ("dbpedia_csv/train.csv")
    sha256  of the file, packed or not, in any version that holds the same rows; () where none is known for certain
    subset  what it is a part of, in words; None where it is complete
    """

    name: str
    sha256: tuple[str, ...] = ()
    subset: str | None = None


@dataclass(frozen=True)
class Found:
    """A file that was read. data: unpacked; known: what was looked for; record: for the results."""

    path: Path
    data: bytes
    known: Known
    record: DataFile


def find(settings: EngineSettings, files: Sequence[Known], source: str) -> Found:
    """The first of `files` that is below --data-dir. source: where to get it, for the error.

    Raises SpliceError where there is none, no --data-dir, and for a file of another sha256 than is known.
    """
    if settings.data_dir is None:
        raise SpliceError(f"no --data-dir, and {_names(files)} is not on the hub; {source}")
    found = look(settings, files)
    if found is None:
        names = sorted({path.name for path in _walk(settings.data_dir)})
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        there = f"{', '.join(names[:SHOWN])}{more}" if names else "no files"
        raise SpliceError(f"{settings.data_dir}: no {_names(files)} (or .gz) below it (found: {there}); {source}")
    return found


def look(settings: EngineSettings, files: Sequence[Known]) -> Found | None:
    """As `find`, but None where there is none, or no --data-dir."""
    if settings.data_dir is None:
        return None
    paths = list(_walk(settings.data_dir))
    for known in files:
        ends = (f"/{known.name}", f"/{known.name}.gz")
        candidates = [_read(path, known) for path in paths if path.as_posix().endswith(ends)]
        if candidates:
            best = next((found for found in candidates if found.record.known), candidates[0])
            if not best.record.known and not settings.unverified_data:
                raise SpliceError(f"{best.path}: {_other(best)} with --unverified-data (the results will say so)")
            return best
    return None


def _other(found: Found) -> str:
    sha256 = f"its sha256 is {found.record.sha256}"
    if not found.known.sha256:
        return f"{sha256}, and none is known here to check it by; take it as it is"
    return f"{sha256}, that of {found.known.name} is {' or '.join(found.known.sha256)}; {AGAIN}, or take it as it is"


def _walk(directory: Path) -> Iterator[Path]:
    """The files below a directory, in a fixed order."""
    if not directory.is_dir():
        raise SpliceError(f"--data-dir {directory}: no such directory")
    for root, folders, names in os.walk(directory):
        folders.sort()
        yield from (Path(root, name).absolute() for name in sorted(names))


def _names(files: Sequence[Known]) -> str:
    return " or ".join(known.name for known in files)


def _read(path: Path, known: Known) -> Found:
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise SpliceError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    data = _unpack(path, packed) if path.suffix == ".gz" else packed
    sha256 = hashlib.sha256(data).hexdigest()  # unpacked, so that the same rows are the same data
    is_known = sha256 in known.sha256 or hashlib.sha256(packed).hexdigest() in known.sha256
    return Found(path, data, known, DataFile(path.name.removesuffix(".gz"), sha256, is_known, known.subset))


def _unpack(path: Path, packed: bytes) -> bytes:
    blocks = []
    try:
        with gzip.open(io.BytesIO(packed)) as stream:
            while block := stream.read1(1 << 16):  # what was read before a tear counts for the line's number
                blocks.append(block)
    except (EOFError, OSError, zlib.error):
        line = b"".join(blocks).count(b"\n") + 1
        raise SpliceError(f"{path}:{line}: the gzip stream is torn here; {AGAIN}") from None
    return b"".join(blocks)


def text_lines(found: Found) -> Iterator[tuple[str, str]]:
    """("file:line", line) of the lines that are not empty. What is not UTF-8 becomes U+FFFD."""
    for number, line in enumerate(found.data.decode("utf-8", errors="replace").split("\n"), 1):
        if line.strip():
            yield f"{found.path}:{number}", line.rstrip("\r")


def json_lines(found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file:line", row) of a file of JSON lines. Raises SpliceError for a line that is no JSON object."""
    for number, line in enumerate(found.data.split(b"\n"), 1):
        if line.strip():
            where = f"{found.path}:{number}"
            yield where, _object(where, _json(where, line))


def json_array(found: Found) -> Iterator[tuple[str, dict[str, Any]]]:
    """("file: item n", row) of a file that is one JSON array, n from 1."""
    rows = _json(str(found.path), found.data)
    if not isinstance(rows, list):
        raise SpliceError(f"{found.path}: not a JSON array but {_kind(rows)}; {AGAIN}")
    for number, row in enumerate(rows, 1):
        where = f"{found.path}: item {number}"
        yield where, _object(where, row)


def json_object(found: Found) -> dict[str, Any]:
    """A file that is one JSON object."""
    return _object(str(found.path), _json(str(found.path), found.data))


def csv_rows(found: Found, columns: int) -> Iterator[tuple[str, list[str]]]:
    """("file:line", fields) of a CSV file. Raises SpliceError for a row of another number of columns."""
    try:
        text = found.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = found.data.count(b"\n", 0, error.start) + 1
        raise SpliceError(f"{found.path}:{line}: not UTF-8; {AGAIN}") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise SpliceError(f"{found.path}:{first}: malformed CSV ({error}); {AGAIN}") from None
        if row is None:
            return
        if len(row) != columns:
            raise SpliceError(f"{found.path}:{first}: {len(row)} columns, expected {columns}; {AGAIN}")
        yield f"{found.path}:{first}", row


def field(where: str, row: dict[str, Any], name: str, kind: type | tuple[type, ...] = str) -> Any:
    """A row's field. Raises SpliceError where it is missing or of another type."""
    if name not in row:
        raise SpliceError(f'{where}: no field "{name}" (found: {", ".join(row) or "none"}); {AGAIN}')
    if not isinstance(row[name], kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(k.__name__ for k in kinds)
        raise SpliceError(f'{where}: field "{name}" is {_kind(row[name])}, expected {wanted}; {AGAIN}')
    return row[name]


def records(value: Any) -> list[dict[str, Any]]:
    """A list of dictionaries, also where the hub gives a dictionary of lists."""
    if isinstance(value, dict):
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    return list(value)


def hub(
    task: str, name: str, split: str, columns: Sequence[str], revision: str | None = None, config: str | None = None
) -> tuple[list[tuple[str, dict[str, Any]]], DataFile]:
    """("name@split row n", row) of a dataset's split, and its record: sha256 of the rows as JSON lines, keys sorted.

    Raises SpliceError where `datasets` is not installed, and where the hub does not give it.
    """
    place = ":".join(part for part in (name, config) if part)
    try:
        from datasets import load_dataset
    except ImportError:
        raise SpliceError(
            f"{task}: reading {place} of the hub needs `datasets`: pip install 'splice-data[eval]', or give the files "
            "with --data-dir"
        ) from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # or each of its retries is told of
    try:
        dataset = load_dataset(name, config, split=split, revision=revision)
        missing = [column for column in columns if column not in dataset.column_names]
        if missing:
            raise SpliceError(
                f"{task}: {place} of the hub has no column {', '.join(missing)} (found: "
                f"{', '.join(dataset.column_names)}); give the files with --data-dir"
            )
        rows = list(dataset.select_columns(list(columns)))
    except SpliceError:
        raise
    except Exception as error:  # whatever the hub, the network and the data's own files come up with
        words = (str(error).strip() or type(error).__name__).partition("\n")[0][:300]
        raise SpliceError(
            f"{task}: {place} of the hub cannot be loaded: {words}; give the files with --data-dir"
        ) from error
    digest = hashlib.sha256()
    for row in rows:
        digest.update(orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE))
    record = DataFile(f"hub:{place}@{split}", digest.hexdigest(), known=False)
    return [(f"{place}@{split} row {number}", row) for number, row in enumerate(rows, 1)], record


def _json(where: str, data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SpliceError(f"{where}: malformed JSON ({error}); {AGAIN}") from None


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpliceError(f"{where}: not a JSON object but {_kind(value)}; {AGAIN}")
    return value


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
