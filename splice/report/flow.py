"""The ledger as a flow: bands from where documents and tokens came to where they went, as wide as they are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .figures import EXAMPLES, Flow, grouped
from .svg import INK, LABEL, MUTED, PAPER, SERIES, SMALL, WIDTH, plain_canvas, short, svg

MOST_ORIGINS = 8
BANDS = 150  # units that the fullest column's bands are high together
PITCH = 31  # between the labels of one column
NODE = 7
MARGIN = {2: 122, 3: 98}  # for labels at both sides, by the number of columns
CHARACTERS = {2: 14, 3: 10}  # of a label
CHARACTER = 7.4  # units that one is wide
KEPT = ("packed", "written")
NEUTRAL = ("separators", "padding")


@dataclass
class Node:
    """A place of the flow. top: of its bar; label: the middle of its text; out, into: where the next band is joined."""

    count: int = 0
    top: float = 0.0
    out: float = 0.0
    into: float = 0.0

    def height(self, scale: float) -> float:
        """Of the bar; one that is there is seen."""
        return max(self.count * scale, 1.5)


def group_origins(flows: Sequence[Flow], most: int = MOST_ORIGINS) -> list[Flow]:
    """The flows with the origins of the first column grouped: the largest, and the rest together."""
    counts: dict[str, int] = {}
    for flow in flows:
        if flow.stage == 0:
            counts[flow.origin] = counts.get(flow.origin, 0) + flow.count
    kept = grouped(counts, most)
    other = next((name for name in kept if name not in counts), "")
    merged: dict[tuple[int, str, str], int] = {}
    for flow in flows:
        origin = flow.origin if flow.stage or flow.origin in kept else other
        merged[flow.stage, origin, flow.target] = merged.get((flow.stage, origin, flow.target), 0) + flow.count
    place = {name: i for i, name in enumerate(kept)}
    return sorted((Flow(*names, n) for names, n in merged.items()), key=lambda f: (f.stage, place.get(f.origin, 0)))


def draw_flow(name: str, flows: Sequence[Flow], titles: Sequence[str]) -> str:
    """The picture of some flows; titles: of each column. Every place is labelled with its name and count."""
    from matplotlib.patches import PathPatch, Rectangle

    flows = group_origins(flows)
    columns = _columns(flows, len(titles))
    scale = BANDS / max(sum(node.count for node in column.values()) for column in columns)
    bottom = max(_stack(column, scale) for column in columns)
    figure, axes = plain_canvas(round(bottom) + 12)
    margin = MARGIN[len(titles)]
    x = [margin + i * (WIDTH - 2 * margin - NODE) / (len(titles) - 1) for i in range(len(titles))]
    for flow in flows:
        origin, target = columns[flow.stage][flow.origin], columns[flow.stage + 1][flow.target]
        path = _band(x[flow.stage] + NODE, x[flow.stage + 1], origin.out, target.into, max(flow.count * scale, 1))
        axes.add_patch(PathPatch(path, facecolor=_colour(flow), alpha=0.4, linewidth=0))
        origin.out += flow.count * scale
        target.into += flow.count * scale
    for i, column in enumerate(columns):
        side = "right" if i == 0 else "left"
        edge = x[i] - 6 if i == 0 else x[i] + NODE + 6
        axes.text(edge, 12, titles[i], ha=side, fontsize=SMALL, color=MUTED)
        for title, node in column.items():
            axes.add_patch(
                Rectangle((x[i], node.top), NODE, node.height(scale), facecolor=INK, alpha=0.75, linewidth=0)
            )
            middle = node.top + node.height(scale) / 2
            if i > 0 and title in NEUTRAL:  # its own band begins under its label
                size = (CHARACTER * max(len(title), len(f"{node.count:,}")), 27)
                axes.add_patch(Rectangle((edge - 2, middle - 14), *size, facecolor=PAPER, linewidth=0))
            axes.text(edge, middle - 2, short(title, CHARACTERS[len(titles)]), ha=side, fontsize=LABEL)
            axes.text(edge, middle + 11, f"{node.count:,}", ha=side, fontsize=SMALL, color=MUTED)
    return svg(figure, name)


def _columns(flows: Sequence[Flow], n: int) -> list[dict[str, Node]]:
    """The places of each column by name. What enters a place and what leaves it are the same, or one of them is nothing."""
    columns: list[dict[str, Node]] = [{} for _ in range(n)]
    into: list[dict[str, int]] = [{} for _ in range(n)]
    for flow in flows:
        columns[flow.stage].setdefault(flow.origin, Node()).count += flow.count
        into[flow.stage + 1][flow.target] = into[flow.stage + 1].get(flow.target, 0) + flow.count
    for column, arriving in zip(columns, into, strict=True):
        for name, count in arriving.items():
            node = column.setdefault(name, Node())
            node.count = max(node.count, count)
    return columns


def _stack(column: dict[str, Node], scale: float) -> float:
    """Place a column's bars below each other, with room for their labels; where it ends."""
    bottom, label = 16.0, 14.0
    for node in column.values():
        height = node.height(scale)
        node.top = max(bottom + 8, bottom + 17 - height / 2, label + PITCH - height / 2)
        node.out = node.into = node.top
        bottom, label = node.top + height, node.top + height / 2
    return max(bottom, label + 14)


def _band(x0: float, x1: float, y0: float, y1: float, height: float) -> Any:
    """A band between two heights, its edges curves that leave and arrive level."""
    from matplotlib.path import Path

    middle = (x0 + x1) / 2
    corners = [
        (x0, y0), (middle, y0), (middle, y1), (x1, y1),
        (x1, y1 + height), (middle, y1 + height), (middle, y0 + height), (x0, y0 + height), (x0, y0),
    ]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    return Path(corners, codes)


def _colour(flow: Flow) -> str:
    if flow.origin in NEUTRAL:
        return MUTED
    return SERIES[0] if flow.target in KEPT or flow.origin in KEPT or flow.target == EXAMPLES else SERIES[1]
