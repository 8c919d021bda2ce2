"""The charts with axes: histograms, trends, bars, and the dots of dataset and control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .relatedness import Measure, Related
from .shapes import Histogram, Trend
from .svg import DASHES, MARKERS, MUTED, PAPER, SERIES, canvas, short, svg

HEIGHT = 230
NAME_CHARACTERS = 16
NUMBER = "{x:,.6g}"  # of an axis


@dataclass(frozen=True)
class Label:
    """A dataset's name, and its place among those of the page, which its colour, dash and mark go by in every chart."""

    name: str
    place: int

    @property
    def color(self) -> str:
        """The colour of its lines."""
        return SERIES[self.place % len(SERIES)]

    @property
    def marker(self) -> str:
        """The mark of its means."""
        return MARKERS[self.place % len(MARKERS)]


def histogram(
    name: str, data: Histogram, labels: Sequence[Label], x: str, y: str, log: bool = False, whole: bool = False
) -> str:
    """Shares by bin: filled for one dataset, outlines for several. log: bins double; whole: x is in whole numbers."""
    figure, axes = canvas(HEIGHT + _legend_height(labels), top=12 + _legend_height(labels))
    drawn = []
    for i, label in enumerate(labels):
        shares = 100 * data.shares(i)
        if len(labels) == 1:
            axes.stairs(shares, data.edges, fill=True, color=label.color, alpha=0.75, linewidth=0)
        drawn.append(axes.stairs(shares, data.edges, **_line(label)))
    if log:
        axes.set_xscale("log", base=2)
        _thousands_on_log(axes, data.edges)
    else:
        axes.xaxis.set_major_formatter(NUMBER)
        axes.xaxis.get_major_locator().set_params(integer=whole, min_n_ticks=1)
    axes.set(xlabel=x, ylabel=y, xlim=(data.edges[0], data.edges[-1]), ylim=(0, None))
    return _finish(figure, axes, name, labels, drawn)


def trends(
    name: str,
    data: Sequence[Trend],
    labels: Sequence[Label],
    x: str,
    y: str,
    control: Sequence[float | None],
    whole: bool,
    band: bool = True,
) -> str:
    """Means, of one dataset with their band; the mean of random pairs as a dotted line. whole: whether x is in whole numbers."""
    figure, axes = canvas(HEIGHT + _legend_height(labels), top=12 + _legend_height(labels))
    drawn = []
    for i, trend in enumerate(data):
        color = labels[i].color
        if band and len(labels) == 1:
            axes.fill_between(trend.x, trend.low, trend.high, color=color, alpha=0.22, linewidth=0)
        marker = labels[i].marker if len(trend.x) < 2 else None
        drawn += axes.plot(trend.x, trend.mean, marker=marker, **_line(labels[i]))
        if control[i] is not None:
            axes.axhline(control[i], color=color if len(labels) > 1 else MUTED, linestyle=":", linewidth=1.4)
    if whole:
        _whole_numbers(axes)
    lowest = min([0.0, *(float(trend.low.min()) for trend in data if len(trend.x))])
    axes.set(xlabel=x, ylabel=y, ylim=(1.05 * lowest, None))
    axes.yaxis.set_major_formatter(NUMBER)
    return _finish(figure, axes, name, labels, drawn)


def composition(
    name: str, shares: Sequence[dict[str, float]], labels: Sequence[Label], x: str, colors: Sequence[str]
) -> str:
    """A bar of parts that add up to 100% for each dataset."""
    parts = list(dict.fromkeys(part for one in shares for part in one))
    colours = dict(zip(parts, colors, strict=True))
    left = 14 if len(labels) == 1 else 120
    figure, axes = canvas(78 + 24 * len(labels), left=left, top=26)
    for i, one in enumerate(shares):
        start = 0.0
        for part in parts:
            width = 100 * one.get(part, 0.0)
            axes.barh(
                i,
                width,
                0.62,
                start,
                color=colours[part],
                label=part if i == 0 else None,
                edgecolor=MUTED,
                linewidth=0.5,
            )
            start += width
    axes.set(xlim=(0, 100), xlabel=x, ylim=(len(labels) - 0.5, -0.5))
    axes.set_yticks(
        range(len(labels)),
        [short(label.name, NAME_CHARACTERS) for label in labels] if len(labels) > 1 else [""] * len(labels),
    )
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.98), ncols=3, handlelength=1, columnspacing=1.4, borderpad=0)
    return svg(figure, name)


