"""A dataset that `save_to_disk` wrote, read with `datasets.load_from_disk`: DIR, or DIR@SPLIT of a dataset of splits.

Items of a unit: (directory, name, start, stop): a range of rows. The id of a row is NAME:ROW.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..errors import SpliceError
from .arrow import documents
from .hub import choose_split, import_datasets
from .records import Document, Quarantined, SourceSettings, Unit, os_path, printable
from .rows import fields, require_fields

BATCH_BYTES = 8 * 2**20
BATCH_ROWS = 4096


def is_saved(path: str) -> bool:
    """Whether save_to_disk wrote this directory."""
    return _is_dict(path) or all(
        os.path.isfile(os.path.join(path, name)) for name in ("dataset_info.json", "state.json")
    )


def split_spec(spec: str) -> tuple[str, str | None]:
    """(directory, split) of DIR@SPLIT; a directory whose own name holds an "@" stays one."""
    path, at, split = spec.rpartition("@")
    if at and not os.path.lexists(spec) and _is_dict(path):
        return path, split
    return spec, None


def plan(source: str, spec: str, name: str, settings: SourceSettings, target_bytes: int) -> list[Unit]:
    """Units of rows of about target_bytes. Raises SpliceError where the dataset is damaged or has no text column."""
    path, split = split_spec(spec)
    datasets = import_datasets(spec)
    if _is_dict(path):
        splits = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        path = os.path.join(path, choose_split(path, splits, split))
    try:
        rows = datasets.load_from_disk(path)
        size = sum(os.path.getsize(file["filename"]) for file in rows.cache_files)
    except Exception as error:
        raise SpliceError(f"{spec}: cannot be loaded with datasets.load_from_disk: {error}") from error
    require_fields(spec, rows.column_names, settings)
    step = max(1, len(rows) * target_bytes // max(1, size))
    root = printable(os.path.abspath(path))
    return [
        Unit(source, "disk", ((root, name, start, stop),), size * (stop - start) // len(rows))
        for start in range(0, len(rows), step)
        for stop in [min(start + step, len(rows))]
    ]


def read(unit: Unit, settings: SourceSettings) -> Iterator[Document | Quarantined]:
    """The unit's documents, in the order of the rows; damage ends the unit with one Quarantined."""
    for path, name, start, stop in unit.items:
        row = start
        try:
            rows = import_datasets(name).load_from_disk(os_path(path))
            found = rows.column_names
            wanted = [field for field in fields(settings) if field in found]
            step = max(1, min(BATCH_ROWS, BATCH_BYTES * (stop - start) // max(1, unit.bytes)))
            table_of = rows.select_columns(wanted or found[:1]).with_format("arrow")
            while row < stop:
                table = table_of[row : min(row + step, stop)]
                yield from documents(table, found, name, row, settings)
                row += table.num_rows
        except SpliceError:
            raise
        except Exception as error:
            yield Quarantined(name, row, f"rows {row} to {stop - 1} cannot be read: {error}")


def paths(unit: Unit) -> Iterator[tuple[str, str]]:
    """(name, path to stat) of each file of the dataset."""
    for path, name, start, _ in unit.items:
        if start:  # said by the unit of the first rows
            continue
        with os.scandir(os_path(path)) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                yield f"{name}/{printable(entry.name)}", entry.path


def _is_dict(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "dataset_dict.json"))
