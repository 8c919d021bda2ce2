"""Parquet files: one document a row.

Items of a unit: (path, name, first_group, stop_group, first_row), ... : a range of row groups, and the number in the
file of its first row. Texts may be string, large_string, string_view, binary or any of these dictionary-encoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..storage import is_url
from .arrow import documents
from .blocks import EXPANSION
from .records import Document, Quarantined, SourceSettings, Unit, os_path, os_reason, printable
from .remote import fetched, size_of
from .rows import fields, require_fields

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Item = tuple[str, str, int, int | None, int]
BATCH_BYTES = 8 * 2**20
BATCH_ROWS = 4096
BUFFER_BYTES = 2**20


def plan_file(path: str, name: str, settings: SourceSettings, target_bytes: int) -> list[tuple[Item, int]]:
    """The file's items and the sizes of the columns read, by ranges of row groups of about target_bytes.

    A file that cannot be opened is one item all the same: its reader reports it.
    """
    shown, named = printable(path), printable(name)
    if is_url(path):
        return [((shown, named, 0, None, 0), size_of(path) * EXPANSION)]
    try:
        with _open(path) as file:
            return [
                ((shown, named, start, stop, row), size)
                for start, stop, row, size in _ranges(file, settings, target_bytes)
            ]
    except _damage():
        return [((shown, named, 0, None, 0), _size(path))]


def _ranges(file: pq.ParquetFile, settings: SourceSettings, target_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(first group, stop group, number of the first row, bytes) of each range."""
    metadata = file.metadata
    wanted = set(fields(settings))
    start, first_row, row, size = 0, 0, 0, 0
    for group in range(metadata.num_row_groups):
        described = metadata.row_group(group)
        columns = (described.column(i) for i in range(described.num_columns))
        bytes_ = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in wanted)
        if group > start and size + bytes_ > target_bytes:
            yield start, group, first_row, size
            start, first_row, size = group, row, 0
        row += described.num_rows
        size += bytes_
    if row > first_row:
        yield start, metadata.num_row_groups, first_row, size


def probe(path: str, name: str, settings: SourceSettings) -> None:
    """Raises SpliceError where the file has no text (or id) column."""
    try:
        with _open(path) as file:
            found = file.schema_arrow.names
    except _damage():
        return
    require_fields(printable(name), found, settings)


def read(unit: Unit, settings: SourceSettings) -> Iterator[Document | Quarantined]:
    """The unit's documents, in the order of the rows. A damaged row group is left where it breaks; the next is read."""
    for path, name, start, stop, row in unit.items:
        try:
            file = _open(fetched(path))
            found = file.schema_arrow.names
        except _damage() as error:
            yield Quarantined(name, None, f"not readable as Parquet: {_words(error)}")
            continue
        wanted = [field for field in fields(settings) if field in found]
        with file:
            groups = file.metadata.num_row_groups
            for group in range(start, groups if stop is None else min(stop, groups)):
                after = row + file.metadata.row_group(group).num_rows
                rows = _batch_rows(file, group)
                try:
                    for batch in file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                        yield from documents(batch, found, name, row, settings)
                        row += batch.num_rows
                except _damage() as error:
                    lost = f"rows {row} to {after - 1} are lost" if after - row > 1 else "the row is lost"
                    yield Quarantined(name, row, f"row group {group} cannot be read, {lost}: {_words(error)}")
                row = after


def _open(path: str) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    # Neither prefetched nor mapped: a column chunk streams through BUFFER_BYTES instead of being held whole.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True)


def _batch_rows(file: pq.ParquetFile, group: int) -> int:
    described = file.metadata.row_group(group)
    each = described.total_byte_size // max(1, described.num_rows) + 1
    return max(1, min(BATCH_ROWS, BATCH_BYTES // each))


def _damage() -> tuple[type[Exception], ...]:
    """What pyarrow raises for bad bytes (ArrowInvalid is a ValueError, ArrowException covers the rest) and bad disks."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return os_reason(error)
    return str(error).strip().partition("\n")[0][:200]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def paths(unit: Unit) -> Iterator[tuple[str, str]]:
    """(name, path to stat) of each item."""
    for path, name, *_ in unit.items:
        yield name, path if is_url(path) else os_path(path)
