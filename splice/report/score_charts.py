"""Charts of scores: how they spread, along an example, and through the walk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from . import plots, shapes
from .chart import Chart, bins, each, labels, names, of, trend_header, trend_rows, trend_words
from .facts import Facts
from .figures import score_text
from .svg import short

PROGRESS = "share of the pack's examples made (%)"


def score_charts(facts: Sequence[Facts]) -> list[Chart]:
    """The charts of datasets that have scores, apart for each kind of score, and one of all their roots."""
    kinds = by_kind(facts)
    charts = [chart for i, (title, alike) in enumerate(kinds) for chart in _of_kind(alike, i, title, len(kinds) > 1)]
    linked = [f for f in facts if len(f.scores)]
    return [*charts, _roots(linked)] if linked else charts


def by_kind(facts: Sequence[Facts]) -> list[tuple[str, list[Facts]]]:
    """The datasets whose scores compare, together, by a title: the retriever, and what it was told where others differ in it."""
    kinds: dict[tuple[str, ...], list[Facts]] = {}
    for f in facts:
        if len(f.scores) and f.ranks:
            kinds.setdefault(f.score_kind, []).append(f)
    once = Counter(retriever for retriever, *_ in kinds)
    return [
        (kind[0] if once[kind[0]] == 1 else ", ".join(short(part, 28) for part in kind), alike)
        for kind, alike in kinds.items()
    ]


def unscored(facts: Sequence[Facts]) -> list[str]:
    """A sentence for each mixture whose scores are of several retrievers, and are therefore not drawn."""
    return [
        f"{of(f, facts)}The datasets of this mixture were retrieved by {', '.join(f.retrievers[:-1])} and {f.retrievers[-1]}, "
        "whose scores do not compare: see the report of each."
        for f in facts
        if len(f.scores) and len(f.retrievers) > 1
    ]


def _of_kind(facts: Sequence[Facts], number: int, kind: str, several: bool) -> list[Chart]:
    suffix, title = (f"-{number}", f", {kind}") if several else ("", "")
    held = [(f.columns, f.columns.opens) for f in facts]
    walks = [shapes.by_progress(c.progress[c.example_of][opens], c.score[opens]) for c, opens in held]
    last = max(2, *(int(np.quantile(f.columns.documents, 0.9)) for f in facts))
    steps = [shapes.by_place(c.place[opens] + 1, c.score[opens], last) for c, opens in held]
    return [
        _spread(f"scores{suffix}", f"Scores of retrieved documents{title}", facts),
        _trends(
            f"score-by-step{suffix}", f"Score by step{title}", facts, steps, "place of the document in its example", "score",
            _step_words(facts),
        ),
        _trends(
            f"score-through-walk{suffix}", f"Score through the walk{title}", facts, walks, PROGRESS, "score",
            "A document is used once, so the last examples of a pack are made of what the others left over."
            if all(f.known("max_uses", 1) for f in facts)
            else "The last examples of a pack have the fewest documents to choose from.",
        ),
    ]  # fmt: skip


def _step_words(facts: Sequence[Facts]) -> str:
    """What the places of documents in an example mean, by the settings of those who are drawn."""
    orders = {f.manifest["settings"].get("order", "unknown") for f in facts}
    carry = any(f.carries for f in facts)
    if orders == {"identity"}:
        roots = "Roots have no score" if carry else "The first document is a root and has no score"
        words = f"{roots}; where later ones score less, a tree has used up its neighbours."
    elif orders == {"reverse"}:
        words = "Roots have no score; examples are written in reverse, those retrieved last first."
    elif orders == {"shuffle"}:
        words = (
            "Roots have no score; examples are shuffled, so that a place says nothing of when a document was retrieved."
        )
    else:
        words = "Roots have no score; whether a place says when a document was retrieved depends on the order of each build."
    return words + (" A document that goes on in the next example counts where it begins." if carry else "")


def _roots(facts: Sequence[Facts]) -> Chart:
    """The share of roots among the documents that begin in an example, through the walk."""
    held = [(f.columns, f.columns.opens) for f in facts]
    trends = [
        shapes.by_progress(c.progress[c.example_of][opens], 100.0 * np.isnan(c.score[opens])) for c, opens in held
    ]
    more = "There are more roots where trees end early and others begin in the same example."
    begins = all(f.known("order", "identity") and not f.carries for f in facts)
    words = f"Every example begins with a root. {more}" if begins else more
    name, y = "roots-through-walk", "documents that are roots (%)"
    return _trends(name, "Roots through the walk", facts, trends, PROGRESS, y, words)


def _spread(name: str, title: str, facts: Sequence[Facts]) -> Chart:
    data = shapes.score_histogram([f.scores for f in facts])
    median = each(facts, lambda f: score_text(float(np.median(f.scores))))
    beyond = f" The last bar also holds the {data.beyond:,} above it." if data.beyond else ""
    return Chart(
        name,
        title,
        plots.histogram(
            name, data, labels(facts), "score of a document for the one that retrieved it", "share of the edges (%)"
        ),
        f"Median {median}; a score compares only with scores of the same retriever.{beyond}",
        f"histogram; median {median}",
        ["score", *names(facts)],
        bins(data, lambda a, b: f"{score_text(a)} to {score_text(b)}"),
    )


def _trends(
    name: str, title: str, facts: Sequence[Facts], trends: Sequence[shapes.Trend], x: str, y: str, caption: str
) -> Chart:
    """Trends of scores with their bands and the mean of random pairs, or of shares with neither."""
    scores = y == "score"
    control = [_control(f) if scores else None for f in facts]
    if scores and len(facts) == 1:
        caption += " The band holds the middle 80%."
    if any(control):
        known = [f for f in facts if _control(f) is not None]
        caption += f" Dotted: the same retrieving documents with random ones, {each(known, lambda f: score_text(_control(f)))}."
    whole = x != PROGRESS
    return Chart(
        name,
        title,
        plots.trends(name, trends, labels(facts), x, y, control, whole=whole, band=scores),
        caption,
        trend_words(trends, names(facts), y),
        [x, *(trend_header(names(facts)) if scores else names(facts))],
        trend_rows(trends, lambda place: f"{place:,.0f}" if whole else f"{place:,.1f}", means_only=not scores),
    )


def _control(f: Facts) -> float | None:
    """The mean score of random pairs, where it was taken."""
    return f.manifest["scores"]["mean_control"] if "scores" in f.manifest else None
