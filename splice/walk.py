"""Algorithm 2 of the SPLiCe thesis: trees of retrieved documents, walked breadth first, cut into examples of L tokens.

    d_r ~ D;  D = D \\ {d_r};  C = [d_r];  Q = [d_r]
    while Q and len(C) <= L:
        d = Q.pop()                                   # first in, first out
        for d_i in RETRIEVE(d, k):  C.append(d_i); Q.push(d_i); D = D \\ {d_i}
    return TRIM(ORDER(C), L)

Two places where the paper leaves a choice are named policies: a tree that dies before L tokens (`exhausted`) and what
TRIM cuts off (`tail`). Two settings depart from it: a share `noise` of the retrieved documents is replaced by random
ones (the paper's study of how much relevance matters), and with `max_uses` above 1 a document stays in D for other
examples until it was used so often; the walk still ends when every document was used. Lengths count the separators
around a document, so a document of n tokens joined by BOS and EOS is a sequence of n + 2; ranges are in that sequence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .graph import MaskedGraph
from .seeded import key, mix, permutation

ROOT = -1


@dataclass(frozen=True)
class WalkSettings:
    """k: breadth; length: L in tokens; the rest are the policies of the module docstring.

    max_uses above 1 goes with tail "trim" or "whole": a carried piece is of one use.
    """

    k: int
    length: int
    order: Literal["identity", "reverse", "shuffle"]
    exhausted: Literal["restart", "short"]
    tail: Literal["trim", "carry", "whole"]
    seed: int
    noise: float = 0.0
    max_uses: int = 1


@dataclass(slots=True)
class Piece:
    """A document on its way into an example: who retrieved it, how well, and which part of its sequence is left."""

    document: int
    parent: int  # the document whose retrieval brought it, or ROOT
    score: float  # NaN for a root
    begin: int
    end: int


@dataclass
class Plan:
    """Segments in the order they are written; a row for every document of every example, cut ones included.

    example, document, parent, begin, end, offset: int64 [S]; score: float32 [S] (NaN: root). `begin:end` is the
    written range of the document's sequence (equal where TRIM left nothing), `offset` its place in the example.
    """

    example: list[int] = field(default_factory=list)
    document: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    examples: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns as arrays, int64 and float32."""
        names = ("example", "document", "parent", "begin", "end", "offset")
        columns = {name: np.asarray(getattr(self, name), dtype=np.int64) for name in names}
        columns["score"] = np.asarray(self.score, dtype=np.float32)
        return columns


def walk(
    graph: MaskedGraph, lengths: np.ndarray, settings: WalkSettings, stream: int = 0, roots: np.ndarray | None = None
) -> Plan:
    """Pack all documents of a graph into examples. `stream` (the pack's number) makes its draws its own.

    lengths: int64 [N], the sequences' lengths in tokens; roots: int64 [N], the order in which roots are taken from what
    is left (default: a seeded draw). Every document is used at least once and at most max_uses times; with tail="whole"
    those longer than L are left out (they are in no row of the plan).
    """
    return _Walk(graph, lengths, settings, stream, roots).run()