def shares_by_name(
    name: str, rows: Sequence[str], shares: Sequence[dict[str, float]], labels: Sequence[Label], x: str
) -> str:
    """A bar for each row of one dataset, or a mark for each of several."""
    top = 12 + _legend_height(labels)
    figure, axes = canvas(56 + top + 21 * len(rows), left=128, top=top)
    y, drawn = np.arange(len(rows)), []
    for i, one in enumerate(shares):
        values = [100 * one.get(row, 0.0) for row in rows]
        if len(labels) == 1:
            axes.barh(y, values, 0.6, color=SERIES[0], alpha=0.75)
        else:
            drawn += axes.plot(
                values,
                y,
                linestyle="none",
                marker=labels[i].marker,
                color=labels[i].color,
            )
    axes.set(xlabel=x, xlim=(0, None), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(y, [short(row, NAME_CHARACTERS) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return _finish(figure, axes, name, labels, drawn)


def against_control(name: str, measure: Measure, related: Sequence[Related | None], labels: Sequence[Label]) -> str:
    """The means of datasets, filled, and of their controls, hollow, with 95% intervals."""
    one = len(labels) == 1
    figure, axes = canvas(64 + (54 if one else 26 * len(labels)), left=108, top=10)
    scale = 100 if measure.percent else 1
    for i, found in enumerate(related):
        if found is None:
            continue
        lines = ((found.dataset, 0.0, labels[i].color, None), (found.control, 1.0, MUTED, PAPER))
        for estimates, place, color, face in lines:
            e = estimates[measure.key]
            y = place if one else i + 0.36 * place - 0.18
            axes.plot([scale * e.low, scale * e.high], [y, y], color=color, linewidth=2, solid_capstyle="butt")
            axes.plot(
                [scale * e.mean], [y], marker=labels[i].marker, markersize=7, color=color,
                markerfacecolor=face or color, markeredgewidth=1.6,
            )  # fmt: skip
    rows = ["this dataset", "random control"] if one else [short(label.name, NAME_CHARACTERS - 2) for label in labels]
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=measure.axis, ylim=(len(rows) - 0.4, -0.6))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    low, high = axes.dataLim.intervalx
    if low == high:
        low, high = low - scale / 1000, low + scale / 50
    axes.set_xlim(low - 0.12 * (high - low), high + 0.12 * (high - low))
    axes.locator_params(axis="x", nbins=5)
    return svg(figure, name)


def _line(label: Label) -> dict[str, Any]:
    return {"color": label.color, "linestyle": DASHES[label.place % len(DASHES)], "linewidth": 1.8}


def _legend_height(labels: Sequence[Label]) -> int:
    """Room above the axes: a line for every two datasets."""
    return 0 if len(labels) == 1 else 19 * -(-len(labels) // 2)


def _finish(figure: Any, axes: Any, name: str, labels: Sequence[Label], drawn: Sequence[Any]) -> str:
    """The drawing, with a legend where there are several datasets; drawn: of each what stands for it there."""
    if len(labels) > 1:
        axes.legend(
            drawn, [short(label.name, NAME_CHARACTERS + 2) for label in labels], loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, columnspacing=1.6, borderpad=0.1,
            handlelength=2.6,
        )  # fmt: skip
    axes.tick_params(length=3)
    return svg(figure, name)


def _whole_numbers(axes: Any) -> None:
    """Ticks at whole numbers alone, of an axis at least one wide."""
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, np.ceil(low) - 0.5), max(high, np.floor(high) + 0.5))
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _thousands_on_log(axes: Any, edges: np.ndarray) -> None:
    """Powers of two as ticks, at most seven."""
    low, high = int(np.ceil(np.log2(edges[0]))), int(np.floor(np.log2(edges[-1])))
    step = max(1, -(-(high - low + 1) // 7))
    ticks = [2**p for p in range(low, high + 1, step)]
    axes.set_xticks(
        ticks, [f"{t:,}" if t < 10_000 else f"{t // 1024}K" if t < 2**20 else f"{t // 2**20}M" for t in ticks]
    )
    axes.set_xticks([], minor=True)
