"""The neighbour graph of a pack, and retrieval from it that is exact under a mask.

RETRIEVE(d, k) of Algorithm 2 ranks the UNUSED documents. The stored list of d's top-m neighbours answers it as long as
k of them are unused, or as the list is complete (shorter than m). Otherwise the index is asked under the mask, so the
result never depends on m. As documents are used up, the index is cut down to what is left and worn lists are renewed,
which keeps both the number and the cost of such questions small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np


class Retriever(Protocol):
    """What a retriever offers the walk. N documents, numbered as in the pack; a query is a whole document.

    Scores are float64 and compare only within one query. Ties are broken by document number. Which documents are no
    neighbours at all is the retriever's to say (BM25: those that share no term), and does not depend on the mask.
    """

    @property
    def n_documents(self) -> int: ...

    def neighbours(self, queries: np.ndarray, m: int, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Top-m of all documents but the query: documents int32 [Q, m] (-1: none), scores float64 [Q, m]."""
        ...

    def best_unused(self, query: int, k: int, unused: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Top-k among documents with unused[d] (bool [N]); arrays of at most k."""
        ...

    def pair_scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Scores float64 [P] of P pairs."""
        ...

    def subset(self, documents: np.ndarray) -> Retriever:
        """The same scores over some documents (ascending), renumbered 0 .. len - 1."""
        ...


class MaskedGraph:
    """Algorithm 2's RETRIEVE over a neighbour graph. Used documents are masked by `use`.

    neighbours: int32 [N, m], best first, -1 where there are fewer; scores: float [N, m]; index None means that the
    graph is all there is (the random baseline has no index and an empty graph). An index of fewer than `smallest_index`
    documents is not cut further: asking it costs less than cutting it.
    """

    def __init__(
        self,
        neighbours: np.ndarray,
        scores: np.ndarray,
        index: Retriever | None,
        threads: int = 1,
        smallest_index: int = 256,
    ) -> None:
        self.n, self.m = neighbours.shape
        self._neighbours = neighbours
        self._scores = scores
        self._index = self._whole_index = index
        self._members: np.ndarray | None = None  # pack numbers of the index's documents once it was cut down
        self._place = np.empty(0, np.int64)  # pack number -> number in the cut index
        self._threads = threads
        self._smallest_index = smallest_index
        # One more entry than documents: -1, "no neighbour", indexes it and is never unused. The bytes are the array's
        # own memory: single entries are looked up in them ten times as fast.
        self._unused_bytes = bytearray(b"\1" * self.n + b"\0")
        self._unused = np.frombuffer(self._unused_bytes, bool)
        self.n_unused = self.n
        self._compact_at = self.n // 2
        self.fallbacks = 0
        self.renewed = 0

    def is_unused(self, document: int) -> bool:
        return bool(self._unused_bytes[document])

    def use(self, document: int) -> None:
        """Mask a document out of all further retrieval."""
        self._unused_bytes[document] = 0
        self.n_unused -= 1

    def release(self, document: int) -> None:
        """Let a used document be retrieved again."""
        self._unused_bytes[document] = 1
        self.n_unused += 1

    def pair_score(self, query: int, document: int) -> float:
        """The score of a document that was not retrieved; NaN where there is no index to ask."""
        if self._whole_index is None:
            return float("nan")
        return float(self._whole_index.pair_scores(np.array([query]), np.array([document]))[0])

    def withdraw(self, documents: np.ndarray) -> None:
        """Mask documents that may never be used (longer than an example that must hold them whole)."""
        self._unused[documents] = False
        self.n_unused -= len(documents)

    def retrieve(self, document: int, k: int, fits: np.ndarray | None = None) -> list[tuple[int, float]]:
        """The exact top-k unused documents for `document`, best first; `fits` (bool [N]) narrows the choice."""
        listed, scores = self._neighbours[document].tolist(), self._scores[document]
        found = []
        for place, other in enumerate(listed):
            if self._unused_bytes[other] and (fits is None or fits[other]):
                found.append((other, float(scores[place])))
                if len(found) == k:
                    return found
        complete = listed[-1] < 0 or self.m >= self.n - 1  # a document is not its own neighbour
        return found if complete or self._index is None else self._ask_index(document, k, fits)

    def compact(self, pending: Callable[[], Iterable[int]], k: int) -> None:
        """Where half of the documents are used since the last time, cut the index and renew the lists that are worn out.

        pending: gives the used documents that are still to be queries (the walk's queue) or to be released; k: how many
        each is to be asked for.
        """
        if self._index is None or self.n_unused > self._compact_at or self.n_unused < self._smallest_index:
            return
        self._compact_at = self.n_unused // 2
        left = self._unused[:-1].copy()
        left[np.fromiter(pending(), np.int64)] = True
        members = np.flatnonzero(left)
        inner = members if self._members is None else self._place[members]
        self._index = self._index.subset(inner)
        self._members = members
        self._place = np.full(self.n, -1, np.int64)
        self._place[members] = np.arange(len(members))
        self._renew(members, k)

    def _renew(self, members: np.ndarray, k: int) -> None:
        """Ask anew for the lists that can no more answer; to renew others early was measured to cost more than it saves."""
        assert self._index is not None
        listed = self._neighbours[members]
        remaining = self._unused[listed].sum(axis=1)
        worn = members[(remaining < k) & (listed[:, -1] >= 0)]
        if len(worn) == 0:
            return
        self.renewed += len(worn)
        documents, scores = self._index.neighbours(self._place[worn], self.m, self._threads)
        self._neighbours[worn] = np.where(documents >= 0, members[documents], -1)
        self._scores[worn] = scores

    def _ask_index(self, document: int, k: int, fits: np.ndarray | None) -> list[tuple[int, float]]:
        assert self._index is not None
        self.fallbacks += 1
        unused = self._unused[:-1] if fits is None else self._unused[:-1] & fits
        if self._members is None:
            documents, scores = self._index.best_unused(document, k, unused)
            return list(zip(documents.tolist(), scores.tolist(), strict=True))
        inner, scores = self._index.best_unused(int(self._place[document]), k, unused[self._members])
        return list(zip(self._members[inner].tolist(), scores.tolist(), strict=True))
