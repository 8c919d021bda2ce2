"""From texts to the term counts of every document, and from those to the postings of every term.

Notation: N documents, V terms, E entries (document, term); a block is 8,192 to 65,536 documents, so that the scores of a block stay
in cache and a posting's document fits uint16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit

from .words import count_words

MOST_BLOCKS = 8  # below 2**16 documents a block, which bounds the table of posting ends
TASK_BYTES = 4 << 20  # text counted at a time: bounds the scratch memory of a thread


class Counts(NamedTuple):
    """The term counts of N documents, documents and the terms of each in ascending order (a compressed sparse row matrix).

    Terms are numbered by descending document frequency, then by hash: the numbers depend on the texts only, and what is used often
    lies together. Terms of one document are left out: no pair of documents shares them. So are terms of more than max_df of the
    documents. Both count in `lengths`.
    """

    document_ends: np.ndarray  # int64 [N + 1]; document d has the entries document_ends[d]:document_ends[d + 1]
    terms: np.ndarray  # int32 [E]
    tfs: np.ndarray  # uint16 [E], uint32 where a count needs it
    lengths: np.ndarray  # int32 [N], words of each document
    dfs: np.ndarray  # int32 [V], documents of each term, in the corpus that idf is taken from

    @classmethod
    def frozen(cls, *arrays: np.ndarray) -> Counts:
        """Read-only arrays, as memory-mapped ones are: one compiled version of each loop serves both."""
        for array in arrays:
            array.setflags(write=False)
        return cls(*arrays)


class Postings(NamedTuple):
    """Per block of documents and term, the documents in ascending order and the term's weight in each."""

    block_bits: int  # a block is 2**block_bits documents
    starts: np.ndarray  # int64 [blocks], the first posting of each block
    ends: (
        np.ndarray
    )  # int32 [blocks, V + 1]; term t in block g has the postings starts[g] + (ends[g, t]:ends[g, t + 1])
    documents: np.ndarray  # uint16 [E], counted from the first document of the block
    weights: np.ndarray  # float32 [E], idf (k1 + 1) tf / (tf + norm)


