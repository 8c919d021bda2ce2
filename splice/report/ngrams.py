"""n-grams that several pieces of a window hold, found by sorting rolling hashes. No n-gram crosses a piece's border."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..seeded import key, mix
from .windows import Window

NEAR_SHARE = (
    0.8  # of a piece's n-grams, which one other piece holds; and of the longer's n-grams, how many the shorter has
)
NEAR_TOKENS = 50  # shorter pieces are not tested: a few equal lines would make them copies
NEAR_TESTED = 64  # pieces of a window that are tested, evenly spaced


@dataclass(frozen=True)
class NGrams:
    """The G n-grams of a window of T tokens, equal ones together and by piece within.

    start, piece, gram: int64 [G], where each begins, in which piece, and the number of its kind; opens: bool [G], the first
    of its kind in its piece; shared: bool [G], whether several pieces hold its kind.
    """

    n: int
    size: int
    start: np.ndarray
    piece: np.ndarray
    gram: np.ndarray
    opens: np.ndarray
    shared: np.ndarray


def hashes(tokens: np.ndarray, n: int) -> np.ndarray:
    """A uint64 hash of each run of n tokens, [T - n + 1]: sums of mixed tokens times powers of an odd number, mod 2^64.

    The power a run begins with is divided out, so equal runs have equal hashes at any place.
    """
    if len(tokens) < n:
        return np.zeros(0, np.uint64)
    base = int(key(0, "report", "n-grams")) | 1
    sums = np.zeros(len(tokens) + 1, np.uint64)
    np.cumsum(mix(tokens.astype(np.uint64)) * _powers(base, len(tokens)), out=sums[1:])
    return mix((sums[n:] - sums[:-n]) * _powers(pow(base, -1, 2**64), len(tokens) - n + 1))


def _powers(base: int, n: int) -> np.ndarray:
    """uint64 [n]: base^0, base^1, ... mod 2^64."""
    factors = np.full(n, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def ngrams(window: Window, n: int, within: np.ndarray | None = None) -> NGrams:
    """The n-grams of a window. within: bool [T], where one must lie to be looked at: longer n-grams that are shared lie where
    shorter ones are, and the rest need no sorting."""
    piece = window.piece_of_token
    inside = piece[: max(len(piece) - n + 1, 0)] == piece[n - 1 :]
    if within is not None:
        outside = np.append(0, np.cumsum(~within))
        inside &= outside[n:] == outside[:-n]
    start = np.flatnonzero(inside)
    found = hashes(window.tokens, n)[start] if len(start) else np.zeros(0, np.uint64)
    bits = np.uint64(len(window.bounds).bit_length())
    keys = found >> bits << bits | piece[start].astype(np.uint64)
    order = np.argsort(keys)
    keys, start = keys[order], start[order]
    opens = _differs(keys)
    gram = np.cumsum(_differs(keys >> bits)) - 1
    pieces = np.bincount(gram[opens], minlength=1)
    return NGrams(n, len(window.tokens), start, piece[start], gram, opens, pieces[gram] > 1)


def _differs(sorted_keys: np.ndarray) -> np.ndarray:
    """bool [N]: whether a key is another than the one before it."""
    differs = np.ones(len(sorted_keys), bool)
    differs[1:] = sorted_keys[1:] != sorted_keys[:-1]
    return differs


def covered(grams: NGrams) -> np.ndarray:
    """bool [T]: the tokens inside a shared n-gram."""
    start = grams.start[grams.shared]
    steps = np.bincount(start, minlength=grams.size + 1) - np.bincount(start + grams.n, minlength=grams.size + 1)
    return np.cumsum(steps[: grams.size]) > 0


def near_duplicates(window: Window, grams: NGrams) -> np.ndarray:
    """bool [tested]: for each tested piece, whether one other piece of about its length holds at least NEAR_SHARE of its n-grams.

    About its length: the shorter has at least NEAR_SHARE of the longer's n-grams. What quotes or holds another at length is no
    near-duplicate of it: `--dedup near`, which compares in both directions, would keep it as well.
    """
    sizes = np.diff(window.bounds)
    long = np.flatnonzero(sizes >= NEAR_TOKENS)
    tested = long[np.unique(np.linspace(0, len(long) - 1, min(len(long), NEAR_TESTED)).astype(np.int64))]
    held = np.bincount(grams.piece, minlength=len(sizes))
    wanted = NEAR_SHARE * held
    may_be = np.bincount(grams.piece[grams.shared], minlength=len(sizes)) >= wanted
    holder, kind = grams.piece[grams.opens], grams.gram[grams.opens]
    near = np.zeros(len(tested), bool)
    for i in np.flatnonzero(may_be[tested]):
        mine = grams.gram[(grams.piece == tested[i]) & grams.shared]
        first, last = np.searchsorted(kind, mine), np.searchsorted(kind, mine, side="right")
        votes = np.bincount(holder[_ranges(first, last)], minlength=len(sizes))
        votes[tested[i]] = 0
        alike = np.minimum(held, held[tested[i]]) >= NEAR_SHARE * np.maximum(held, held[tested[i]])
        near[i] = (alike & (votes >= wanted[tested[i]])).any()
    return near


def _ranges(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... last[0] - 1, first[1], ... as one array."""
    length = last - first
    return np.arange(length.sum()) + np.repeat(first - np.cumsum(length) + length, length)
