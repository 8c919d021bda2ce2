"""In-context demonstrations: set s is drawn by (seed, s) alone, so it is the same however many sets there are.

A set is the beginning of a permutation of the pool: nothing is drawn twice, a longer set begins with the shorter one.
It has a given number of demonstrations, or as many as fill a context:

    prefix <= context - MARGIN - the longest query - the longest answer

which is what every query of the set has to fit into, so that all of them see the same demonstrations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from splice.errors import SpliceError
from splice.seeded import permutation

from .task import Count

T = TypeVar("T")
MARGIN = 8  # tokens: a BOS, and what may be added where texts are joined


def order(pool: int, seed: int, s: int) -> list[int]:
    """The places of 0 .. pool-1 in the order in which set s takes them."""
    return permutation(pool, seed, "demonstrations", s).tolist()


def some(pool: int, shots: int, seed: int, s: int, task: str) -> list[int]:
    """The places of a set's demonstrations. Raises SpliceError where the pool is too small."""
    if shots > pool:
        raise SpliceError(f"{task}: --shots {shots}, but there are {pool} demonstrations to draw from; ask for fewer")
    return order(pool, seed, s)[:shots]


def fill(
    pool: int, text: Callable[[int], str], context: int, rest: int, seed: int, s: int, count: Count, task: str
) -> list[int]:
    """The places of as many demonstrations as fit into `context` tokens with a query and an answer of `rest` tokens.

    text  the demonstration at a place, with what separates it from the next one; a prefix is their concatenation

    Raises SpliceError where not one fits, and where the whole pool does not fill the context.
    """
    room = context - MARGIN - rest
    before = count("\n")  # what a tokenizer does to the beginning of a text is not counted again for each
    taken: list[int] = []
    tokens: list[int] = []
    total = 0
    for place in order(pool, seed, s):
        cost = count("\n" + text(place)) - before
        if total + cost > room:
            break
        taken.append(place)
        tokens.append(cost)
        total += cost
    else:
        raise SpliceError(
            f"{task}: all {pool} demonstrations take {total} of the {room} tokens that --context {context} leaves for "
            "them; ask for a smaller --context"
        )
    while taken and (over := count("".join(text(place) for place in taken)) - room) > 0:
        while taken and over > 0:
            taken.pop()
            over -= tokens.pop()
    if not taken:
        raise SpliceError(
            f"{task}: --context {context} holds no demonstration: a query, its answer and a margin of {MARGIN} take up to "
            f"{context - room} tokens; ask for a larger --context"
        )
    return taken


def halves(rows: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """(demonstrations, test): rows that come without such a split, split by the seed; each half in the rows' order."""
    places = permutation(len(rows), seed, "halves").tolist()
    middle = len(rows) // 2
    return [rows[i] for i in sorted(places[:middle])], [rows[i] for i in sorted(places[middle:])]


def asked(task: str, test: int, queries: int | None, seed: int, *stream: int) -> list[int]:
    """The test items of 0 .. test-1 that are asked, ascending: `queries` drawn by (seed, stream), all for None.

    Raises SpliceError where there are fewer.
    """
    if queries is not None and queries > test:
        raise SpliceError(f"{task}: --queries {queries}, but there are {test} to ask; ask for fewer")
    return sorted(permutation(test, seed, "queries", *stream)[:queries].tolist())