def count_corpus(texts: Sequence[tuple[np.ndarray, np.ndarray]], max_df: float, threads: int) -> Counts:
    """Count the words of all texts with `threads` threads; the result does not depend on them.

    Args: texts, chunks in order, each (data uint8 [bytes], offsets int32 or int64 [n + 1]).
    """
    tasks = [
        (data, offsets[first : last + 1]) for data, offsets in texts for first, last in _ranges(offsets, TASK_BYTES)
    ]
    vocabulary = _Vocabulary()
    slots, tfs, distinct, lengths = [], [], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for hashes, task_tfs, task_distinct, task_lengths in _counted(tasks, threads):
        slots.append(vocabulary.add(hashes))
        tfs.append(task_tfs)
        distinct.append(task_distinct)
        lengths.append(task_lengths)
    n_documents = sum(len(part) for part in lengths)
    hashes, dfs = vocabulary.entries()
    kept = np.flatnonzero((dfs > 1) & (dfs <= max_df * n_documents))
    kept = kept[np.lexsort((hashes[kept], -dfs[kept]))]
    number = np.full(len(dfs), -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    terms, counts, ends = _sorted_counts(slots, tfs, np.concatenate(distinct), number, dfs[kept])
    return Counts.frozen(ends, terms, counts, np.concatenate(lengths), dfs[kept])


def _ranges(offsets: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Split the documents of a chunk into ranges of about `size` bytes."""
    n = len(offsets) - 1
    if n < 1:
        return []
    marks = np.arange(int(offsets[0]) + size, int(offsets[-1]), size)
    cuts = np.unique(np.concatenate([[0], np.searchsorted(offsets, marks), [n]]))
    return [(int(first), int(last)) for first, last in pairwise(cuts)]


def _counted(tasks: list[tuple[np.ndarray, np.ndarray]], threads: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The counts of each task in order, `threads` at work, and few ahead of the caller: hashes are the bulk of the memory."""
    if threads <= 1:
        yield from map(_count_task, tasks)
        return
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future] = deque()
        for task in tasks:
            ahead.append(pool.submit(_count_task, task))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _count_task(task: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    data, offsets = task
    hashes, tfs, distinct, lengths = count_words(data, offsets)
    return hashes, tfs.astype(np.uint16) if tfs.max(initial=0) < 1 << 16 else tfs, distinct, lengths


class _Vocabulary:
    """The different hashes seen, numbered in order of appearance, with the number of documents of each."""

    def __init__(self) -> None:
        self._table = np.zeros(1 << 16, np.int32)
        self._hashes = np.empty(1 << 15, np.uint64)
        self._dfs = np.zeros(1 << 15, np.int32)
        self._n = 0

    def add(self, hashes: np.ndarray) -> np.ndarray:
        """int32 [entries]: the number of each hash."""
        most = self._n + len(hashes)
        if most > len(self._hashes):
            size = 1 << (most - 1).bit_length()
            self._hashes = np.concatenate([self._hashes[: self._n], np.empty(size - self._n, np.uint64)])
            self._dfs = np.concatenate([self._dfs[: self._n], np.zeros(size - self._n, np.int32)])
            self._table = np.zeros(2 * size, np.int32)
            _fill_table(self._table, self._hashes[: self._n])
        numbers = np.empty(len(hashes), np.int32)
        self._n = _number_hashes(hashes, self._table, self._hashes, self._dfs, self._n, numbers)
        return numbers

    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        return self._hashes[: self._n], self._dfs[: self._n]


@njit(cache=True, nogil=True)
def _fill_table(table: np.ndarray, hashes: np.ndarray) -> None:
    mask = np.uint64(table.size - 1)
    for i in range(hashes.size):
        slot = hashes[i] & mask
        while table[slot] != 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = i + 1


@njit(cache=True, nogil=True)
def _number_hashes(
    hashes: np.ndarray, table: np.ndarray, known: np.ndarray, dfs: np.ndarray, n: int, numbers: np.ndarray
) -> int:
    mask = np.uint64(table.size - 1)
    for i in range(hashes.size):
        h = hashes[i]
        slot = h & mask
        while True:
            entry = table[slot]
            if entry == 0:
                known[n] = h
                dfs[n] = 1
                n += 1
                table[slot] = n
                numbers[i] = n - 1
                break
            if known[entry - 1] == h:
                dfs[entry - 1] += 1
                numbers[i] = entry - 1
                break
            slot = (slot + np.uint64(1)) & mask
    return n


def _sorted_counts(
    slots: list[np.ndarray], tfs: list[np.ndarray], distinct: np.ndarray, number: np.ndarray, dfs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renumber the entries, drop those without a number, and sort each document's by term. Consumes `slots` and `tfs`."""
    dtype = np.uint32 if any(part.dtype == np.uint32 for part in tfs) else np.uint16
    total = int(dfs.sum(dtype=np.int64))
    ends = np.zeros(len(distinct) + 1, np.int64)
    starts = np.zeros(len(dfs) + 1, np.int64)
    np.cumsum(dfs, out=starts[1:])
    documents, counts = np.empty(total, np.int32), np.empty(total, dtype)
    document, left = 0, 0
    for i in range(len(slots)):
        document, left = _scatter_terms(
            slots[i], tfs[i].astype(dtype), distinct, number, starts, document, left, documents, counts, ends
        )
        slots[i] = tfs[i] = np.zeros(0, np.uint16)
    np.cumsum(ends, out=ends)
    terms, sorted_counts = np.empty(total, np.int32), np.empty(total, dtype)
    _scatter_documents(dfs, documents, counts, ends[:-1].copy(), terms, sorted_counts)
    return terms, sorted_counts, ends


@njit(cache=True, nogil=True)
def _scatter_terms(
    slots: np.ndarray, tfs: np.ndarray, distinct: np.ndarray, number: np.ndarray, cursors: np.ndarray, document: int, left: int,
    documents: np.ndarray, counts: np.ndarray, ends: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Append each entry to its term's postings; ends[d + 1] counts what document d keeps.

    `document` and `left` carry the position over from the slots before: `left` entries of `document` are done.
    """
    for i in range(slots.size):
        while left == distinct[document]:
            document += 1
            left = 0
        left += 1
        term = number[slots[i]]
        if term >= 0:
            at = cursors[term]
            cursors[term] = at + 1
            documents[at] = document
            counts[at] = tfs[i]
            ends[document + 1] += 1
    return document, left


@njit(cache=True, nogil=True)
def _scatter_documents(
    dfs: np.ndarray, documents: np.ndarray, counts: np.ndarray, cursors: np.ndarray, terms: np.ndarray, sorted_counts: np.ndarray
) -> None:  # fmt: skip
    at = 0
    for term in range(dfs.size):
        for _ in range(dfs[term]):
            document = documents[at]
            to = cursors[document]
            cursors[document] = to + 1
            terms[to] = term
            sorted_counts[to] = counts[at]
            at += 1


def local_dfs(counts: Counts) -> np.ndarray:
    """int64 [V]: the documents of each term among those counted here; `counts.dfs` may be of a larger corpus."""
    return np.bincount(counts.terms, minlength=len(counts.dfs))


def block_bits(n_documents: int) -> int:
    """Logarithm of the block size: the smallest from 2**13 that leaves MOST_BLOCKS, at most 2**16."""
    return min(16, max(13, (-(-n_documents // MOST_BLOCKS) - 1).bit_length()))


def transpose(counts: Counts, idf: np.ndarray, norms: np.ndarray, k1: float) -> Postings:
    """The postings of all terms. idf float64 [V]; norms float64 [N] = k1 (1 - b + b length / average length)."""
    n, n_terms = len(counts.lengths), len(counts.dfs)
    bits = block_bits(n)
    firsts = np.arange(0, max(n, 1), 1 << bits)
    starts = counts.document_ends[firsts]
    ends = np.zeros((len(firsts), n_terms + 1), np.int32)
    documents, weights = np.empty(len(counts.terms), np.uint16), np.empty(len(counts.terms), np.float32)
    for block, first in enumerate(firsts):
        last = min(n, first + (1 << bits))
        part = slice(starts[block], counts.document_ends[last])
        _transpose_block(counts, idf, norms, k1, first, last, ends[block], documents[part], weights[part])
    return Postings(bits, starts, ends, documents, weights)


@njit(cache=True, nogil=True)
def _transpose_block(
    counts: Counts, idf: np.ndarray, norms: np.ndarray, k1: float, first: int, last: int,
    ends: np.ndarray, documents: np.ndarray, weights: np.ndarray,
) -> None:  # fmt: skip
    for i in range(counts.document_ends[first], counts.document_ends[last]):
        ends[counts.terms[i] + 1] += 1
    for term in range(ends.size - 1):
        ends[term + 1] += ends[term]
    cursors = ends.copy()
    for d in range(first, last):
        for i in range(counts.document_ends[d], counts.document_ends[d + 1]):
            term = counts.terms[i]
            tf = np.float64(counts.tfs[i])
            at = cursors[term]
            cursors[term] = at + 1
            documents[at] = d - first
            weights[at] = idf[term] * (tf * (k1 + 1.0) / (tf + norms[d]))


def take(counts: Counts, documents: np.ndarray) -> Counts:
    """The counts of some documents (int64, ascending); terms keep their numbers and document frequencies."""
    ends = np.zeros(len(documents) + 1, np.int64)
    np.cumsum(np.diff(counts.document_ends)[documents], out=ends[1:])
    terms, tfs = np.empty(ends[-1], np.int32), np.empty(ends[-1], counts.tfs.dtype)
    _take(counts, documents, ends, terms, tfs)
    return Counts.frozen(ends, terms, tfs, counts.lengths[documents], counts.dfs)


@njit(cache=True, nogil=True)
def _take(counts: Counts, documents: np.ndarray, ends: np.ndarray, terms: np.ndarray, tfs: np.ndarray) -> None:
    for i in range(documents.size):
        start, to = counts.document_ends[documents[i]], ends[i]
        for j in range(ends[i + 1] - to):
            terms[to + j] = counts.terms[start + j]
            tfs[to + j] = counts.tfs[start + j]
