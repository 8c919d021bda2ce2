"""Exact BM25 neighbours of whole documents: every document is a query against all others of its pack.

The score is Lucene's: the sum over the terms t of both documents of f(tf of t in q) idf(t) tf (k1 + 1) / (tf + norm(d)), with
norm(d) = k1 (1 - b + b length(d) / average length) and idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)). Equal terms of a query are
merged. `splice.words` finds the words, `splice.postings` counts them, `splice.topk` ranks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from .arrays import damaged, load_arrays, save_arrays
from .errors import SpliceError
from .postings import Counts, Postings, count_corpus, local_dfs, take, transpose
from .topk import (
    QUERY_TF,
    STRIP,
    Head,
    Model,
    aligned,
    build_head,
    clear_factors,
    exact_scores,
    rank_batch,
    rank_one,
    set_factors,
)

FORMAT = 1
INDEX = "index.json"
HEAD_BYTES = 512 << 20  # the most that the dense rows may take
HEAD_SHARE = 0.05  # a term of more than this share of the documents gets a dense row
SUMS_BYTES = 32 << 20  # score buffer of a thread: 128 queries and 65,536 documents, or 1,024 and 8,192
MOST_QUERIES = 1024  # of a batch
LEAST_QUERIES = 128  # of a batch, where there are as many: they share the reading of the dense rows
FEW_QUERIES = 32  # up to here the dense rows are not worth building


@dataclass(frozen=True)
class Bm25Settings:
    """k1, b: BM25's parameters. query_tf: how a term's count in the query weighs. max_df: terms of more than this share of the
    documents are ignored (they still count in a document's length)."""

    k1: float = 1.5
    b: float = 0.75
    query_tf: Literal["linear", "sqrt", "binary"] = "linear"
    max_df: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.k1) and self.k1 >= 0):
            raise SpliceError(f"BM25's k1 is {self.k1}; it must be a number of at least 0 (usually 1.2 to 2)")
        if not 0 <= self.b <= 1:
            raise SpliceError(f"BM25's b is {self.b}; it must lie between 0 and 1 (usually 0.75)")
        if self.query_tf not in QUERY_TF:
            raise SpliceError(f"BM25's query_tf is {self.query_tf!r}; it must be one of {', '.join(QUERY_TF)}")
        if not 0 < self.max_df <= 1:
            raise SpliceError(f"BM25's max_df is {self.max_df}; it is a share of the documents, above 0 and at most 1")


