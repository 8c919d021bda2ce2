"""The random control: the sample's own pieces, dealt anew: each changes places with one of about its own length.

Near-duplicates have equal lengths, so chance would often deal them back into one window; a place therefore takes a piece whose
window its own has the fewest pieces of, none where that can be.

So dataset and control differ in nothing but in which documents are together. Windows keep the number of their pieces and, to
a few percent, their tokens: types per token and compression depend on both. Dealing without regard to length would have to
cut pieces at the windows' ends, and a cut piece looks as if it gained from its other half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..seeded import permutation
from .windows import Window, window_of

FEWEST_WINDOWS = 8  # among fewer, a document meets its own neighbours too often by chance
ALIKE = 16  # pieces next to each other in length, which are dealt among their places, and more of them (_groups), up to
MOST_ALIKE = 128
SPREAD = 0.005  # of a window's tokens, by which the lengths of any number of pieces may differ


def deal(windows: Sequence[Window], seed: int) -> list[Window]:
    """As many windows, of all the pieces of these, in places drawn by the seed."""
    pieces = [piece for window in windows for piece in window.pieces]
    held = [len(window.bounds) - 1 for window in windows]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    dealt = dealt_places(sizes, np.repeat(np.arange(len(windows)), held), seed)
    places = np.cumsum([0, *held]).tolist()
    return [window_of(pieces[i] for i in dealt[a:b]) for a, b in pairwise(places)]


def dealt_places(sizes: np.ndarray, window: np.ndarray, seed: int) -> np.ndarray:
    """Which piece comes to each place, a permutation int64 [P].

    sizes, window: int64 [P], the tokens of each piece, and the window that it is of and its place is in.
    """
    by_size = np.lexsort((_ranks(len(sizes), seed, "control", "ties"), sizes))
    starts = _groups(sizes[by_size], window[by_size].tolist(), SPREAD * sizes.sum() / max(len(np.unique(window)), 1))
    group = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    places = by_size[np.lexsort((_ranks(len(sizes), seed, "control", "places")[by_size], group))]
    pieces = by_size[np.lexsort((_ranks(len(sizes), seed, "control", "pieces")[by_size], group))]
    of = window.tolist()
    n = max(of, default=-1) + 1
    held = [[0] * n for _ in range(n)]  # of each window, how many pieces of each it was dealt
    dealt = np.empty(len(sizes), np.int64)
    for start, end in pairwise(starts):
        left, here = pieces[start:end].tolist(), places[start:end].tolist()
        for done, place in enumerate(here):
            there = held[of[place]]
            piece = left.pop(min(range(len(left)), key=lambda i: there[of[left[i]]]))
            if there[of[piece]]:  # a place that was dealt a piece may better have this one, and give its own
                for other in here[:done]:
                    given, its = int(dealt[other]), held[of[other]]
                    if there[of[given]] + its[of[piece]] < there[of[piece]] + its[of[given]] - 1:
                        its[of[given]] -= 1
                        its[of[piece]] += 1
                        dealt[other], piece = piece, given
                        break
            there[of[piece]] += 1
            dealt[place] = piece
    return dealt


def _groups(ordered: np.ndarray, window: list[int], spread: float) -> list[int]:
    """Where groups of pieces alike in length begin, and the end. ordered, window: of [P] pieces, by ascending tokens.

    A group has at least ALIKE pieces; those that are within `spread` tokens of its first; and of as many windows as it has
    pieces of any one, so that these can be parted.
    """
    starts = [0]
    held: Counter[int] = Counter()
    for i, size in enumerate(ordered.tolist()):
        n = i - starts[-1]
        alike = n < ALIKE or size < ordered[starts[-1]] + spread or len(held) < max(held.values())
        if n and (n == MOST_ALIKE or not alike):
            starts.append(i)
            held.clear()
        held[window[i]] += 1
    return [*starts, len(ordered)]


def _ranks(n: int, seed: int, *names: str) -> np.ndarray:
    """int64 [n]: the place of each number in a permutation drawn by the seed."""
    rank = np.empty(n, np.int64)
    rank[permutation(n, seed, "report", *names)] = np.arange(n)
    return rank
