"""Clusters of documents that use the same words, so that likely neighbours can be put into one pack.

A document is a vector of its words: each word's BM25 weight in it, added with a sign of the word's own to one of D entries (feature
hashing, Weinberger et al. 2009). The clusters are those of spherical k-means (Dhillon, Modha 2001) over a sample, and numbered so
that any cut through their sequence parts what has little in common: by recursive spectral bisection (Pothen, Simon, Liou 1990).
A document then belongs to the cluster of the nearest centroid, which takes its own text only.

Everything is summed in a fixed order, without a library whose last bits differ between processors: two hosts agree.

Notation: n documents, texts as Arrow's binary layout (data uint8 [bytes], offsets [n + 1]); K clusters; E entries (document, word).
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from .errors import StoreFailed
from .seeded import permutation
from .words import count_words

D = 2**14
BUCKET_SHIFT = np.uint64(44)  # a word's weight is looked up by the first 20 bits of its hash
BUCKETS = 2**20
SIGN_BIT = np.uint64(1 << 20)
K1, B = 1.5, 0.75
RAREST = 4000  # a word in fewer than one of so many documents links too few of them
ITERATIONS = 12
BISECTIONS = 100  # steps towards the second eigenvector: further ones change no cut that matters


class Vectors(NamedTuple):
    """Sparse vectors of n documents, each of length 1, or 0 where no word of it has a weight."""

    ends: np.ndarray  # int64 [n + 1]; document d has the entries ends[d]:ends[d + 1]
    places: np.ndarray  # uint16 [E], below D
    values: np.ndarray  # float32 [E]


@dataclass(frozen=True)
class Clusters:
    """weights: float32 [2^20], the idf of the words of a bucket, 0 for words that are left out; average: words of a
    document of the sample; centroids: float32 [D, K], each of length 1, those of consecutive numbers alike."""

    weights: np.ndarray
    average: float
    centroids: np.ndarray

    @classmethod
    def train(cls, texts: Sequence[tuple[np.ndarray, np.ndarray]], k: int, threads: int = 1) -> Clusters:
        """At most k clusters of the sample `texts`, chunks in order, each (data, offsets). The result does not depend on
        `threads`, nor on the cut into chunks."""
        threads = max(1, threads)
        with ThreadPoolExecutor(threads) as pool:
            counts = list(pool.map(lambda chunk: count_words(*chunk), texts))
            weights, average = _weights(counts)
            vectors = _joined([_vectors(count, weights, average) for count in counts])
            return cls(weights, average, _centroids(vectors, k, threads, pool))

    def nearest(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """uint16 [n]: the cluster of each document, without the GIL. One without a known word is of cluster 0."""
        vectors = _vectors(count_words(data, offsets), self.weights, self.average)
        return _nearest(vectors, self.centroids)[0]

    def save(self, path: Path) -> None:
        """Write one file. Equal clusters give equal bytes."""
        with open(path, "wb") as out:
            np.savez(out, weights=self.weights, average=self.average, centroids=self.centroids)

    @classmethod
    def load(cls, path: Path) -> Clusters:
        """Raises StoreFailed where the file is missing or damaged."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(arrays["weights"], float(arrays["average"]), arrays["centroids"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise StoreFailed(
                f"{path}: missing or damaged ({error}); remove {path.parent.parent} and build again"
            ) from None


def _weights(counts: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, float]:
    """idf by bucket, float32 [2^20], and the average length in words, of counted documents (see `count_words`)."""
    n = sum(len(lengths) for *_, lengths in counts)
    dfs = np.zeros(BUCKETS, np.int64)
    for hashes, *_ in counts:
        dfs += np.bincount(hashes >> BUCKET_SHIFT, minlength=BUCKETS)
    # math.log and not np.log, whose last bit differs between processors
    known, which = np.unique(np.minimum(dfs, n), return_inverse=True)
    idf = [math.log(1 + (n - df + 0.5) / (df + 0.5)) if df >= max(2, n / RAREST) else 0.0 for df in known.tolist()]
    words = sum(int(lengths.sum(dtype=np.int64)) for *_, lengths in counts)
    return np.array(idf, np.float32)[which], words / max(n, 1)


