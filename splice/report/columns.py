"""The light columns of the shards, flat: everything but tokens, names and texts, of all examples up to a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..seeded import permutation
from ..storage import local
from ..store import PackedDataset

MOST_EXAMPLES = 1 << 16
COLUMNS = ("doc_offsets", "doc_spans", "parents", "scores", "padding", "example", "pack")


@dataclass(frozen=True)
class Columns:
    """E examples of D documents in all, in stored order.

    By example: stored (its place in the dataset), documents, padding, own tokens of documents, number (its place in its
    plan), walk (which plan: packs, of mixtures by part): int64 [E]. By document: example (0 .. E - 1), place in the example
    from 0, own tokens, parent's place in the example (-1: none), depth (steps from the root): int64 [D]; score: float32 [D],
    NaN for a root; opens: bool [D], whether the document begins here, and does not go on from the example before: each
    document counts once among them, however it is cut. sources: own tokens by source, only where asked for.
    """

    stored: np.ndarray
    documents: np.ndarray
    padding: np.ndarray
    own: np.ndarray
    number: np.ndarray
    walk: np.ndarray
    example_of: np.ndarray
    place: np.ndarray
    tokens: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    score: np.ndarray
    opens: np.ndarray
    sources: dict[str, int]

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def progress(self) -> np.ndarray:
        """float64 [E]: how far its walk was when an example was made, 0 to 1, among the examples read."""
        order = np.lexsort((self.number, self.walk))
        walk = self.walk[order]
        first = np.searchsorted(walk, walk)
        size = np.searchsorted(walk, walk, side="right") - first
        done = np.empty(len(self), np.float64)
        done[order] = (np.arange(len(self)) - first + 0.5) / size
        return done

    @property
    def median_example(self) -> int:
        """The place in the dataset of the first example with the median number of documents."""
        order = np.argsort(self.documents, kind="stable")
        return int(self.stored[order[(len(self) - 1) // 2]])


def read_columns(dataset: PackedDataset, seed: int, sources: bool = False) -> Columns:
    """The columns of every example, or of about MOST_EXAMPLES in row groups of shards drawn by the seed.

    The own tokens by source are counted where `sources` says so. Raises pyarrow's errors for a shard that cannot be read.
    """
    names = [*COLUMNS, "sources"] if sources else list(COLUMNS)
    tables: dict[int, Any] = {}
    left = MOST_EXAMPLES
    for shard in permutation(len(dataset.shards), seed, "report", "shards").tolist():
        if left <= 0:
            break
        tables[shard] = _read(dataset.path / "data" / dataset.shards[shard], names, left)
        left -= tables[shard].num_rows
    entries = dataset.manifest["shards"]
    first = np.cumsum([0] + [entry["examples"] for entry in entries])
    return _flat(
        [tables[shard] for shard in sorted(tables)],
        np.array([first[shard] for shard in sorted(tables)], np.int64),
        np.array([entries[shard].get("dataset", 0) for shard in sorted(tables)], np.int64),
    )


def _read(path: Path, names: list[str], most: int) -> Any:
    """The named columns of a shard's first row groups, as many as hold `most` rows, or all."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(local(path), memory_map=True)
    rows = np.cumsum([file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)])
    groups = min(int(np.searchsorted(rows, most)) + 1, file.num_row_groups)
    return file.read_row_groups(list(range(groups)), columns=names, use_threads=False)


def _flat(tables: list[Any], first: np.ndarray, part: np.ndarray) -> Columns:
    """The tables of some shards as one. first, part: int64 [shards], a shard's first example and its part of a mixture."""
    rows = np.array([table.num_rows for table in tables], np.int64)
    shard = np.repeat(np.arange(len(tables)), rows)
    documents = _joined(tables, "doc_offsets", _sizes).astype(np.int64)
    opens = np.cumsum(documents) - documents
    example_of = np.repeat(np.arange(len(shard)), documents)
    begin, end = _joined(tables, "doc_spans", lambda chunk: chunk.flatten().flatten()).astype(np.int64).reshape(-1, 2).T
    parent = _joined(tables, "parents", _elements).astype(np.int64)
    tokens = end - begin
    walk = part[shard] << 32 | _joined(tables, "pack").astype(np.int64)
    return Columns(
        stored=np.arange(len(shard)) + (first - np.cumsum(rows) + rows)[shard],
        documents=documents,
        padding=_joined(tables, "padding").astype(np.int64),
        own=np.bincount(example_of, tokens, minlength=len(shard)).astype(np.int64),
        number=_joined(tables, "example").astype(np.int64),
        walk=walk,
        example_of=example_of,
        place=np.arange(len(tokens)) - opens[example_of],
        tokens=tokens,
        parent=parent,
        depth=depths(np.where(parent < 0, -1, parent + opens[example_of])),
        score=_joined(tables, "scores", _elements).astype(np.float32),
        opens=_opens(begin, tokens, walk[example_of]),
        sources=_by_source(tables, tokens),
    )


def _opens(begin: np.ndarray, tokens: np.ndarray, walk: np.ndarray) -> np.ndarray:
    """Columns.opens, of begin and own tokens of the pieces and their walks, int64 [D].

    In a walk that cuts documents in pieces, one without a token is a BOS whose document follows in the next example.
    """
    carries = np.isin(walk, np.unique(walk[begin > 0]))
    return (begin == 0) & ~(carries & (tokens == 0))


def _joined(tables: list[Any], name: str, of: Callable[[Any], Any] = lambda chunk: chunk) -> np.ndarray:
    """What `of` gives of each chunk of a column, as one array; nulls are NaN."""
    chunks = [chunk for table in tables for chunk in table.column(name).chunks]
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(of(chunk)) for chunk in chunks)])


def _elements(lists: Any) -> Any:
    return lists.flatten()


def _sizes(lists: Any) -> np.ndarray:
    return np.diff(lists.offsets.to_numpy())


def depths(parent: np.ndarray) -> np.ndarray:
    """Steps from the root of each node of a forest, int64 [D]; parent: int64 [D], -1 for a root.

    Each round doubles the steps looked back, so a path of n takes log n rounds.
    """
    here = np.arange(len(parent))
    ancestor = np.where(parent < 0, here, parent)
    steps = (parent >= 0).astype(np.int64)
    while True:
        further = steps[ancestor]
        if not further.any():
            return steps
        steps = steps + further
        ancestor = ancestor[ancestor]


def _by_source(tables: list[Any], tokens: np.ndarray) -> dict[str, int]:
    """Own tokens by source, empty where the sources were not read. tokens: int64 [D], of every document of the tables."""
    total: Counter[str] = Counter()
    start = 0
    for table in tables:
        for chunk in table.column("sources").chunks if "sources" in table.column_names else ():
            names = chunk.flatten().dictionary_encode()
            sums = np.bincount(names.indices.to_numpy(), tokens[start : start + len(names)])
            total.update(dict(zip(names.dictionary.to_pylist(), sums.astype(np.int64).tolist(), strict=True)))
            start += len(names)
    return dict(sorted(total.items()))