class _Walk:
    """The state of one walk: the example being filled, its queue, and the roots still to come."""

    def __init__(
        self, graph: MaskedGraph, lengths: np.ndarray, settings: WalkSettings, stream: int, roots: np.ndarray | None
    ) -> None:
        self.graph = graph
        self.lengths = lengths
        self.s = settings
        self.stream = stream
        self.plan = Plan()
        self.carried: list[Piece] = []
        self.added: list[Piece] = []
        self.queue: deque[int] = deque()
        self.total = 0
        n = len(lengths)
        self.roots = _Fresh(permutation(n, settings.seed, "roots", stream) if roots is None else roots)
        self.noise = _Noise(n, settings, stream)
        self.uses = np.zeros(n, np.int64)
        self.fresh = bytearray(b"\1" * n)  # never used
        self.n_fresh = n
        self.whole = settings.tail == "whole"
        if self.whole:
            too_long = np.flatnonzero(lengths > settings.length)
            graph.withdraw(too_long)
            self.n_fresh -= len(too_long)
            for document in too_long.tolist():
                self.fresh[document] = 0
            self.best_fit = _BestFit(lengths)

    def run(self) -> Plan:
        while self.n_fresh or self.carried:
            self._fill()
            self._emit()
        return self.plan

    def _fill(self) -> None:
        """One turn of Algorithm 2, with restarts where the policy asks for them."""
        if not self.carried:
            self._add(self.roots.next(self.fresh), ROOT, float("nan"))
        while True:
            while self.queue and self.total <= self.s.length:
                self._expand(self.queue.popleft())
            if self.s.exhausted == "short" or self.total >= self.s.length or not self.n_fresh:
                return
            room = self.s.length - self.total
            root = self.best_fit.longest(room, self.fresh) if self.whole else self.roots.next(self.fresh)
            if root == ROOT:
                return
            self._add(root, ROOT, float("nan"))

    def _expand(self, document: int) -> None:
        self.graph.compact(lambda: (document, *self.queue, *self._to_release()), self.s.k)
        if not self.whole and not self.noise.share:
            for found, score in self.graph.retrieve(document, self.s.k):
                self._add(found, document, score)
            return
        # One at a time: whole documents are retrieved among those that still fit what the last one left, and a random
        # document may be one that would have been retrieved next.
        for _ in range(self.s.k):
            fits = self.lengths <= self.s.length - self.total if self.whole else None
            retrieved = self.graph.retrieve(document, 1, fits)
            if not retrieved:
                return
            found, score = retrieved[0]
            if self.noise.strikes():
                other = self.noise.draw(self.graph, fits)
                found, score = other, self.graph.pair_score(document, other)
            self._add(found, document, score)

    def _to_release(self) -> list[int]:
        """What of this example other examples may use again."""
        if self.s.max_uses == 1:
            return []
        return [piece.document for piece in self.added if self.uses[piece.document] < self.s.max_uses]

    def _add(self, document: int, parent: int, score: float) -> None:
        self.graph.use(document)
        self.uses[document] += 1
        self.n_fresh -= self.fresh[document]
        self.fresh[document] = 0
        length = int(self.lengths[document])
        self.added.append(Piece(document, parent, score, 0, length))
        self.queue.append(document)
        self.total += length

    def _emit(self) -> None:
        """TRIM(ORDER(C), L). What a carried document leaves open stays at the front of its example."""
        number = self.plan.examples
        offset = 0
        cut: list[Piece] = []
        for piece in [*self.carried, *self._ordered(number)]:
            kept = min(piece.end - piece.begin, self.s.length - offset)
            middle = piece.begin + kept
            if kept > 0 or self.s.tail != "carry":
                self._write(number, piece, middle, offset)
            if middle < piece.end:
                cut.append(Piece(piece.document, piece.parent, piece.score, middle, piece.end))
            offset += kept
        self.plan.examples += 1
        for document in self._to_release():
            self.graph.release(document)
        self.added = []
        self.carried = cut if self.s.tail == "carry" else []
        self.total = sum(piece.end - piece.begin for piece in self.carried)
        waiting = set(self.queue)
        self.queue = deque(piece.document for piece in self.carried if piece.document in waiting)

    def _ordered(self, number: int) -> list[Piece]:
        if self.s.order == "reverse":
            return self.added[::-1]
        if self.s.order == "shuffle":
            order = permutation(len(self.added), self.s.seed, "order", self.stream, number)
            return [self.added[i] for i in order]
        return self.added

    def _write(self, number: int, piece: Piece, end: int, offset: int) -> None:
        self.plan.example.append(number)
        self.plan.document.append(piece.document)
        self.plan.parent.append(piece.parent)
        self.plan.score.append(piece.score)
        self.plan.begin.append(piece.begin)
        self.plan.end.append(end)
        self.plan.offset.append(offset)


class _Fresh:
    """The next document of an order that was never used: for a random order, a uniform draw from them."""

    def __init__(self, order: np.ndarray) -> None:
        self.order = order.tolist()
        self.at = 0

    def next(self, fresh: bytearray) -> int:
        while not fresh[self.order[self.at]]:
            self.at += 1
        return self.order[self.at]


class _Noise:
    """Which steps take a random document, and which one; drawn apart from the roots, so that these stay the same."""

    def __init__(self, n: int, settings: WalkSettings, stream: int) -> None:
        self.share = settings.noise
        self._key = key(settings.seed, "noise", stream)
        self._order = permutation(n, settings.seed, "noise order", stream).tolist() if self.share else []
        self._at = 0
        self._step = 0

    def strikes(self) -> bool:
        """Whether this step is one of them."""
        self._step += 1
        return bool(self.share) and float(mix(np.uint64(self._step) ^ self._key)) < self.share * 2.0**64

    def draw(self, graph: MaskedGraph, fits: np.ndarray | None) -> int:
        """An unused document (that fits), uniformly. There is one, or nothing would have been retrieved."""
        while not graph.is_unused(self._order[self._at]):
            self._at = (self._at + 1) % len(self._order)  # round again: documents were released behind it
        at = self._at
        while not graph.is_unused(self._order[at]) or not (fits is None or fits[self._order[at]]):
            at = (at + 1) % len(self._order)
        return self._order[at]


class _BestFit:
    """The longest document never used that fits a room, by a sorted array and pointers that skip what was used."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.order = np.argsort(lengths, kind="stable")
        self.sorted = lengths[self.order]
        self.below = list(range(-1, len(lengths)))  # place p + 1 -> the nearest place <= p that may be unused

    def longest(self, room: int, fresh: bytearray) -> int:
        """Its number, or ROOT where none fits."""
        place = self._skip(int(np.searchsorted(self.sorted, room, side="right")) - 1, fresh)
        return int(self.order[place]) if place >= 0 else ROOT

    def _skip(self, place: int, fresh: bytearray) -> int:
        seen = []
        while place >= 0 and not fresh[int(self.order[place])]:
            seen.append(place)
            below = self.below[place + 1]
            place = below if below < place else place - 1
        for p in seen:
            self.below[p + 1] = place
        return place
