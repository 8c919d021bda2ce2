"""Examples in a file one after the other, each to be had by its number, without the others and from a store too.

FILE holds each as an Arrow record batch of the shards' columns, with tokens as narrow as the vocabulary lets them be;
FILE.starts where each begins and the last ends, int64 [n + 1], little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StoreFailed
from ..storage import read_ranges
from .shards import ROW_GROUP_TOKENS, Example, as_table, read_rows, schema

START = np.dtype("<i8")


def starts_path(path: Path) -> Path:
    """Where the places of a file's examples lie."""
    return path.with_name(f"{path.name}.starts")


def write_records(path: Path, examples: Iterable[Example], length: int, retriever: str, narrow: bool) -> np.ndarray:
    """Write examples to one file, some at a time; gives where each begins. narrow: all tokens are below 65,536."""
    starts = [0]
    stream = iter(examples)
    with open(path, "wb") as out:
        while rows := list(islice(stream, max(1, ROW_GROUP_TOKENS // length))):
            (batch,) = as_table(rows, length, retriever).cast(_schema(narrow)).to_batches()
            for row in range(len(rows)):
                starts.append(starts[-1] + out.write(batch.slice(row, 1).serialize()))
    return np.array(starts, START)


def read_records(wanted: Sequence[tuple[Path, int]], narrow: bool) -> list[Example]:
    """Examples by file and number there, written as `narrow`. Raises StoreFailed for a file that is torn."""
    import pyarrow as pa

    size = START.itemsize
    places = read_ranges([(starts_path(path), size * number, size * (number + 2)) for path, number in wanted])
    ranges = [(path, *np.frombuffer(place, START).tolist()) for (path, _), place in zip(wanted, places, strict=True)]
    found = []
    for (path, _), data in zip(wanted, read_ranges(ranges), strict=True):
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), _schema(narrow))
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            raise StoreFailed(f"{path}: damaged ({error}); remove {path.parent} and build again") from None
        (example,) = read_rows(batch, [0])
        found.append(replace(example, input_ids=example.input_ids.astype(np.int32)))
    return found


@cache
def _schema(narrow: bool) -> Any:
    import pyarrow as pa

    kind = pa.list_(pa.uint16() if narrow else pa.int32())
    return schema().set(schema().get_field_index("input_ids"), pa.field("input_ids", kind))
