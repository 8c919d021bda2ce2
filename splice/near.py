"""Documents that share most of their word sequences: near-duplicates of each other, and copies of evaluation data.

A shingle is n words in a row, known by a hash; words are those of the BM25 engine, but that each Chinese, Japanese or
Korean character is one, since these are written without spaces. Near-duplicates are found by MinHash
(Broder 1997) with banding: signatures by the rensa library, from shingle hashes that numba makes of the bytes; documents
whose signatures agree in a band are compared, and a share of equal entries of at least the threshold, an estimate of the
Jaccard similarity of their shingles, makes them one cluster.

Notation: N documents; texts as Arrow's binary layout (data uint8 [bytes], offsets [n + 1]); P permutations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numba import njit

from .seeded import mix
from .words import FNV_OFFSET, FNV_PRIME, LETTERS, mixed

PERMUTATIONS = 128
SEED = 0
RECALL = 0.97  # of pairs at the threshold, by which the bands are chosen; what they find is then compared
COMPARED = 1 << 16  # pairs at a time
SIGNED = 2048  # documents at a time: rensa gives their signatures as Python numbers


@njit(cache=True, nogil=True)
def _shingles(data: np.ndarray, offsets: np.ndarray, size: int, out: np.ndarray, ends: np.ndarray) -> int:
    ring = np.empty(size, np.uint64)
    n = 0
    for d in range(offsets.size - 1):
        words = 0
        h = FNV_OFFSET
        length = 0
        end = offsets[d + 1]
        i = offsets[d]
        while i <= end:
            # Three bytes from U+3000 to U+D7FF: a character that is a word; U+3000 to U+303F and U+FF00 to U+FF7F are
            # punctuation, mostly.
            punctuation = i + 2 < end and (
                (data[i] == 0xE3 and data[i + 1] == 0x80) or (data[i] == 0xEF and 0xBC <= data[i + 1] <= 0xBD)
            )
            ideograph = punctuation or (i + 2 < end and 0xE3 <= data[i] <= 0xED)
            letter = LETTERS[data[i]] if i < end and not ideograph else np.uint8(0)
            if letter:
                h = (h ^ np.uint64(letter)) * FNV_PRIME
                length += 1
                i += 1
                continue
            if length > 1:
                n = _add_word(h, ring, words, size, out, n)
                words += 1
            h = FNV_OFFSET
            length = 0
            if not ideograph:
                i += 1
                continue
            if not punctuation:
                for j in range(3):
                    h = (h ^ np.uint64(data[i + j])) * FNV_PRIME
                n = _add_word(h, ring, words, size, out, n)
                words += 1
                h = FNV_OFFSET
            i += 3
        if 0 < words < size:  # shorter than a shingle: all of it is one
            out[n] = _joined(ring, words, words)
            n += 1
        ends[d + 1] = n
    return n


@njit(cache=True, nogil=True)
def _add_word(word: np.uint64, ring: np.ndarray, words: int, size: int, out: np.ndarray, n: int) -> int:
    """Take a word after `words` others, write the shingle that it ends; the number of shingles so far."""
    ring[words % size] = word
    if words + 1 < size:
        return n
    out[n] = _joined(ring, words + 1, size)
    return n + 1


@njit(cache=True, nogil=True)
def _joined(ring: np.ndarray, words: int, size: int) -> np.uint64:
    """One hash of the last `size` words, in order."""
    h = FNV_OFFSET
    for i in range(words - size, words):
        h = mixed(h ^ ring[i % ring.size])
    return h


def shingles(data: np.ndarray, offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes uint64 [S] of all shingles of `size` words, and int64 [n + 1]: document d has ends[d]:ends[d + 1].

    A document of fewer words is one shingle, one without words none.
    """
    data, offsets = data.view(), offsets.astype(np.int64)
    data.setflags(write=False)
    ends = np.zeros(len(offsets), np.int64)
    # A word takes two bytes at least, and what ends it a third, but where a character that is a word does.
    out = np.empty(int(offsets[-1] - offsets[0]) // 2 + len(offsets), np.uint64)
    return out[: _shingles(data, offsets, size, out, ends)], ends


def signatures(data: np.ndarray, offsets: np.ndarray, size: int) -> np.ndarray:
    """MinHash signatures uint32 [n, P] of the documents' shingles; all ones where there are none."""
    from rensa import RMinHash

    out = np.empty((len(offsets) - 1, PERMUTATIONS), np.uint32)
    for start in range(0, len(out), SIGNED):
        some = offsets[start : start + SIGNED + 1]
        hashes, ends = shingles(data, some, size)
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(hashes, ends.astype(np.uint64), PERMUTATIONS, SEED)
        out[start : start + SIGNED] = matrix.to_rows()
    return out


def rows_of_a_band(threshold: float) -> int:
    """The longest band that still finds RECALL of the pairs whose similarity is the threshold."""
    rows = range(1, PERMUTATIONS + 1)
    return max((r for r in rows if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= RECALL), default=1)


def first_of_cluster(tables: Sequence[np.ndarray], kept: np.ndarray, threshold: float) -> np.ndarray:
    """int64 [N]: the first document of each one's cluster; itself where there is none before it.

    tables: uint32 [n, P] each, memory-mapped or not, the documents' signatures in order; kept: bool [N], which documents
    take part. Holds one band of all documents at a time.
    """
    starts = np.cumsum([0] + [len(table) for table in tables])
    parents = np.arange(int(starts[-1]))
    rows = rows_of_a_band(threshold)
    without = np.concatenate([table[:, 0] == np.uint32(0xFFFFFFFF) for table in tables])
    members = np.flatnonzero(kept & ~without)  # those without a word are like nobody
    for band in range(PERMUTATIONS // rows):
        keys = np.concatenate([_keys(table[:, band * rows : (band + 1) * rows]) for table in tables])
        order = members[np.argsort(keys[members], kind="stable")]
        same = np.append(False, keys[order[1:]] == keys[order[:-1]])  # as the one before it
        later = np.flatnonzero(same)
        run = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))  # where its run of equal keys begins
        for before in (later - 1, run[later]):
            _compare(parents, order[before], order[later], tables, starts, threshold)
    return _roots(parents, np.arange(len(parents)))


