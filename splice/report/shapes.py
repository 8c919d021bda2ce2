"""Histograms and trends: the numbers behind the charts, which the page lists as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

BINS = 30
TREND_POINTS = 40
FEWEST = 3  # values that make a point of a trend
BAND = (0.1, 0.9)
CLIP = 0.995  # quantile where a histogram with a long tail ends


@dataclass(frozen=True)
class Histogram:
    """edges: float64 [B + 1]; counts: for each dataset int64 [B]. beyond: values above the last edge, in the last bin."""

    edges: np.ndarray
    counts: list[np.ndarray]
    beyond: int = 0

    def shares(self, i: int) -> np.ndarray:
        """float64 [B]: the shares of a dataset's values, 0 where it has none."""
        return self.counts[i] / max(int(self.counts[i].sum()), 1)


@dataclass(frozen=True)
class Trend:
    """For points at x, float64 [P]: mean, low and high (BAND's quantiles) and the number of values n, of the values there."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def whole_number_histogram(values: Sequence[np.ndarray]) -> Histogram:
    """Bins of equal whole widths around whole numbers, one each where they are few."""
    low, high = min(int(v.min()) for v in values if len(v)), max(int(v.max()) for v in values if len(v))
    width = -(-(high - low + 1) // BINS)
    edges = np.arange(low, high + width + 1, width) - 0.5
    return Histogram(edges, [np.histogram(v, edges)[0] for v in values])


def log_histogram(values: Sequence[np.ndarray]) -> Histogram:
    """Two bins for each doubling, of positive values; zeros are in the first bin."""
    held = [np.maximum(v, 1) for v in values]
    low = min(int(np.floor(2 * np.log2(v.min()))) for v in held if len(v))
    high = max(int(np.floor(2 * np.log2(v.max()))) + 1 for v in held if len(v))
    edges = 2.0 ** (np.arange(low, max(high, low + 1) + 1) / 2)
    return Histogram(edges, [np.histogram(v, edges)[0] for v in held])


def score_histogram(values: Sequence[np.ndarray]) -> Histogram:
    """Equal bins up to a high quantile; the last also holds what is above it."""
    low = min(float(v.min()) for v in values if len(v))
    high = max(float(np.quantile(v, CLIP)) for v in values if len(v))
    high = high if high > low else low + 1
    edges = np.linspace(low, high, BINS + 1)
    beyond = sum(int((v > high).sum()) for v in values)
    return Histogram(edges, [np.histogram(np.minimum(v, high), edges)[0] for v in values], beyond)


def trend(x: np.ndarray, values: np.ndarray, edges: np.ndarray) -> Trend:
    """Mean and band of values in bins of x between edges [P + 1]; bins of fewer than FEWEST values are left out."""
    bins = np.searchsorted(edges, x, side="right") - 1
    order = np.argsort(bins, kind="stable")
    limits = np.searchsorted(bins[order], np.arange(len(edges)))
    sorted_values = values[order]
    rows = []
    for i, (a, b) in enumerate(pairwise(limits.tolist())):
        if b - a >= FEWEST:
            part = sorted_values[a:b]
            rows.append(((edges[i] + edges[i + 1]) / 2, part.mean(), *np.quantile(part, BAND), b - a))
    return Trend(*(np.array(rows, np.float64).reshape(-1, 5).T))


def by_place(place: np.ndarray, score: np.ndarray, last: int) -> Trend:
    """The scores of the documents at each place of an example, up to `last`; places are grouped where they are many."""
    known = ~np.isnan(score)
    width = max(1, -(-last // TREND_POINTS))
    return trend(place[known], score[known], np.arange(1, last + width + 1, width) - 0.5)


def by_progress(progress: np.ndarray, score: np.ndarray) -> Trend:
    """The scores through the walk; progress: float64 [D], 0 to 1, how far it was."""
    known = ~np.isnan(score)
    return trend(100 * progress[known], score[known], np.linspace(0, 100, 21))


def spark(counts: np.ndarray) -> str:
    """A histogram as a line of block characters."""
    if not len(counts) or not counts.max():
        return ""
    heights = np.ceil(8 * counts / counts.max()).astype(int)
    return "".join(" ▁▂▃▄▅▆▇█"[h] for h in heights)
