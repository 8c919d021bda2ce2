"""A chart of the page: a picture, a sentence and a table; and the words and rows that charts have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .facts import Facts
from .figures import score_text
from .plots import Label
from .shapes import Histogram, Trend

MOST_ROWS = 60  # of a chart's table

Cells = list[str]


@dataclass(frozen=True)
class Chart:
    """A picture with its title, its sentence, what a reader who cannot see it is told, and its numbers."""

    name: str
    title: str
    drawing: str
    caption: str
    spoken: str
    header: Cells
    rows: list[Cells]


def names(facts: Sequence[Facts]) -> list[str]:
    """The datasets' names."""
    return [f.name for f in facts]


def labels(facts: Sequence[Facts]) -> list[Label]:
    """The datasets as charts draw them."""
    return [Label(f.name, f.place) for f in facts]


def of(f: Facts, facts: Sequence[Facts]) -> str:
    """Which of several datasets a sentence is of."""
    return f"{f.name}: " if len(facts) > 1 else ""


def each(facts: Sequence[Facts], show: Callable[[Facts], str]) -> str:
    """A figure of every dataset, named where there are several."""
    return ", ".join(f"{show(f)} ({f.name})" if len(facts) > 1 else show(f) for f in facts)


def bins(data: Histogram, label: Callable[[float, float], str]) -> list[Cells]:
    """A row for each bin, with the counts of each dataset. label: of a bin between two edges."""
    return [
        [label(a, b), *(f"{counts[i]:,}" for counts in data.counts)]
        for i, (a, b) in enumerate(zip(data.edges[:-1], data.edges[1:], strict=True))
    ]


def trend_header(names: Sequence[str]) -> Cells:
    """The columns of `trend_rows`."""
    return ["mean", "10%", "90%", "values"] if len(names) == 1 else list(names)


def trend_rows(trends: Sequence[Trend], label: Callable[[float], str], means_only: bool = False) -> list[Cells]:
    """A row for each point: of one dataset with its band, of several their means. label: of a point's x."""
    if len(trends) == 1 and not means_only:
        t = trends[0]
        return [
            [label(t.x[i]), *map(score_text, (t.mean[i], t.low[i], t.high[i])), f"{t.n[i]:,.0f}"]
            for i in range(len(t.x))
        ]
    means = [dict(zip(t.x.tolist(), t.mean.tolist(), strict=True)) for t in trends]
    return [[label(x), *(score_text(m[x]) if x in m else "" for m in means)] for x in sorted(set().union(*means))]


def trend_words(trends: Sequence[Trend], names: Sequence[str], what: str = "mean score") -> str:
    """How trends begin and end, for those who cannot see them."""
    return "; ".join(
        f"{name}: {what} {score_text(t.mean[0])} at first, {score_text(t.mean[-1])} at last"
        for name, t in zip(names, trends, strict=True)
        if len(t.x)
    )
