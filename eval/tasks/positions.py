"""Where in a prompt the answer lies: all positions, a list of them, or five that are evenly spaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from splice.errors import SpliceError

from ..settings import Integers

Positions = Literal["all"] | Integers
FEW = 5


def chosen(task: str, positions: Positions | None, n: int, published: Mapping[int, Sequence[int]]) -> list[int]:
    """Positions of 0 .. n-1, ascending. None: those published for n, else the first, the last and three between.

    Raises SpliceError for one that is out of range.
    """
    if positions == "all":
        return list(range(n))
    if positions is None and n in published:
        return list(published[n])
    if positions is None:
        return sorted({k * (n - 1) // (FEW - 1) for k in range(FEW)})
    wrong = [position for position in positions if not 0 <= position < n]
    if wrong:
        raise SpliceError(f"{task}: --positions {wrong[0]}, but positions are 0 to {n - 1} here")
    return sorted(set(positions))
