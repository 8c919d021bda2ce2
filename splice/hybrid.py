"""BM25 and dense neighbours merged: by reciprocal rank, or by a weighted sum of normalised scores.

Each retriever gives a query its window, the W best documents of the whole pack; a document counts for what it is in each:

    rrf   weight / (60 + rank)                 Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion", SIGIR 2009
    sum   weight * (score - worst) / (best - worst) of the window

and for nothing in a window that it is not in. Documents in neither are no neighbours. Windows are those of the pack and
not of what is unused, so a score stays what it is while documents are used up, and masked retrieval is exact.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .arrays import damaged
from .bm25 import Bm25Index
from .dense import DenseIndex
from .errors import SpliceError
from .storage import local

RANK_CONSTANT = 60
BATCH_QUERIES = 1024  # merged at a time: 16 bytes a query and document of both windows


@dataclass(frozen=True)
class HybridSettings:
    """merge: how; bm25_weight: BM25's share of a score, the rest is the dense one's; window: documents of each, W."""

    merge: Literal["rrf", "sum"] = "rrf"
    bm25_weight: float = 0.5
    window: int = 256

    def __post_init__(self) -> None:
        if self.merge not in ("rrf", "sum"):
            raise SpliceError(f"merge is {self.merge!r}; it must be rrf or sum")
        if not 0 <= self.bm25_weight <= 1:
            raise SpliceError(f"the weight of BM25 is {self.bm25_weight}; it must lie between 0 and 1")
        if self.window < 1:
            raise SpliceError(f"the window is {self.window}; it must hold at least one document")


class HybridIndex:
    """Both indexes of a pack, each document ready to be a query against the others. A Retriever (graph.py)."""

    def __init__(
        self, bm25: Bm25Index, dense: DenseIndex, settings: HybridSettings, members: np.ndarray | None = None
    ) -> None:
        """members: int64 [n], the pack's numbers of the documents that are left (ascending); None: all."""
        self.settings = settings
        self._bm25 = bm25
        self._dense = dense
        self._members = np.arange(bm25.n_documents) if members is None else members
        self._place = np.full(bm25.n_documents + 1, -1, np.int64)  # one more: "no document" is none here either
        self._place[self._members] = np.arange(len(self._members))

    @property
    def n_documents(self) -> int:
        return len(self._members)

    def prepare(self) -> None:
        """Make what `neighbours` would make at its first call, from what is stored."""
        self._bm25.prepare()
        self._dense.prepare()

    def neighbours(self, queries: np.ndarray, m: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The m best other documents of each query document, ties by document number.

        Args: queries, document numbers [Q]. Gives: documents int32 [Q, m], -1 where there are fewer; scores float64 [Q, m].
        """
        queries = np.asarray(queries, np.int64)
        documents, scores = np.full((len(queries), m), -1, np.int32), np.zeros((len(queries), m), np.float64)
        for start in range(0, len(queries), BATCH_QUERIES):
            batch = slice(start, start + BATCH_QUERIES)
            found, merged = self._merge(queries[batch], threads)
            first = np.argsort(found < 0, axis=1, kind="stable")[:, :m]  # those that are left, in their order
            found, merged = np.take_along_axis(found, first, 1), np.take_along_axis(merged, first, 1)
            documents[batch, : found.shape[1]] = found
            scores[batch, : found.shape[1]] = np.where(found >= 0, merged, 0.0)
        return documents, scores

    def best_unused(self, query: int, k: int, unused: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The k best documents among those with unused[d] (bool [N]) and d != query: documents int32, scores float64, up to k each."""
        (found,), (merged,) = self._merge(np.array([query]), 1)
        best = np.flatnonzero((found >= 0) & np.append(unused, False)[found])[:k]
        return found[best].astype(np.int32), merged[best]

    def pair_scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """float64 [P]: the scores of the pairs (queries[i], documents[i]); 0 where a document is in no window."""
        queries, documents = np.broadcast_arrays(np.asarray(queries, np.int64), np.asarray(documents, np.int64))
        scores = np.zeros(len(queries))
        different, which = np.unique(queries, return_inverse=True)
        for start in range(0, len(different), BATCH_QUERIES):
            found, merged = self._merge(different[start : start + BATCH_QUERIES], 1)
            pairs = np.flatnonzero((which >= start) & (which < start + len(found)))
            hit = found[which[pairs] - start] == documents[pairs, None]
            scores[pairs] = np.where(hit, merged[which[pairs] - start], 0.0).sum(axis=1)
        return scores

    def subset(self, documents: np.ndarray) -> HybridIndex:
        """The same scores over some documents (ascending), renumbered. A view: windows are still those of the whole pack."""
        return HybridIndex(self._bm25, self._dense, self.settings, self._members[documents])

    def _merge(self, queries: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]:
        """All neighbours of each query, best first: numbers here int64 [Q, 2 W] (-1: none, or not left), scores float64."""
        n, s = len(self._place) - 1, self.settings
        asked = self._members[queries]
        windows, parts = [], []
        for index, weight in ((self._bm25, s.bm25_weight), (self._dense, 1.0 - s.bm25_weight)):
            documents, scores = index.neighbours(asked, min(s.window, n), threads)
            there = documents >= 0
            windows.append(np.where(there, documents, n))
            parts.append(np.where(there, weight * self._normalised(scores, there), 0.0))
        documents, scores = np.concatenate(windows, 1).astype(np.int64), np.concatenate(parts, 1)
        order = np.argsort(documents, axis=1, kind="stable")
        documents, scores = np.take_along_axis(documents, order, 1), np.take_along_axis(scores, order, 1)
        twice = documents[:, 1:] == documents[:, :-1]
        scores[:, :-1] += np.where(twice, scores[:, 1:], 0.0)
        documents[:, 1:][twice] = n
        order = np.argsort(-scores, axis=1, kind="stable")
        return self._place[np.take_along_axis(documents, order, 1)], np.take_along_axis(scores, order, 1)

    def _normalised(self, scores: np.ndarray, there: np.ndarray) -> np.ndarray:
        """What each place of a window counts for, before its weight: float64 [Q, W]."""
        if self.settings.merge == "rrf":
            return np.broadcast_to(1.0 / (RANK_CONSTANT + np.arange(1, scores.shape[1] + 1)), scores.shape)
        best = scores[:, :1]
        worst = np.where(there, scores, np.inf).min(axis=1, keepdims=True)
        spread = best - worst
        return np.where(spread > 0, (scores - worst) / np.where(spread > 0, spread, 1.0), 1.0)

    def save(self, directory: Path) -> None:
        """Write both indexes and hybrid.json. Equal indexes give equal bytes."""
        self._bm25.save(directory)
        self._dense.save(directory)
        (directory / "hybrid.json").write_text(json.dumps(asdict(self.settings), indent=1) + "\n")

    @classmethod
    def load(cls, directory: Path) -> HybridIndex:
        """Open a saved index. Raises SpliceError where a file is missing or damaged."""
        path = directory / "hybrid.json"
        try:
            settings = HybridSettings(**json.loads(local(path).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise damaged(path, error) from error
        return cls(Bm25Index.load(directory), DenseIndex.load(directory), settings)
