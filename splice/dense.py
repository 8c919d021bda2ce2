"""Exact dense neighbours of whole documents: the inner products of their embeddings, by FAISS.

The score is that of Contriever (Izacard et al., 2022): the inner product of embeddings as the encoder gives them; of
normalised ones it is the cosine. Every other document is a neighbour, however low its score.

Embeddings are float16, so the product of two entries is exact in float32, and a float32 sum of d of them is off by at most
d 2^-24 times the product of the norms. FAISS's float32 scores pick candidates; those that may be among the best within that
error are scored in float64 in a fixed order, so that the result depends on no batch, thread or subset. Where FAISS gave
too few candidates to be sure of that (many equal documents), the query is compared with all documents.

Above FLAT_DOCUMENTS FAISS's inverted lists (IVF) look at a share of the documents only: neighbours are then those of the
nearest clusters, nine in ten of them the best, while `best_unused` and all scores stay exact. So there, and only there, a
walk also depends on how many neighbours are kept.
"""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from .arrays import damaged, load_arrays, save_arrays
from .errors import SpliceError

FORMAT = 1
INDEX = "dense.json"
FLAT_DOCUMENTS = 2**18  # more are searched by inverted lists; up to here embedding takes far longer than comparing all
SLACK = 16  # candidates beyond those asked for
BATCH_QUERIES = 256
TRAINING_PER_LIST = 64  # documents that each cluster of the inverted lists is placed by
PROBED_SHARE = 1 / 16  # of the inverted lists that a query looks at
EPSILON = 2.0**-24
SCORES_BYTES = 32 << 20  # of the float32 scores of queries that are compared with all documents, a thread
MOST_ON_GPU = 2048  # candidates that FAISS picks there


