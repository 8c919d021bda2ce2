"""Charts of scores: how they spread, along an example, and through the walk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import plots, shapes
from .chart import Chart, bins, each, labels, names, trend_header, trend_rows, trend_words
from .facts import Facts
from .figures import score_text

PROGRESS = "share of the pack's examples made (%)"


def score_charts(facts: Sequence[Facts]) -> list[Chart]:
    """The charts of datasets that have scores, apart for each kind of score: scores of two retrievers do not compare."""
    kinds: dict[str, list[Facts]] = {}
    for f in facts:
        if len(f.scores):
            kinds.setdefault(f.score_kind, []).append(f)
    return [
        chart for i, (kind, alike) in enumerate(kinds.items()) for chart in _of_kind(alike, i, kind, len(kinds) > 1)
    ]


def _of_kind(facts: Sequence[Facts], number: int, kind: str, several: bool) -> list[Chart]:
    suffix, title = (f"-{number}", f", {kind}") if several else ("", "")
    made = [f.columns.progress[f.columns.example_of] for f in facts]
    walks = [shapes.by_progress(x, f.columns.score) for x, f in zip(made, facts, strict=True)]
    roots = [shapes.by_progress(x, 100.0 * np.isnan(f.columns.score)) for x, f in zip(made, facts, strict=True)]
    last = max(2, *(int(np.quantile(f.columns.documents, 0.9)) for f in facts))
    steps = [shapes.by_place(f.columns.place + 1, f.columns.score, last) for f in facts]
    return [
        _spread(f"scores{suffix}", f"Scores of retrieved documents{title}", facts),
        _trends(
            f"score-by-step{suffix}", f"Score by step{title}", facts, steps, "place of the document in its example", "score",
            "The first document is a root and has no score; where later ones score less, a tree has used up its neighbours.",
        ),
        _trends(
            f"score-through-walk{suffix}", f"Score through the walk{title}", facts, walks, PROGRESS, "score",
            "A document is used once, so the last examples of a pack are made of what the others left over.",
        ),
        _trends(
            f"roots-through-walk{suffix}", f"Roots through the walk{title}", facts, roots, PROGRESS, "documents that are roots (%)",
            "Every example begins with a root; there are more where trees end early and others begin in the same example.",
        ),
    ]  # fmt: skip


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
        caption += f" Dotted: random pairs of the same pool, {each(known, lambda f: score_text(_control(f)))}."
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
