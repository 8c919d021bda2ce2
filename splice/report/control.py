"""The random control: the sample's own pieces, dealt anew: each changes places with one of about its own length.

So dataset and control differ in nothing but in which documents are together. Windows keep the number of their pieces and, to
a few percent, their tokens: types per token and compression depend on both. Dealing without regard to length would have to
cut pieces at the windows' ends, and a cut piece looks as if it gained from its other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..seeded import permutation
from .windows import Window, window_of

FEWEST_WINDOWS = 8  # among fewer, a document meets its own neighbours too often by chance
ALIKE = 16  # pieces next to each other in length, which are dealt among their places


def deal(windows: Sequence[Window], seed: int) -> list[Window]:
    """As many windows, of all the pieces of these, in places drawn by the seed."""
    pieces = [piece for window in windows for piece in window.pieces]
    places = np.cumsum([0, *(len(window.bounds) - 1 for window in windows)]).tolist()
    dealt = dealt_places(np.array([len(piece) for piece in pieces], np.int64), seed)
    return [window_of(pieces[i] for i in dealt[a:b]) for a, b in pairwise(places)]


def dealt_places(sizes: np.ndarray, seed: int) -> np.ndarray:
    """Which piece comes to each place, a permutation int64 [P]. sizes: int64 [P], tokens of the pieces."""
    by_size = np.argsort(sizes, kind="stable")
    drawn = permutation(len(sizes), seed, "report", "control")
    rank = np.empty(len(sizes), np.int64)
    rank[drawn] = np.arange(len(sizes))
    group = np.arange(len(sizes)) // ALIKE
    shuffled = by_size[np.lexsort((rank, group))]
    dealt = np.empty(len(sizes), np.int64)
    dealt[by_size] = shuffled
    return dealt
