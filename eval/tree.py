"""A query and what may be answered to it, as one tree of tokens: answers that begin alike are read once.

suffix  Q u e s t i o n :  --+-- NUM
                             +-- EN --+-- TY
                                      +-- IR          fed: the suffix and EN; predicted: NUM, EN, TY, IR
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """Tokens to be fed, parents before children, and where each answer is predicted.

    parents  of each token, its place here; -1 for the first, which follows the prefix
    paths    of each answer: (place of the token that predicts, the token predicted), one a token of it
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    paths: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def chain(self) -> bool:
        """Whether it is one sequence, without branches."""
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    @property
    def depths(self) -> list[int]:
        """Of each token: how many of the tree come before it."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def lines(self) -> list[list[int]]:
        """The places on the way to each token that has no children, first to last."""
        inner = set(self.parents)
        lines = []
        for leaf in (place for place in range(len(self.tokens)) if place not in inner):
            line = [leaf]
            while self.parents[line[-1]] >= 0:
                line.append(self.parents[line[-1]])
            lines.append(line[::-1])
        return lines


def grow(suffix: Sequence[int], answers: Sequence[Sequence[int]]) -> Tree:
    """The tree of a suffix, one token at least, and the answers to it; the last token of an answer is not fed."""
    tokens, parents = list(suffix), list(range(-1, len(suffix) - 1))
    known: dict[tuple[int, int], int] = {}
    paths = []
    for answer in answers:
        at, path = len(suffix) - 1, []
        for number, token in enumerate(answer):
            path.append((at, token))
            if number == len(answer) - 1:
                break
            if (at, token) not in known:
                known[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
            at = known[at, token]
        paths.append(tuple(path))
    return Tree(tuple(tokens), tuple(parents), tuple(paths))


def ancestors(trees: Sequence[Tree], size: int) -> np.ndarray:
    """bool [Q, S, S] of Q trees padded to S = `size` tokens: what each token sees of its tree, itself included."""
    seen = np.broadcast_to(np.eye(size, dtype=bool), (len(trees), size, size)).copy()
    for row, tree in zip(seen, trees, strict=True):
        for place, parent in enumerate(tree.parents):
            if parent >= 0:
                row[place] |= row[parent]
    return seen


def batches(sizes: Sequence[int], predicted: Sequence[int], tokens: int, most: int) -> Iterator[list[int]]:
    """Which rows go into one forward pass: those of like size together, longest first, so that little is padding.

    sizes, predicted: tokens fed and logits needed of each row. A pass has `tokens` of the first, padding included, and `most` of
    the second, or one row.
    """
    batch: list[int] = []
    logits = 0
    for row in sorted(range(len(sizes)), key=lambda row: (-sizes[row], row)):
        width = sizes[batch[0]] if batch else sizes[row]
        if batch and ((len(batch) + 1) * width > tokens or logits + predicted[row] > most):
            yield batch
            batch, logits = [], 0
        batch.append(row)
        logits += predicted[row]
    if batch:
        yield batch
