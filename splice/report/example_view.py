"""Pictures of one example: the tree of the walk, and its tokens by document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..store.shards import Example
from .columns import depths
from .figures import score_text
from .svg import INK, MUTED, PADDING, SCALE, SMALL, TINTS, WIDTH, canvas, svg

MOST_DOCUMENTS = 1500  # that a tree shows
ROWS = 16
THICK = 0.56  # of a bar, in steps of depth; of a deep tree, this much of its depth:
THICK_SHARE = 0.012
LONG = 200_000  # tokens, from which an axis has room for fewer numbers

Box = tuple[float, float, float, float]  # left, right, top, bottom


def score_classes(scores: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The class of each score, int64 [n] from 0, -1 for none, of as many classes of equal size as SCALE has; the lowest score
    and the highest."""
    known = np.sort(scores[~np.isnan(scores)])
    if not len(known):
        return np.full(len(scores), -1), 0.0, 0.0
    limits = np.quantile(known, np.arange(1, len(SCALE)) / len(SCALE))
    classes = np.where(np.isnan(scores), -1, np.searchsorted(limits, scores, side="right"))
    return classes, float(known[0]), float(known[-1])


def draw_tree(name: str, example: Example) -> str:
    """Every document as a bar from its start to its end at its depth, joined to its parent."""
    n = min(len(example.doc_ids), MOST_DOCUMENTS)
    depth = depths(example.parents.astype(np.int64))[:n]
    start, end = example.doc_offsets[:n].astype(float), example.ends[:n].astype(float)
    classes, low, high = score_classes(example.scores[:n])
    deepest = int(depth.max(initial=0))
    thick = max(THICK, THICK_SHARE * deepest)
    figure, axes = canvas(int(np.clip(150 + 22 * deepest, 172, 440)), top=36)
    steps = [
        (
            (end[p], depth[p]),
            (end[p], depth[p] + 0.5),
            (start[i], depth[p] + 0.5),
            (start[i], depth[i]),
        )
        for i, p in enumerate(example.parents[:n].tolist())
        if 0 <= p < n
    ]
    _lines(axes, steps)
    for c, color in ((-1, MUTED), *enumerate(SCALE)):
        boxes = [(start[i], end[i], depth[i] - thick / 2, depth[i] + thick / 2) for i in np.flatnonzero(classes == c)]
        _boxes(axes, boxes, color)
    axes.set(
        xlim=(0, len(example.input_ids)), ylim=(deepest + 0.1 + thick, -0.1 - thick), xlabel="position in the example (tokens)",
        ylabel="depth (steps)",
    )  # fmt: skip
    axes.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1, nbins=9, steps=[1, 2, 5, 10])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5 if len(example.input_ids) < LONG else 4)
    axes.grid(visible=False)
    _key(figure, low, high, bool((classes >= 0).any()))
    return svg(figure, name)


def draw_strip(name: str, example: Example) -> str:
    """The example's tokens in rows, each document in another tint than those beside it."""
    length = len(example.input_ids)
    row = -(-length // ROWS)
    figure, axes = canvas(56 + 15 * ROWS, top=8)
    filled = length - example.padding
    for tint, color in enumerate(TINTS):
        mine = range(tint, len(example.doc_ids), len(TINTS))
        _boxes(axes, _wrapped(((int(example.doc_offsets[i]), int(example.ends[i])) for i in mine), row), color)
    _boxes(axes, _wrapped([(filled, length)], row), PADDING)
    for i, (start, end) in enumerate(zip(example.doc_offsets.tolist(), example.ends.tolist(), strict=True)):
        if end - start >= 0.09 * row:  # wide enough for its number
            left = start if start % row <= 0.91 * row else (start // row + 1) * row
            if left < end and min(end, (left // row + 1) * row) - left >= 0.09 * row:
                axes.text(
                    left % row + 0.01 * row, left // row + 0.5, str(i), va="center", fontsize=SMALL - 1.5, color=INK
                )
    axes.set(
        xlim=(0, row), ylim=(ROWS, 0), xlabel=f"position in a row of {row:,} tokens", ylabel="row of the example",
    )  # fmt: skip
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5 if len(example.input_ids) < LONG else 4)
    axes.set_yticks(np.arange(0, ROWS, 4) + 0.5, range(0, ROWS, 4))
    axes.grid(visible=False)
    return svg(figure, name)


def _wrapped(spans: Iterable[tuple[int, int]], row: int) -> list[Box]:
    """Spans of tokens as boxes in rows of `row` tokens; those of full rows are one box."""
    boxes: list[Box] = []
    for start, end in spans:
        while start < end:
            line = start // row
            stop = min(end, (line + 1) * row)
            if start % row == 0 and end - start >= 2 * row:
                lines = (end - start) // row
                boxes.append((0, row, line + 0.08, line + lines - 0.08))
                start += lines * row
                continue
            boxes.append((start % row, stop - line * row, line + 0.08, line + 0.92))
            start = stop
    return boxes


def _boxes(axes: Any, boxes: Sequence[Box], color: str) -> None:
    """All boxes as one path: a shape each would fill the page."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if boxes:
        corners = [p for a, b, top, bottom in boxes for p in ((a, top), (b, top), (b, bottom), (a, bottom), (a, top))]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
        axes.add_patch(PathPatch(Path(corners, codes), facecolor=color, linewidth=0))


def _lines(axes: Any, lines: Sequence[Sequence[tuple[float, float]]]) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if lines:
        codes = [code for line in lines for code in (Path.MOVETO, *[Path.LINETO] * (len(line) - 1))]
        path = Path([point for line in lines for point in line], codes)
        axes.add_patch(PathPatch(path, facecolor="none", edgecolor=MUTED, linewidth=1))


def _key(figure: Any, low: float, high: float, scored: bool) -> None:
    """The colours' meaning, above the tree."""
    from matplotlib.patches import Rectangle

    height = figure.get_size_inches()[1] * 72

    def box(x: float, width: float, color: str) -> None:
        figure.add_artist(
            Rectangle((x / WIDTH, 1 - 20 / height), width / WIDTH, 11 / height, facecolor=color, linewidth=0)
        )

    def text(x: float, words: str, side: str = "left") -> None:
        figure.text(x / WIDTH, 1 - 19 / height, words, fontsize=SMALL, ha=side)

    box(58, 14, MUTED)
    text(76, "root")
    if scored:
        text(214, f"score {score_text(low)}", "right")
        for i, color in enumerate(SCALE):
            box(220 + 19 * i, 19, color)
        text(220 + 19 * len(SCALE) + 6, score_text(high))
