"""Parquet shards: examples of exactly L tokens with the provenance of every document in them.

Token ids are int32 without a dictionary, BYTE_STREAM_SPLIT and zstd level 1: a byte a token, and the fastest to write
and to read. Row groups of about 256K tokens keep random access near a millisecond.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROW_GROUP_TOKENS = 2**18


@dataclass(frozen=True, slots=True)
class Example:
    """One training sequence of L tokens and its n documents, in the order they are written.

    input_ids: int32 [L], the last `padding` of them pad. doc_offsets: int32 [n], where a document's segment (with its
    BOS) starts; it ends where the next starts, the last where the padding does. doc_spans: int32 [n, 2], the range of
    the document's own tokens that is here. parents: int32 [n], the place in this list of the document that retrieved
    it, -1 for a root; scores: float32 [n], NaN for a root. number: the example's place in the plan.
    """

    number: int
    pack: int
    input_ids: np.ndarray
    padding: int
    doc_ids: list[str]
    sources: list[str]
    doc_offsets: np.ndarray
    doc_spans: np.ndarray
    parents: np.ndarray
    scores: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """int32 [n]: where each document's segment ends."""
        return np.append(self.doc_offsets[1:], len(self.input_ids) - self.padding).astype(np.int32)


@cache
def schema() -> Any:
    """The columns of a shard."""
    import pyarrow as pa

    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("doc_offsets", pa.list_(pa.int32())),
            ("doc_spans", pa.list_(pa.list_(pa.int32()))),
            ("doc_ids", pa.list_(pa.string())),
            ("sources", pa.list_(pa.string())),
            ("parents", pa.list_(pa.int32())),
            ("scores", pa.list_(pa.float32())),
            ("padding", pa.int32()),
            ("example", pa.int64()),
            ("pack", pa.int32()),
            ("retriever", pa.string()),
        ]
    )


def write_shard(path: Path, examples: Iterable[Example], length: int, retriever: str) -> dict[str, Any]:
    """Write examples to one file, a row group at a time. Gives examples, padding, and by source the documents' own
    tokens and the separators written."""
    import pyarrow.parquet as pq

    group = max(1, ROW_GROUP_TOKENS // length)
    tokens: Counter[str] = Counter()
    separators: Counter[str] = Counter()
    count = padding = 0
    stream = iter(examples)
    with pq.ParquetWriter(
        path,
        schema(),
        compression="zstd",
        compression_level=1,
        use_dictionary=["doc_ids.list.element", "sources.list.element", "retriever"],
        column_encoding={"input_ids.list.element": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
    ) as writer:
        while rows := list(islice(stream, group)):
            writer.write_table(as_table(rows, length, retriever), row_group_size=group)
            count += len(rows)
            for row in rows:
                padding += row.padding
                segments = (row.ends - row.doc_offsets).tolist()
                own = (row.doc_spans[:, 1] - row.doc_spans[:, 0]).tolist()
                for source, size, text in zip(row.sources, segments, own, strict=True):
                    tokens[source] += text
                    separators[source] += size - text
    by_source = {s: {"written_tokens": tokens[s], "separators": separators[s]} for s in sorted(tokens)}
    return {"examples": count, "padding": padding, "by_source": by_source}


def as_table(rows: list[Example], length: int, retriever: str) -> Any:
    """Examples of L = `length` tokens as a pyarrow.Table of the shards' schema."""
    import pyarrow as pa

    n = np.array([len(row.doc_ids) for row in rows])
    offsets = np.concatenate([[0], np.cumsum(n)]).astype(np.int32)

    def lists(values: Any, kind: Any) -> Any:
        return pa.ListArray.from_arrays(offsets, pa.array(values, kind))

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(row, name) for row in rows])

    spans = joined("doc_spans").reshape(-1)
    span_lists = pa.ListArray.from_arrays(np.arange(0, len(spans) + 1, 2, dtype=np.int32), pa.array(spans, pa.int32()))
    scores = joined("scores")
    columns = [
        pa.ListArray.from_arrays(
            np.arange(0, (len(rows) + 1) * length, length, dtype=np.int32), pa.array(joined("input_ids"), pa.int32())
        ),
        lists(joined("doc_offsets"), pa.int32()),
        pa.ListArray.from_arrays(offsets, span_lists),
        lists([d for row in rows for d in row.doc_ids], pa.string()),
        lists([s for row in rows for s in row.sources], pa.string()),
        lists(joined("parents"), pa.int32()),
        pa.ListArray.from_arrays(offsets, pa.array(scores, pa.float32(), mask=np.isnan(scores))),
        pa.array([row.padding for row in rows], pa.int32()),
        pa.array([row.number for row in rows], pa.int64()),
        pa.array([row.pack for row in rows], pa.int32()),
        pa.array([retriever] * len(rows), pa.string()),
    ]
    return pa.table(columns, schema=schema())


def read_rows(table: Any, rows: Iterable[int]) -> list[Example]:
    """Rows of a table of the shards' schema as examples; arrays are views of the table's memory."""
    return [_example(table, row) for row in rows]


def _example(table: Any, row: int) -> Example:
    def value(name: str) -> Any:
        return table.column(name)[row]

    def array(name: str) -> np.ndarray:
        return value(name).values.to_numpy(zero_copy_only=False)

    return Example(
        number=value("example").as_py(),
        pack=value("pack").as_py(),
        input_ids=array("input_ids"),
        padding=value("padding").as_py(),
        doc_ids=value("doc_ids").as_py(),
        sources=value("sources").as_py(),
        doc_offsets=array("doc_offsets"),
        doc_spans=value("doc_spans").values.flatten().to_numpy().reshape(-1, 2),
        parents=array("parents"),
        scores=array("scores"),
    )


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
