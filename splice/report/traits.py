"""Figures of a dataset that need no picture, and what the report says of its sampling and of near-duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .facts import MOST_DOCUMENTS, RANKING, Facts
from .figures import figure
from .measures import SHORT
from .ngrams import NEAR_SHARE, NEAR_TOKENS


@dataclass(frozen=True)
class Trait:
    """A figure with what it means, a cell for each dataset."""

    label: str
    meaning: str
    cells: list[str]


@dataclass(frozen=True)
class Near:
    """What is said of near-duplicates in a dataset, and in an alarm the option that mends it, with the end of the sentence."""

    name: str
    alarm: bool
    text: str
    remedy: str = ""
    effect: str = ""


def traits(facts: Sequence[Facts]) -> list[Trait]:
    """The shape of the walks and what was cut."""
    table: list[tuple[str, str, Callable[[Facts], str]]] = [
        ("trees in an example", "1 where the walk never had to start again from a random document", _trees),
        ("depth of an example", "steps from a root to the document furthest from it, on average", _depth),
        ("documents alone", "roots that retrieved nothing: they are in their example by chance", _alone),
        (
            "own share of the context",
            "of an example that the document a token is in fills, on average over tokens",
            _own_share,
        ),
        (
            "searches to a step",
            "how often the index was asked again, since a document's stored neighbours were all used",
            _searched,
        ),
    ]
    return [Trait(label, meaning, [of(f) for f in facts]) for label, meaning, of in table]


def _trees(f: Facts) -> str:
    """This and the next two are of an example alone: unknown where what retrieved a document may not be in it."""
    if f.orphaned:
        return "–"
    return f"{np.isnan(f.columns.score).sum() / len(f.columns):,.2f}" if len(f.columns) else "–"


def _depth(f: Facts) -> str:
    if f.orphaned:
        return "–"
    deepest = np.zeros(len(f.columns), np.int64)
    np.maximum.at(deepest, f.columns.example_of, f.columns.depth)
    return f"{deepest.mean():,.1f} (at most {deepest.max():,})" if len(deepest) else "–"


def _alone(f: Facts) -> str:
    if f.orphaned:
        return "–"
    c = f.columns
    first = np.cumsum(c.documents) - c.documents
    has_child = np.zeros(len(c.tokens), bool)
    has_child[(first[c.example_of] + c.parent)[c.parent >= 0]] = True
    return f"{(np.isnan(c.score) & ~has_child).mean():.1%}" if len(c.tokens) else "–"


def _own_share(f: Facts) -> str:
    tokens = f.columns.tokens.astype(np.float64)
    return f"{(tokens**2).sum() / (tokens.sum() * f.length):.1%}" if tokens.sum() else "–"


def _searched(f: Facts) -> str:
    steps = figure(f.manifest, "scores.steps")
    return f"{figure(f.manifest, 'scores.fallbacks') / steps:.2f}" if steps else "–"


def near_words(f: Facts) -> Near:
    """Whether the documents of examples repeat each other, and the remedy."""
    if f.related is None or not f.related.tested:
        return Near(
            f.name,
            False,
            f"No document of the sample has the {NEAR_TOKENS} tokens that are tested for near-duplicates.",
        )
    r = f.related
    text = (
        f"{r.near:,} of {r.tested:,} documents tested ({r.near_share:.1%}) have at least {NEAR_SHARE:.0%} of their {SHORT}-grams in "
        "one other document of their example that is about as long"
    )
    if not r.alarm:
        return Near(f.name, False, text + ".")
    if f.manifest["settings"].get("dedup") == "near":
        remedy = ("--near-threshold", f" below {f.manifest['settings']['near_threshold']:g}, which drops more.")
    else:
        remedy = ("--dedup near", ", which drops those whose words are as much alike.")
    return Near(f.name, True, f"{text}. Build {'its datasets ' if f.is_mixture else ''}again with", *remedy)


def alarm_words(facts: Sequence[Facts]) -> str:
    """What near-duplicates do: only where documents were retrieved do they make a model's search one for copies."""
    alarmed = [f for f in facts if f.related and f.related.alarm]
    if any(retriever in RANKING for f in alarmed for retriever in f.retrievers):
        return "Near-duplicates turn retrieval into copying."
    return "Near-duplicates in one example teach copying."


def sampled_words(f: Facts) -> str:
    """What was looked at."""
    read = len(f.columns)
    light = f"all {f.examples:,} examples" if read == f.examples else f"{read:,} of {f.examples:,} examples"
    tokens = (
        "no example"
        if f.related is None
        else f"{f.related.windows:,} of {f.examples:,} examples, {f.related.tokens:,} tokens"
    )
    lengths = ""
    if f.whole and len(f.documents) >= MOST_DOCUMENTS:
        lengths = f"; document lengths from the first {len(f.documents):,} documents"
    return f"Documents, scores and depths from {light}{lengths}; relatedness from {tokens}, drawn by the dataset's seed"
