"""A picture of what a run's experts did: the load of each over time, a heat map a layer, and how they were routed to.

Colours tell by how much an expert computes more or less than its part, on a scale of doublings, and which are dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from splice.pictures import LIGHT, SCALE, WIDTH, Series, canvas, legend
from splice.report.svg import GRID

from .log import ExpertLoads

LAYERS, HEIGHT = (2, 6), 600  # heat maps of a picture, so many as are no higher than this
COLUMNS = 600  # of a heat map, as many as can be told apart
POINTS = 150  # of a line beneath
LEAST = 64  # units of height of a heat map, and as many as give each expert a pixel
BENEATH = 80  # of a panel of lines
HEAD, FOOT, GAP, LEFT, RIGHT = 50, 114, 14, 78, 16  # around panels: for the title, the scale, between, the labels
DOUBLINGS = 2  # of the balanced load to each end of the colours
COLD, BALANCED, WARM, DEAD = ("#0f6cab", "#6fb4dc"), "#f7f5f0", ("#ee9f68", "#b5460b"), "#000000"
DEAD_SHARE = 1e-6  # of the balanced load: what rounding leaves of none


def expert_chart(name: str, loads: ExpertLoads, edges: np.ndarray, unit: str) -> Any:
    """Heat maps of experts by tokens read; router entropy beneath, and the share dropped where there is any.

    name: of the run. edges: float64 [n + 1], of the unit of tokens read up to each line, from 0 on: a line tells of what
    was read since the one before.
    """
    count = loads.load.shape[-1]
    height = max(LEAST, -(-count // SCALE) + 1)
    least, most = LAYERS
    shown = evenly(len(loads.layers), min(max(least, HEIGHT // height), most))
    layers = [Series(f"layer {loads.layers[i]}", place) for place, i in enumerate(shown)]
    trends = [("entropy,\nnats", loads.entropy[:, shown])]
    if np.nan_to_num(loads.dropped).any():
        trends.append(("dropped,\n%", 100 * loads.dropped[:, shown]))
    some = f"; {len(shown)} of its {len(loads.layers)} expert layers" if len(shown) < len(loads.layers) else ""
    heights = [height] * len(shown) + [BENEATH] * len(trends)
    asked = HEAD + sum(heights) + GAP * (len(heights) - 1) + FOOT
    figure, axes = canvas(asked, heights, "Load of experts", name + some)
    maps = axes[: len(shown)]
    load = by_column(edges, relative_load(loads.load[:, shown]), COLUMNS)  # [columns, L, E]
    for layer, panel, values in zip(layers, maps, load.transpose(1, 2, 0), strict=True):
        image = _heat_map(panel, values, edges[-1])
        panel.set_ylabel(f"{layer.name}\nexpert")
    for panel, (label, values) in zip(axes[len(shown) :], trends, strict=True):
        _lines(panel, layers, edges, values)
        panel.set(ylabel=label, ylim=_range(values))
    axes[-1].set(xlabel=f"{unit} read", xlim=(0, edges[-1]))
    _color_bar(axes[-1], image, f"an expert's share of its layer's assignments, times its {count} experts")
    above = 72 * figure.get_figheight()
    if len(layers) > 1:
        legend(figure, layers, marked=len(loads.step) == 1)
    _place(figure, axes, heights, HEAD + above - asked)
    return figure


def _range(values: np.ndarray) -> tuple[float, float]:
    """Around all values, near 0 or not: what changes in an entropy is little of it."""
    low, high = np.nanmin(values), np.nanmax(values)
    margin = max(0.08 * (high - low), 0.01 * abs(high), 1e-3)
    return max(low - margin, 0.0) if low >= 0 else low - margin, high + margin


def _place(figure: Any, axes: Sequence[Any], heights: Sequence[int], head: float) -> None:
    """Panels of exactly these units of height, so that each expert has its pixels, below as much for the title."""
    figure.set_layout_engine("none")
    total, top = 72 * figure.get_figheight(), head
    for panel, height in zip(axes, heights, strict=True):
        bottom = 1 - (top + height) / total
        panel.set_position((LEFT / WIDTH, bottom, 1 - (LEFT + RIGHT) / WIDTH, height / total))
        top += height + GAP


def relative_load(load: np.ndarray) -> np.ndarray:
    """[..., E]: each expert's share of its layer's assignments, times E; nan for a layer that computed nothing."""
    with np.errstate(invalid="ignore"):
        return load / load.mean(-1, keepdims=True)


def by_column(edges: np.ndarray, values: np.ndarray, columns: int) -> np.ndarray:
    """Means [columns, ...] over equal parts of the axis from 0 to edges[-1], of values [n, ...] that hold between edges.

    nan counts for nothing, and is all there is where no value holds.
    """
    at = np.linspace(0, edges[-1], columns + 1)
    width = np.diff(edges).reshape(-1, *[1] * (values.ndim - 1))

    def inside(density: np.ndarray) -> np.ndarray:
        upto = np.concatenate([np.zeros_like(density[:1]), np.cumsum(density * width, axis=0)]).reshape(len(edges), -1)
        return np.diff([np.interp(at, edges, total) for total in upto.T]).T.reshape(columns, *values.shape[1:])

    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return inside(np.where(known, values, 0.0)) / inside(known.astype(np.float64))


def evenly(count: int, most: int) -> list[int]:
    """At most so many of the places 0 to count - 1, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def _heat_map(axes: Any, values: np.ndarray, end: float) -> Any:
    """Relative loads [E, columns]; gives the image, whose scale counts doublings."""
    count = len(values)
    with np.errstate(divide="ignore"):
        doublings = np.log2(values).clip(-DOUBLINGS, DOUBLINGS)
    doublings[values < DEAD_SHARE] = -DOUBLINGS - 1  # under the scale
    image = axes.imshow(
        doublings, cmap=_colors(), vmin=-DOUBLINGS, vmax=DOUBLINGS, extent=(0, end, -0.5, count - 0.5), origin="lower",
        aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.set_yticks(sorted({0, count // 2, count - 1}))
    axes.grid(False)
    axes.spines[:].set_visible(True)
    return image


def _colors() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("load", [*COLD, BALANCED, *WARM])
    return colors.with_extremes(under=DEAD, bad=LIGHT[GRID])


def _color_bar(axes: Any, image: Any, label: str) -> None:
    """The scale beneath the last panel and what its axis says, dead experts at its left."""
    from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

    inches = axes.figure.dpi_scale_trans + ScaledTranslation(0, 0, axes.transAxes)
    units = Affine2D().scale(1 / 72) + inches  # up from the foot of the panel
    place = axes.inset_axes((0.23, -62, 0.6, 13), transform=blended_transform_factory(axes.transAxes, units))
    bar = axes.figure.colorbar(
        image, cax=place, orientation="horizontal", extend="min", extendrect=True, extendfrac=0.1, label=label
    )
    ticks = range(-DOUBLINGS, DOUBLINGS + 1)
    names = [f"1/{2**-tick}" if tick < 0 else f"{2**tick}" for tick in ticks]
    bar.set_ticks(ticks, labels=[f"≤ {names[0]}", *names[1:-1], f"≥ {names[-1]}"])
    bar.outline.set_visible(False)
    place.text(-0.05, 0.45, "dead", transform=place.transAxes, color="white", fontsize=11, ha="center", va="center")


def _lines(axes: Any, layers: Sequence[Series], edges: np.ndarray, values: np.ndarray) -> None:
    """Of each layer, values [n, L] at the end of what they tell of; means of nearby ones, where they are many."""
    x, y = edges[1:], values
    if len(x) > POINTS:
        y = by_column(edges, values, POINTS)
        x = (np.arange(POINTS) + 0.5) * edges[-1] / POINTS
    lone = len(x) == 1  # would not be seen as a line, and is at the edge
    for layer, column in zip(layers, y.T, strict=True):
        line = layer.line | {"linewidth": 1.2}
        axes.plot(x, column, marker=layer.marker if lone else None, clip_on=not lone, **line)
