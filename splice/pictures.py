"""Pictures (PNG) of training runs and of evaluations, in one look: that of the report, in the light colours of its page.

What is compared has a name, a colour, a dash and a mark, the same in every picture; one legend beneath a chart says which.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .errors import SpliceError
from .files import replacing
from .report.facts import distinct_names
from .report.svg import GRID, INK, MARKERS, MUTED, STYLE, short

WIDTH, SCALE = 760, 2  # units of a picture's width, pixels to a unit
LINE, LEGEND_ROW = 16, 20  # units of height: of a line beneath the title, of a row of the legend
NAME_CHARACTERS, SAID_CHARACTERS = 96, 108  # of a name in legends, of a line beneath the title
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # Okabe and Ito
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))  # once the colours are used up
LIGHT = {INK: "#23211d", MUTED: "#6a665e", GRID: "#e6e2d9"}
MOST_TICKS = 9  # of an axis whose values double

Span = tuple[int, int]  # the positions of a bucket: the first, and the one after the last


@dataclass(frozen=True)
class Series:
    """What is compared: its name among those of the picture, and its place there, which colour, dash and mark go by."""

    name: str
    place: int

    @property
    def color(self) -> str:
        """The colour of its lines."""
        return COLORS[self.place % len(COLORS)]

    @property
    def marker(self) -> str:
        """The mark of its single values, and of a line of one point."""
        return MARKERS[self.place % len(MARKERS)]

    @property
    def line(self) -> dict[str, Any]:
        """How its lines are drawn."""
        return {"color": self.color, "linestyle": DASHES[self.place // len(COLORS) % len(DASHES)], "linewidth": 1.8}


def named(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each directory once, in the order given, with as much of its path as tells it from the others."""
    paths = list({path.resolve(): path for path in paths}.values())
    return list(zip(distinct_names(paths), paths, strict=True)) if paths else []


@contextmanager
def drawing() -> Iterator[None]:
    """The look of all pictures, for the time they are drawn; the user's own (a matplotlibrc) has no part in it."""
    import matplotlib

    light = {name: LIGHT.get(value, value) for name, value in STYLE.items()}
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(light | {"figure.facecolor": "white", "agg.path.chunksize": 10_000})
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it
        yield


def canvas(height: int, panels: Sequence[int], title: str, said: str, columns: int | None = None) -> tuple[Any, Any]:
    """A figure of WIDTH by `height` units, and its panels from the top, of these relative heights.

    said: beneath the title; lines of it after the first make the figure taller. columns: of a grid of panels, which are
    given row by row, have an x axis each and room for a heading.
    """
    from matplotlib.figure import Figure

    lines = [line for part in said.splitlines() for line in textwrap.wrap(part, SAID_CHARACTERS)]
    heading = LINE if columns else 0
    more = heading + LINE * max(0, len(lines) - 1)
    figure = Figure(figsize=(WIDTH / 72, (height + more) / 72), dpi=72 * SCALE, layout="constrained")
    figure.get_layout_engine().set(w_pad=8 / 72, h_pad=6 / 72)
    axes = figure.subplots(len(panels), columns or 1, sharex=not columns, height_ratios=panels, squeeze=False).ravel()
    axes[0].set_title(title, loc="left", fontsize=16, pad=29 + more)
    beneath = axes[0].annotate(
        "\n".join(lines), (0, 1), (0, 11 + heading), "axes fraction", "offset points", color=LIGHT[MUTED]
    )
    beneath.set_in_layout(False)  # the title's pad holds its place; a panel need not be as wide as its words
    for panel in axes:
        panel.tick_params(length=3)
    return figure, axes


def legend(figure: Any, series: Sequence[Series], labels: Sequence[str] = (), marked: bool = True) -> None:
    """The names beneath the chart, which is made as much taller. labels: other than names. marked: has marks."""
    from matplotlib.lines import Line2D

    names = [_shown(label) for label in labels or [one.name for one in series]]
    columns = max(1, min(len(series), WIDTH // (7 * max(map(len, names)) + 60)))
    rows = -(-len(series) // columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * rows / 72)
    handles = [Line2D([], [], marker=one.marker if marked else None, markersize=6, **one.line) for one in series]
    figure.legend(handles, names, loc="outside lower left", ncols=columns, handlelength=2.6, columnspacing=1.6)


def marks(axes: Any, one: Series, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> None:
    """Its single values, without a line."""
    axes.plot(
        x, y, linestyle="none", marker=one.marker, markersize=7, color=one.color, markeredgecolor="white",
        markeredgewidth=0.9, zorder=4,
    )  # fmt: skip


def bucket_edges(spans: Sequence[Span]) -> np.ndarray:
    """Where the steps of adjoining buckets are, float64 [n + 1]; the first, from 0, is drawn as wide as one that doubles."""
    return np.array([start or end / 2 for start, end in spans] + [spans[-1][1]], np.float64)


def bucket_axis(axes: Any, buckets: Iterable[Sequence[Span]]) -> None:
    """Edges of every line's buckets as the ticks of a doubling axis, at most MOST_TICKS."""
    places: dict[int, float] = {}
    for spans in buckets:
        places |= zip((spans[0][0], *(end for _, end in spans)), bucket_edges(spans), strict=True)
    ordered = sorted(places, reverse=True)[:: -(-len(places) // MOST_TICKS)]
    axes.set_xscale("log", base=2)
    axes.set_xticks([places[edge] for edge in ordered], [f"{edge:,}" for edge in ordered])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="token position, on a logarithmic scale")


def log_if_wide(axes: Any) -> None:
    """A logarithmic y axis with plain numbers where values differ by more than 5 times."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.dataLim.intervaly
    if low > 0 and high > 5 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,.6g}")


def write_picture(figure: Any, path: Path) -> None:
    """The figure as a PNG, whole or not at all. Raises SpliceError where it cannot be written."""
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png")
    except OSError as error:
        raise SpliceError(
            f"{path}: cannot be written ({error.strerror}); name another directory for the pictures"
        ) from None


def say(console: Console, text: str) -> None:
    """A line that is only text: no markup, not wrapped."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _shown(label: str) -> str:
    label = short(label, NAME_CHARACTERS)
    return f" {label}" if label.startswith("_") else label  # matplotlib 3.9 leaves out labels that begin so