class DenseIndex:
    """The embeddings of a pack's documents, each ready to be a query against the others. A Retriever (graph.py).

    Safe to use from several threads.
    """

    def __init__(self, embeddings: np.ndarray, centroids: np.ndarray | None = None) -> None:
        """embeddings: float16 [N, d]; centroids: float32 [lists, d] of the inverted lists, None for a flat search."""
        self._embeddings = embeddings
        self._centroids = centroids
        self._lock = threading.RLock()

    @classmethod
    def build(cls, embeddings: np.ndarray, flat_documents: int = FLAT_DOCUMENTS) -> DenseIndex:
        """Index embeddings, float16 [N, d]; more than `flat_documents` of them with inverted lists."""
        index = cls(embeddings)
        if len(embeddings) > flat_documents:
            index._centroids = _train(index._vectors)
        return index

    @property
    def n_documents(self) -> int:
        return len(self._embeddings)

    @property
    def dimension(self) -> int:
        return self._embeddings.shape[1]

    @cached_property
    def _vectors(self) -> np.ndarray:
        return np.ascontiguousarray(self._embeddings, np.float32)

    @cached_property
    def _errors(self) -> np.ndarray:
        """float64 [N]: how far a float32 score of each document as a query may be off."""
        norms = np.sqrt(np.einsum("nd,nd->n", self._vectors, self._vectors, dtype=np.float64))
        return self.dimension * EPSILON * norms * norms.max(initial=0.0)

    @cached_property
    def _copies(self) -> np.ndarray:
        """int64 [N]: how many documents before it have the same embedding."""
        rows = np.ascontiguousarray(self._embeddings + np.float16(0))  # + 0 makes -0 one with 0
        _, kind = np.unique(rows.view(f"V{rows.itemsize * self.dimension}").ravel(), return_inverse=True)
        order = np.argsort(kind, kind="stable")
        first = np.searchsorted(kind[order], kind)
        place = np.empty(len(kind), np.int64)
        place[order] = np.arange(len(kind))
        return place - first

    @cached_property
    def _lists(self) -> Any:
        assert self._centroids is not None
        faiss = _faiss()
        quantizer = faiss.IndexFlatIP(self.dimension)
        quantizer.add(self._centroids)
        lists = faiss.IndexIVFFlat(quantizer, self.dimension, len(self._centroids), faiss.METRIC_INNER_PRODUCT)
        lists.nprobe = max(1, math.ceil(len(self._centroids) * PROBED_SHARE))
        lists.add(self._vectors)
        return lists

    @cached_property
    def _on_gpu(self) -> Any:
        faiss = _faiss()
        if self._centroids is not None:
            return faiss.index_cpu_to_gpu(_gpu(), 0, self._lists)
        flat = faiss.IndexFlatIP(self.dimension)
        flat.add(self._vectors)
        return faiss.index_cpu_to_gpu(_gpu(), 0, flat)

    def prepare(self) -> None:
        """Make what `neighbours` would make at its first call, from what is stored."""
        with self._lock:
            _ = self._errors
            if self._centroids is not None:
                _ = self._lists
            if _gpu() is not None:
                _ = self._on_gpu

    def neighbours(self, queries: np.ndarray, m: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m best other documents of each query document, ties by document number.

        Args: queries, document numbers [Q]. Gives: documents int32 [Q, m], -1 where there are fewer; scores float64 [Q, m].
        """
        queries = np.ascontiguousarray(queries, np.int64)
        documents, scores = np.full((len(queries), m), -1, np.int32), np.zeros((len(queries), m), np.float64)
        if not len(queries) or m < 1 or self.n_documents < 2:
            return documents, scores
        self.prepare()

        def rank(start: int) -> None:
            batch = slice(start, start + BATCH_QUERIES)
            documents[batch], scores[batch] = self._rank(queries[batch], m)

        starts = range(0, len(queries), BATCH_QUERIES)
        if threads <= 1:
            for start in starts:
                rank(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(rank, starts))
        return documents, scores

    def best_unused(self, query: int, k: int, unused: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents among those with unused[d] (bool [N]) and d != query: documents int32, scores float64, up to k each."""
        allowed = np.array(unused, np.bool_)
        allowed[query] = False
        candidates = np.flatnonzero(allowed)
        rough = (self._vectors @ self._vectors[query])[candidates]
        if len(candidates) > k:
            least = np.partition(rough, len(rough) - k)[len(rough) - k]
            candidates = candidates[rough >= least - 2 * self._errors[query]]
        scores = self.pair_scores(np.full(len(candidates), query), candidates)
        best = np.argsort(-scores, kind="stable")[:k]
        return candidates[best].astype(np.int32), scores[best]

    def pair_scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """float64 [P]: the scores of the pairs (queries[i], documents[i])."""
        queries, documents = np.broadcast_arrays(np.asarray(queries, np.int64), np.asarray(documents, np.int64))
        scores = np.empty(len(queries))
        _inner_products(self._vectors, np.ascontiguousarray(queries), np.ascontiguousarray(documents), scores)
        return scores

    def subset(self, documents: np.ndarray) -> DenseIndex:
        """A flat index of some documents (ascending numbers), numbered 0..len - 1 in that order."""
        return DenseIndex(self._embeddings[documents])

    def _rank(self, queries: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """`neighbours` of a batch."""
        n = self.n_documents
        found, rough = self._candidates(queries, min(n, m + 1 + SLACK))
        other = (found >= 0) & (found != queries[:, None])
        rough = np.where(other, rough, -np.inf)
        rows, columns = np.nonzero(other)
        scores = np.full(found.shape, -np.inf)
        scores[rows, columns] = self.pair_scores(queries[rows], found[rows, columns])
        order = np.argsort(np.where(other, found, n), axis=1)
        order = np.take_along_axis(order, np.argsort(-np.take_along_axis(scores, order, 1), axis=1, kind="stable"), 1)
        best = order[:, :m]
        documents = np.full((len(queries), m), -1, np.int32)
        kept = np.zeros((len(queries), m))
        there = np.take_along_axis(other, best, 1)
        documents[:, : best.shape[1]] = np.where(there, np.take_along_axis(found, best, 1), -1)
        kept[:, : best.shape[1]] = np.where(there, np.take_along_axis(scores, best, 1), 0.0)
        unsure = np.flatnonzero(~self._sure(queries, rough, other, m))
        self._rank_by_all(queries, unsure, documents, kept)
        return documents, kept

    def _rank_by_all(self, queries: np.ndarray, rows: np.ndarray, documents: np.ndarray, scores: np.ndarray) -> None:
        """Fill `rows` of a batch's `documents` and `scores` by comparing their queries with all documents."""
        m = min(documents.shape[1], self.n_documents - 1)
        size = max(1, SCORES_BYTES // (4 * self.n_documents))
        for some in (rows[start : start + size] for start in range(0, len(rows), size)):
            rough = self._vectors[queries[some]] @ self._vectors.T
            rough[np.arange(len(some)), queries[some]] = -np.inf
            least = np.partition(rough, -m, axis=1)[:, -m] - 2 * self._errors[queries[some]]
            for row, found, bound in zip(some.tolist(), rough, least, strict=True):
                # Of equal documents the first m may be among the best; of thousands the others need no score.
                candidates = np.flatnonzero((found >= bound) & (self._copies <= m))
                exact = self.pair_scores(queries[row], candidates)
                best = np.argsort(-exact, kind="stable")[:m]
                documents[row, :m], scores[row, :m] = candidates[best], exact[best]

    def _sure(self, queries: np.ndarray, rough: np.ndarray, other: np.ndarray, m: int) -> np.ndarray:
        """bool [Q]: whether no document outside the candidates can be among the m best (of the lists probed, where there are lists)."""
        n, candidates = self.n_documents, rough.shape[1]
        if self._centroids is not None:
            return other.sum(axis=1) >= min(m, n - 1)
        if candidates >= n:
            return np.ones(len(queries), np.bool_)
        ranked = -np.sort(-rough, axis=1)  # a query that is not among its own candidates leaves one more
        last = np.where(other, rough, np.inf).min(axis=1)
        return last < ranked[:, m - 1] - 2 * self._errors[queries]

    def _candidates(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best by FAISS, in any order: int64 [Q, k] (-1: none), float32 [Q, k]."""
        faiss = _faiss()
        faiss.omp_set_num_threads(1)  # of this thread: batches are what runs side by side
        if _gpu() is not None and k <= MOST_ON_GPU:
            with _GPU_LOCK:  # its resources are for one thread at a time
                rough, found = self._on_gpu.search(self._vectors[queries], k)
        elif self._centroids is not None:
            rough, found = self._lists.search(self._vectors[queries], k)
        else:
            rough, found = faiss.knn(self._vectors[queries], self._vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
        return found, rough

    def save(self, directory: Path) -> None:
        """Write the index: .npy files, and dense.json. Equal indexes give equal bytes."""
        arrays = {"embeddings": self._embeddings}
        if self._centroids is not None:
            arrays["centroids"] = self._centroids
        save_arrays(directory, INDEX, FORMAT, arrays, {})

    @classmethod
    def load(cls, directory: Path) -> DenseIndex:
        """Open a saved index, its embeddings memory-mapped. Raises SpliceError where a file is missing or damaged."""
        _, arrays = load_arrays(directory, INDEX, FORMAT)
        try:
            return cls(**arrays)
        except TypeError as error:
            raise damaged(directory / INDEX, error) from error


_GPU_LOCK = threading.Lock()


@cache
def _faiss() -> Any:
    """FAISS, told to multiply matrices for small batches too: 5 times as fast from 32 queries on."""
    try:
        import faiss
    except ImportError:
        raise SpliceError("dense retrieval needs FAISS; pip install 'splice-data[dense]'") from None
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


@cache
def _gpu() -> Any:
    """FAISS's GPU resources, or None where faiss-gpu is not installed or finds no GPU."""
    faiss = _faiss()
    return faiss.StandardGpuResources() if getattr(faiss, "get_num_gpus", lambda: 0)() else None


def _train(vectors: np.ndarray) -> np.ndarray:
    """float32 [lists, d]: centroids of 4 sqrt(N) clusters, by FAISS's seeded k-means over a sample."""
    faiss = _faiss()
    lists = int(4 * math.sqrt(len(vectors)))
    quantizer = faiss.IndexFlatIP(vectors.shape[1])
    index = faiss.IndexIVFFlat(quantizer, vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = TRAINING_PER_LIST
    index.train(vectors)
    return quantizer.reconstruct_n(0, lists)


@njit(cache=True, nogil=True)
def _inner_products(vectors: np.ndarray, queries: np.ndarray, documents: np.ndarray, scores: np.ndarray) -> None:
    """float64 sums of pairs, in four lanes: an order that the dimension alone decides."""
    d = vectors.shape[1]
    whole = d - d % 4
    for i in range(len(queries)):
        q, x = vectors[queries[i]], vectors[documents[i]]
        a = b = c = e = 0.0
        for j in range(0, whole, 4):
            a += np.float64(q[j]) * np.float64(x[j])
            b += np.float64(q[j + 1]) * np.float64(x[j + 1])
            c += np.float64(q[j + 2]) * np.float64(x[j + 2])
            e += np.float64(q[j + 3]) * np.float64(x[j + 3])
        for j in range(whole, d):
            a += np.float64(q[j]) * np.float64(x[j])
        scores[i] = (a + b) + (c + e)