def _vectors(count: tuple[np.ndarray, ...], weights: np.ndarray, average: float) -> Vectors:
    hashes, tfs, distinct, lengths = count
    ends = np.zeros(len(distinct) + 1, np.int64)
    places, values = np.empty(len(hashes), np.uint16), np.empty(len(hashes), np.float32)
    used = _fill_vectors(hashes, tfs, distinct, lengths, weights, average or 1.0, ends, places, values)
    return Vectors(ends, places[:used], values[:used])


@njit(cache=True, nogil=True)
def _fill_vectors(
    hashes: np.ndarray, tfs: np.ndarray, distinct: np.ndarray, lengths: np.ndarray, weights: np.ndarray, average: float,
    ends: np.ndarray, places: np.ndarray, values: np.ndarray,
) -> int:  # fmt: skip
    n = entry = 0
    for d in range(distinct.size):
        first = n
        norm = K1 * (1.0 - B + B * lengths[d] / average)
        squares = 0.0
        for i in range(entry, entry + distinct[d]):
            h = hashes[i]
            weight = weights[h >> BUCKET_SHIFT]
            if weight > 0:
                value = weight * tfs[i] * (K1 + 1.0) / (tfs[i] + norm)
                squares += value * value
                places[n] = h & np.uint64(D - 1)
                values[n] = -value if h & SIGN_BIT else value
                n += 1
        entry += distinct[d]
        for i in range(first, n):
            values[i] /= math.sqrt(squares)
        ends[d + 1] = n
    return n


def _joined(chunks: Sequence[Vectors]) -> Vectors:
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(np.diff(chunk.ends) for chunk in chunks)]))
    none = Vectors(ends, np.zeros(0, np.uint16), np.zeros(0, np.float32))
    places, values = (np.concatenate([v[i] for v in (none, *chunks)]) for i in (1, 2))
    return Vectors(ends, places, values)


def _centroids(vectors: Vectors, k: int, threads: int, pool: ThreadPoolExecutor) -> np.ndarray:
    """float32 [D, K]: those of spherical k-means, begun at K of the documents."""
    found = np.flatnonzero(np.diff(vectors.ends))
    begin = found[permutation(len(found), 0, "centroids")[:k]]
    n, k = len(vectors.ends) - 1, len(begin)
    if k == 0:
        return np.zeros((D, 1), np.float32)
    blocks = [_part(vectors, a, b) for a, b in pairwise(np.linspace(0, n, threads + 1).astype(int).tolist())]
    sums = np.zeros((D, k), np.float32)
    for cluster, document in enumerate(begin.tolist()):
        _add(vectors, document, cluster, sums)
    before = np.full(n, -1)
    for _ in range(ITERATIONS):
        centroids = _of_length_1(sums)
        parts = list(pool.map(lambda block, c=centroids: _nearest(block, c), blocks))
        cluster, similarity = (np.concatenate(column) for column in zip(*parts, strict=True))
        sums[:] = 0
        _sum_clusters(vectors, cluster, sums)
        if (cluster == before).all():
            break
        before = cluster
        # A cluster that lost all its documents begins anew at one that no centroid is near to.
        empty = np.flatnonzero(np.bincount(cluster, minlength=k)[:k] == 0)
        for c, far in zip(empty.tolist(), found[np.argsort(similarity[found], kind="stable")].tolist(), strict=False):
            _add(vectors, far, c, sums)
    return _of_length_1(np.ascontiguousarray(sums[:, _in_order(sums, np.bincount(cluster, minlength=k)[:k])]))


def _part(vectors: Vectors, start: int, stop: int) -> Vectors:
    a, b = vectors.ends[start], vectors.ends[stop]
    return Vectors(vectors.ends[start : stop + 1] - a, vectors.places[a:b], vectors.values[a:b])


@njit(cache=True, nogil=True)
def _add(vectors: Vectors, document: int, cluster: int, sums: np.ndarray) -> None:
    for i in range(vectors.ends[document], vectors.ends[document + 1]):
        sums[vectors.places[i], cluster] += vectors.values[i]