def _compare(
    parents: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    tables: Sequence[np.ndarray],
    starts: np.ndarray,
    threshold: float,
) -> None:
    """Unite the pairs (a[i], b[i]) that are similar, and not of one cluster already."""
    apart = _roots(parents, a) != _roots(parents, b)
    a, b = a[apart], b[apart]
    for i in range(0, len(a), COMPARED):
        x, y = a[i : i + COMPARED], b[i : i + COMPARED]
        agree = (_rows(tables, starts, x) == _rows(tables, starts, y)).mean(axis=1)
        _unite(parents, x[agree >= threshold], y[agree >= threshold])


def _keys(band: np.ndarray) -> np.ndarray:
    """uint64 [n]: one key of each row, uint32 [n, rows]."""
    keys = np.zeros(len(band), np.uint64)
    for column in np.array(band.T):
        keys = mix(keys ^ column)
    return keys


def _rows(tables: Sequence[np.ndarray], starts: np.ndarray, documents: np.ndarray) -> np.ndarray:
    out = np.empty((len(documents), PERMUTATIONS), np.uint32)
    for table, (first, stop) in zip(tables, pairwise(starts.tolist()), strict=True):
        mine = (documents >= first) & (documents < stop)
        out[mine] = table[documents[mine] - first]
    return out


@njit(cache=True, nogil=True)
def _unite(parents: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Make one cluster of each pair's two, under the smaller of their first documents."""
    for i in range(a.size):
        x, y = a[i], b[i]
        while parents[x] != x:
            x = parents[x]
        while parents[y] != y:
            y = parents[y]
        if x < y:
            parents[y] = x
        elif y < x:
            parents[x] = y


@njit(cache=True, nogil=True)
def _roots(parents: np.ndarray, documents: np.ndarray) -> np.ndarray:
    out = np.empty(documents.size, np.int64)
    for i in range(documents.size):
        x = documents[i]
        while parents[x] != x:
            parents[x] = parents[parents[x]]  # the way is half as long for the next
            x = parents[x]
        out[i] = x
    return out
