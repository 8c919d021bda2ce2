"""Packs: the documents that are indexed together, and the Arrow tables that hold them.

A pack is stored as a few Arrow IPC files (parts of about 32 MB of text), uncompressed so that every reader maps them
instead of loading them; the tokens lie in files of their own, part by part, so that another tokenizer leaves text and
graph as they are. A document is known by its number in the pack, through all parts in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .errors import StoreFailed
from .shared import shared
from .storage import local, location

PACKS_AT_HAND = 8  # a process keeps so many open


@dataclass(frozen=True)
class Pack:
    """One pack, memory-mapped. N documents."""

    number: int
    parts: tuple[Any, ...]  # pyarrow.RecordBatch, one a file: id, source, repo, path, domain, text
    tokens: tuple[Any, ...]  # the same parts' tokens; empty where the pack was opened without
    first: np.ndarray  # int64 [parts + 1]: number of each part's first document

    @property
    def n_documents(self) -> int:
        return int(self.first[-1])

    @cached_property
    def texts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per part (data uint8 [bytes], offsets int64 [n + 1]): the documents' text as it lies in the file."""
        return [binary_arrays(part.column("text")) for part in self.parts]

    @cached_property
    def token_counts(self) -> np.ndarray:
        """int64 [N]: LM tokens of each document, without separators."""
        return np.concatenate([np.diff(offsets) for _, offsets in self.token_arrays])

    @cached_property
    def token_arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per part (tokens uint16 or uint32 [T], offsets int64 [n + 1])."""
        columns = [batch.column("tokens") for batch in self.tokens]
        return [(column.values.to_numpy(), column.offsets.to_numpy()) for column in columns]

    def text(self, document: int) -> bytes:
        """The text of one document."""
        part = int(np.searchsorted(self.first, document, side="right")) - 1
        data, offsets = self.texts[part]
        start, stop = offsets[document - self.first[part] :][:2]
        return data[start:stop].tobytes()

    def strings(self, column: str, documents: np.ndarray | None = None) -> list[str | None]:
        """A column of the provenance of all documents, or of some: "id", "source", "repo", "path" or "domain"."""
        if documents is None:
            return [value for part in self.parts for value in part.column(column).to_pylist()]
        part = np.searchsorted(self.first, documents, side="right") - 1
        found = np.empty(len(documents), object)
        for p in np.unique(part):
            mine = np.flatnonzero(part == p)
            found[mine] = self.parts[p].column(column).take(documents[mine] - self.first[p]).to_pylist()
        return found.tolist()


def binary_arrays(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """(data uint8, offsets int64 [n + 1]) of an Arrow large_binary array, without a copy."""
    _, offsets, data = column.buffers()
    n = len(column)
    starts = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + n + 1]
    return np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8), starts


@shared(maxsize=PACKS_AT_HAND)
def open_pack(ingest: str, number: int, parts: int, tokens: str | None = None) -> Pack:
    """Map pack `number` of an ingest directory, with its tokens from a tokens directory where one is given.

    Raises StoreFailed where a part is missing or torn.
    """
    batches = [open_batch(part_path(location(ingest), number, i)) for i in range(parts)]
    encoded = [open_batch(tokens_path(location(tokens), number, i)) for i in range(parts)] if tokens else []
    first = np.cumsum([0] + [batch.num_rows for batch in batches])
    return Pack(number, tuple(batches), tuple(encoded), first)


def part_path(directory: Path, pack: int, part: int) -> Path:
    """Where part `part` of pack `pack` lies."""
    return directory / "packs" / f"{pack:05d}-{part:04d}.arrow"


def tokens_path(directory: Path, pack: int, part: int) -> Path:
    """Where the tokens of a part lie."""
    return directory / "tokens" / f"{pack:05d}-{part:04d}.arrow"


def open_table(path: Path) -> Any:
    """A memory-mapped pyarrow.Table of an Arrow IPC file."""
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.memory_map(str(local(path)))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreFailed(
            f"{path}: missing or damaged ({error}); remove {path.parent.parent} and build again"
        ) from None


def open_batch(path: Path) -> Any:
    """The one record batch of a memory-mapped Arrow IPC file."""
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.memory_map(str(local(path)))).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreFailed(
            f"{path}: missing or damaged ({error}); remove {path.parent.parent} and build again"
        ) from None


def assign(unit: np.ndarray, size_bytes: np.ndarray, pack_documents: int, max_unit_bytes: int) -> np.ndarray:
    """Give each document a pack, so that units (repositories) stay together and packs are balanced.

    unit: int [N], the document's repository, or -1 for a document of none; size_bytes: int [N].
    A unit over `max_unit_bytes` or `pack_documents` is split in document order. Units are placed largest first into
    the emptiest pack (longest processing time first); documents without a unit then level the packs out.
    Gives int32 [N], packs numbered from 0, none over `pack_documents` documents.
    """
    n = len(unit)
    if n == 0:
        return np.zeros(0, np.int32)
    piece = _split(unit, size_bytes, pack_documents, max_unit_bytes)
    owned = unit >= 0
    counts = np.bincount(piece[owned])
    largest_first = np.argsort(-counts, kind="stable")
    packs = -(-n // pack_documents)
    while True:  # a bin packing that does not fit gets one more pack
        load = np.zeros(packs, np.int64)
        pack_of_piece = np.zeros(len(counts), np.int32)
        for p in largest_first:
            pack_of_piece[p] = target = int(np.argmin(load))
            load[target] += counts[p]
        if load.max() <= pack_documents:
            break
        packs += 1
    result = np.empty(n, np.int32)
    result[owned] = pack_of_piece[piece[owned]]
    result[~owned] = _level(load, n - int(np.count_nonzero(owned)))
    return result


def _split(unit: np.ndarray, size_bytes: np.ndarray, max_documents: int, max_bytes: int) -> np.ndarray:
    """Number the pieces of units, int32 [N]: a new piece wherever the next document would pass a bound; -1 without a unit."""
    order = np.argsort(unit, kind="stable")
    order = order[np.searchsorted(unit[order], 0) :]
    begins = np.flatnonzero(np.diff(unit[order], prepend=-1))
    ends = np.append(begins[1:], len(order))
    before = np.zeros(len(order) + 1, np.int64)  # bytes before each document, units one after the other
    np.cumsum(size_bytes[order], out=before[1:])
    new = np.zeros(len(order), bool)
    new[begins] = True
    over = (ends - begins > max_documents) | (before[ends] - before[begins] > max_bytes)
    for start, end in zip(begins[over].tolist(), ends[over].tolist(), strict=True):
        while start < end:
            new[start] = True
            fits = int(np.searchsorted(before, before[start] + max_bytes, side="right")) - 1
            start = min(max(fits, start + 1), start + max_documents)
    piece = np.full(len(unit), -1, np.int32)
    piece[order] = np.cumsum(new, dtype=np.int32) - 1
    return piece


def _level(load: np.ndarray, documents: int) -> np.ndarray:
    """Packs for `documents` more documents in order, consecutive ones together, so that loads end as equal as can be."""
    total = int(load.sum()) + documents
    free = np.maximum(-(-total // len(load)) - load, 0)
    filled = np.minimum(np.cumsum(free), documents)
    return np.repeat(np.arange(len(load)), np.diff(filled, prepend=0))


def level_cuts(groups: Sequence[int], pack_documents: int) -> list[int]:
    """Where packs begin, and the last ends, in a sequence of groups of so many documents each: a pack is of one group, and a
    group is cut into as few packs as hold it, of equal size."""
    edges = [0]
    for documents in groups:
        begin, packs = edges[-1], -(-documents // pack_documents)
        edges += [begin + documents * (i + 1) // packs for i in range(packs)]
    return edges


def parts_of(size_bytes: Sequence[int] | np.ndarray, part_bytes: int) -> list[tuple[int, int]]:
    """Cut a pack's documents [N] into ranges (start, stop) of about `part_bytes` each."""
    ends = np.cumsum(np.asarray(size_bytes, dtype=np.int64))
    part = ends // part_bytes
    edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(ends)]
    return [(a, b) for a, b in pairwise(edges) if b > a]