@njit(cache=True, nogil=True)
def _sum_clusters(vectors: Vectors, cluster: np.ndarray, sums: np.ndarray) -> None:
    for d in range(cluster.size):
        _add(vectors, d, cluster[d], sums)


@njit(cache=True, nogil=True)
def _of_length_1(sums: np.ndarray) -> np.ndarray:
    squares = np.zeros(sums.shape[1], np.float64)
    for row in sums:
        for c in range(row.size):
            squares[c] += np.float64(row[c]) * row[c]
    out = np.zeros_like(sums)
    for i in range(sums.shape[0]):
        for c in range(sums.shape[1]):
            if squares[c] > 0:
                out[i, c] = sums[i, c] / math.sqrt(squares[c])
    return out


@njit(cache=True, nogil=True)
def _nearest(vectors: Vectors, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(uint16 [n], float32 [n]): the most similar centroid of each document, the first where several are, and its cosine."""
    n, k = vectors.ends.size - 1, centroids.shape[1]
    cluster, similarity = np.zeros(n, np.uint16), np.zeros(n, np.float32)
    cosines = np.empty(k, np.float32)
    for d in range(n):
        cosines[:] = 0
        for i in range(vectors.ends[d], vectors.ends[d + 1]):
            value, row = vectors.values[i], centroids[vectors.places[i]]
            for c in range(k):
                cosines[c] += value * row[c]
        best = 0
        for c in range(1, k):
            if cosines[c] > cosines[best]:
                best = c
        cluster[d], similarity[d] = best, cosines[best]
    return cluster, similarity


def _in_order(sums: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The clusters in a sequence, int64 [K]: cut in two where the halves are least similar, each half cut in two, and so on.

    sums: float32 [D, K], of each cluster's vectors; a product of two is all their documents' similarities together.
    """
    together = np.maximum(_products(sums), 0.0)
    np.fill_diagonal(together, 0.0)

    def halved(clusters: np.ndarray) -> list[int]:
        if len(clusters) < 3:
            return clusters.tolist()
        along = _second_eigenvector(together[np.ix_(clusters, clusters)])
        if (along * (np.arange(len(along)) - (len(along) - 1) / 2)).sum() < 0:
            along = -along  # so that the ends that lay beside each other still do
        line = clusters[np.argsort(along, kind="stable")]
        filled = np.cumsum(sizes[line])
        cut = min(int(np.argmin(np.abs(2 * filled - filled[-1]))) + 1, len(line) - 1)
        return halved(line[:cut]) + halved(line[cut:])

    return np.array(halved(np.arange(len(sizes))), np.int64)


@njit(cache=True, nogil=True)
def _products(sums: np.ndarray) -> np.ndarray:
    k = sums.shape[1]
    out = np.zeros((k, k), np.float64)
    for row in sums:
        for a in range(k):
            value = np.float64(row[a])
            if value != 0:
                for b in range(k):
                    out[a, b] += value * row[b]
    return out


@njit(cache=True, nogil=True)
def _second_eigenvector(together: np.ndarray) -> np.ndarray:
    """float64 [k]: about the second eigenvector of the normalised Laplacian of a graph, over the root of the degrees.

    Power iteration on 1 + D^-1/2 A D^-1/2, whose first eigenvector, the root of the degrees, is taken out at each step.
    """
    k = len(together)
    root = np.empty(k, np.float64)
    length = 0.0
    for i in range(k):
        degree = 1e-30
        for j in range(k):
            degree += together[i, j]
        root[i] = math.sqrt(degree)
        length += degree
    x, y = np.empty(k, np.float64), np.empty(k, np.float64)
    for i in range(k):
        x[i] = i * 0.6180339887498949 % 1.0 - 0.5  # begins with a bit of everything
    for _ in range(BISECTIONS):
        first = 0.0
        for i in range(k):
            first += x[i] * root[i]
        largest = 1e-300
        for i in range(k):
            x[i] -= first / length * root[i]
        for i in range(k):
            y[i] = x[i]
            for j in range(k):
                y[i] += together[i, j] / (root[i] * root[j]) * x[j]
            largest = max(largest, abs(y[i]))
        for i in range(k):
            x[i] = y[i] / largest
    return x / root