class Bm25Index:
    """The documents of a pack, each ready to be a query against the others. Safe to use from several threads."""

    def __init__(self, counts: Counts, settings: Bm25Settings, corpus_documents: int, corpus_words: int) -> None:
        """`corpus_documents` and `corpus_words`: of the corpus that idf and the average length are taken from."""
        self.settings = settings
        self.n_documents = len(counts.lengths)
        self._counts = counts
        self._corpus = corpus_documents, corpus_words
        self._lock = threading.RLock()
        self._scratch = threading.local()

    @classmethod
    def build(
        cls, texts: Sequence[tuple[np.ndarray, np.ndarray]], settings: Bm25Settings, threads: int = 1
    ) -> Bm25Index:
        """Index texts: chunks in order, each (data uint8 [bytes], offsets int32 or int64 [n + 1]), Arrow's binary layout.

        Documents are numbered through all chunks. The index does not depend on `threads` or on the cut into chunks.
        """
        counts = count_corpus(texts, settings.max_df, max(1, threads))
        return cls(counts, settings, len(counts.lengths), int(counts.lengths.sum(dtype=np.int64)))

    @cached_property
    def _model(self) -> Model:
        n, words = self._corpus
        k1, b = float(self.settings.k1), float(self.settings.b)
        dfs, which = np.unique(self._counts.dfs, return_inverse=True)
        # math.log and not np.log, whose last bit differs between processors
        idf = np.array([math.log(1.0 + (n - df + 0.5) / (df + 0.5)) for df in dfs.tolist()])
        lengths = self._counts.lengths.astype(np.float64)
        norms = k1 * (1.0 - b + b * (lengths / (words / n))) if words else np.full(self.n_documents, k1)
        return Model(idf[which], norms, k1, QUERY_TF[self.settings.query_tf])

    @cached_property
    def _postings(self) -> Postings:
        return transpose(self._counts, self._model.idf, self._model.norms, self._model.k1)

    @cached_property
    def _head(self) -> Head:
        dfs = local_dfs(self._counts)
        most = HEAD_BYTES // (4 * STRIP * max(1, -(-self.n_documents // STRIP)))
        terms = np.flatnonzero(dfs > HEAD_SHARE * self.n_documents)
        terms = np.sort(terms[np.argsort(-dfs[terms], kind="stable")[:most]])
        return build_head(self._counts, self._model, terms)

    def prepare(self) -> None:
        """Make what `neighbours` would make at its first call, from what is stored."""
        self._prepared(1)

    def _prepared(self, threads: int) -> tuple[Postings, Head]:
        with self._lock, ThreadPoolExecutor(1) as pool:
            _ = self._model
            head = pool.submit(lambda: self._head) if threads > 1 else None
            postings = self._postings
            return postings, head.result() if head else self._head

    def _factors(self) -> np.ndarray:
        """float64 [V] of this thread, zero between uses: clearing it costs less than allocating it."""
        if not hasattr(self._scratch, "factors"):
            self._scratch.factors = np.zeros(len(self._counts.dfs))
        return self._scratch.factors

    def neighbours(self, queries: np.ndarray, m: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m best other documents of each query document that score above 0, ties by document number.

        Args: queries, document numbers [Q]. Gives: documents int32 [Q, m], -1 where there are fewer; scores float64 [Q, m].
        """
        queries = np.ascontiguousarray(queries, np.int64)
        documents, scores = np.full((len(queries), m), -1, np.int32), np.zeros((len(queries), m), np.float64)
        if not len(queries) or m < 1:
            return documents, scores
        if len(queries) <= FEW_QUERIES:
            self._rank_singly(queries, np.arange(len(queries)), documents, scores)
            return documents, scores
        postings, head = self._prepared(threads)
        columns = min(1 << postings.block_bits, -(-self.n_documents // STRIP) * STRIP)
        share = max(LEAST_QUERIES, -(-len(queries) // (8 * threads)))  # the last batches must not leave threads idle
        size = max(1, min(MOST_QUERIES, SUMS_BYTES // (4 * columns), share))
        starts = iter(range(0, len(queries), size))

        def work() -> None:
            sums = aligned((size, columns))
            while True:
                with self._lock:
                    start = next(starts, None)
                if start is None:
                    return
                batch = slice(start, start + size)
                documents[batch], scores[batch], proved = rank_batch(
                    queries[batch], m, self._counts, self._model, postings, head, sums, self._factors()
                )
                self._rank_singly(queries, start + np.flatnonzero(~proved), documents, scores)

        if threads <= 1:
            work()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(work) for _ in range(threads)]:
                    done.result()
        return documents, scores

    def _rank_singly(self, queries: np.ndarray, rows: np.ndarray, documents: np.ndarray, scores: np.ndarray) -> None:
        """Write the neighbours of queries[rows] to those rows of documents and scores, one query after the other."""
        allowed = np.ones(self.n_documents, np.bool_)
        for row in rows:
            found, found_scores = self.best_unused(int(queries[row]), documents.shape[1], allowed)
            documents[row], scores[row] = -1, 0.0
            documents[row, : len(found)], scores[row, : len(found)] = found, found_scores

    def best_unused(self, query: int, k: int, unused: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents among those with unused[d] (bool [N]) and d != query: documents int32, scores float64, up to k each."""
        allowed = np.array(unused, np.bool_)
        allowed[query] = False
        with self._lock:
            postings = self._postings
        return rank_one(int(query), k, allowed, self._counts, self._model, postings, self._factors())

    def pair_scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """float64 [P]: the scores of the pairs (queries[i], documents[i]).

        The words that only one document of the corpus has are not in the index, so a document's score for itself lacks them.
        """
        queries, documents = np.broadcast_arrays(np.asarray(queries, np.int64), np.asarray(documents, np.int64))
        scores = np.zeros(len(queries))
        factors = self._factors()
        order = np.argsort(queries, kind="stable")
        cuts = np.flatnonzero(np.diff(queries[order])) + 1
        for pairs in np.split(order, cuts) if len(order) else []:
            query, found = int(queries[pairs[0]]), np.empty(len(pairs))
            try:
                set_factors(query, self._counts, self._model, factors)
                exact_scores(documents[pairs].astype(np.int32), self._counts, self._model, factors, found)
            finally:
                clear_factors(query, self._counts, factors)
            scores[pairs] = found
        return scores

    def subset(self, documents: np.ndarray) -> Bm25Index:
        """An index of some documents (ascending numbers), numbered 0..len - 1 in that order, whose scores equal this index's."""
        counts = take(self._counts, np.ascontiguousarray(documents, np.int64))
        return Bm25Index(counts, self.settings, *self._corpus)

    def save(self, directory: Path) -> None:
        """Write the index: one .npy file an array, and index.json. Equal indexes give equal bytes."""
        n, words = self._corpus
        facts = {"settings": asdict(self.settings), "corpus_documents": n, "corpus_words": words}
        save_arrays(directory, INDEX, FORMAT, self._counts._asdict(), facts)

    @classmethod
    def load(cls, directory: Path) -> Bm25Index:
        """Open a saved index, its arrays memory-mapped. Raises SpliceError where a file is missing or damaged."""
        facts, arrays = load_arrays(directory, INDEX, FORMAT)
        try:
            counts = Counts.frozen(*(arrays[name] for name in Counts._fields))
            corpus = int(facts["corpus_documents"]), int(facts["corpus_words"])
            return cls(counts, Bm25Settings(**facts["settings"]), *corpus)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(directory / INDEX, error) from error
