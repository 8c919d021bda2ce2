"""The cut: a list of contexts into runs that share a prefix, so that least is fed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

WIDEST = 8192  # contexts of a run at most
Ids = np.ndarray  # int32 [T]


def share(contexts: Sequence[Ids], room: int, a_pass: int) -> list[tuple[int, int, int]]:
    """Of each run its first context, its last + 1, and the tokens shared.

    A run feeds its prefix once and the rest of each context, and costs `a_pass` tokens more for its forward passes; of all ways to
    cut the list the cheapest is found, by how much each run saves. Two nested levels are not made: the reader goes on from the
    last prefix by itself. Few-shot prompts come out by their examples, questions about one text by the text, and prompts that have
    nothing in common but BOS as one run.

    contexts: each once, those that begin alike side by side. room: tokens of a context beyond the prefix, at most; a longer one is
    a run of its own, all but its last token the prefix.
    """
    lengths = np.array([len(ids) for ids in contexts])
    common = np.array([_common(a, b) for a, b in pairwise(contexts)], int)
    saved, runs = np.zeros(len(contexts) + 1), []  # by the contexts up to each: saved at best, and the last run of that
    for last in range(len(contexts)):
        low = max(0, last + 1 - WIDEST)
        # of the runs from each place back to `low` up to `last`, the shortest run first
        depth = np.minimum.accumulate(np.append(lengths[last] - 1, common[low:last][::-1]))
        longest = np.maximum.accumulate(lengths[low : last + 1][::-1])
        found = np.arange(len(depth)) * depth - a_pass + saved[low : last + 1][::-1]
        found[1:][longest[1:] - depth[1:] > room] = -np.inf
        best = int(found.argmax())
        saved[last + 1] = found[best]
        runs.append((last - best, last + 1, int(depth[best])))
    cut, end = [], len(contexts)
    while end:
        cut.append(runs[end - 1])
        end = cut[-1][0]
    return cut[::-1]


def _common(a: Ids, b: Ids) -> int:
    """How many first ids are equal, of which each context keeps one for itself."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size - 1
