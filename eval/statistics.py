"""Intervals for means of clustered samples: 95%, seeded, the same to the bit whatever the order of the samples or the BLAS.

A cluster is what was drawn at random as a whole (a demonstration set, a dictionary, a paper, a document). Of each one only
the sum of its values and the number of its samples matter: sums and counts, [S, K], for K figures at once. What is estimated
is the ratio of the totals, sum(sums) / sum(counts): the mean over samples, in which a larger cluster weighs more. A figure's
clusters are those that have a sample of it; with fewer than two there is no interval, which is nan.

    bootstrap  percentile, over clusters: what the paper reports; too narrow for few clusters (COVERED)
    student    the paired t interval where sums are of differences; holds for few clusters too
    two_way    where all clusters ask the same items, and other items might have been asked
    wilson     of a proportion, where a cluster is one sample
    mcnemar    two models on the queries of one cluster
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from splice.seeded import key, mix

DRAWS = 10_000  # B, of the bootstraps
ENOUGH = 20  # clusters, below which a percentile bootstrap is warned of
COVERED = {
    5: 83,
    10: 91,
    20: 93,
    50: 94,
}  # clusters -> percent of 95% percentile bootstraps that held the truth, simulated
TAILS = (0.025, 0.975)
Z = 1.959963984540054  # of the normal distribution, at TAILS
BLOCK = 1 << 20  # draws that are held at a time


def bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int, draws: int = DRAWS) -> np.ndarray:
    """Percentile intervals over clusters, float64 [K, 2]; sums, counts: [S, K].

    Clusters are drawn with replacement, with all of their samples, and each draw gives the ratio of its totals
    (Efron and Tibshirani 1993, ch. 13). The K figures of the same clusters share their draws.
    """
    found = np.full((sums.shape[1], 2), np.nan)
    patterns, pattern = np.unique(counts > 0, axis=1, return_inverse=True)
    for i, present in enumerate(patterns.T):
        if present.sum() < 2:
            continue
        columns = np.flatnonzero(pattern == i)
        block = np.ix_(present, columns)
        y, n = _summable(sums[block], int(present.sum())), counts[block].astype(np.float64)
        weights = _weights(len(y), draws, seed, "clusters")
        means = np.concatenate([(w @ y) / (w @ n) for w in weights])  # [draws, columns]
        found[columns] = np.quantile(means, TAILS, axis=0).T
    return found


def student(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """t intervals over clusters, S - 1 degrees of freedom, float64 [K, 2]; sums, counts: [S, K].

    Of clusters of one size it is the t interval of their means. Of unequal ones it is that of the linearised ratio: the
    residuals are sum - ratio x count (Cochran 1977, ch. 6). It is symmetric, so it may reach past what a proportion can be.
    """
    from scipy.stats import t

    clusters = (counts > 0).sum(0)
    total = counts.sum(0)
    ratio = sums.sum(0) / total
    residuals = sums - ratio * counts  # [S, K]; 0 where a cluster has none
    freedom = np.where(clusters > 1, clusters - 1, np.nan)
    error = np.sqrt(clusters / freedom * (residuals**2).sum(0)) / total
    half = t.ppf(TAILS[1], freedom) * error
    return np.stack([ratio - half, ratio + half], axis=1)


def two_way(sums: np.ndarray, counts: np.ndarray, seed: int, draws: int = DRAWS) -> tuple[float, float]:
    """Percentile interval over clusters and items, drawn apart; sums, counts: [S, I], a cell for each item in each cluster.

    The pigeonhole bootstrap: a cell weighs as often as its cluster was drawn times as often as its item was (Owen 2007).
    It is conservative: it counts a cell's own noise three times. Every cell has a sample, S and I are 2 or more.
    """
    y, n = _summable(sums, sums.size), counts.astype(np.float64)
    clusters = _weights(y.shape[0], draws, seed, "clusters", most=max(y.shape))
    items = _weights(y.shape[1], draws, seed, "items", most=max(y.shape))
    means = [((w @ y) * v).sum(1) / ((w @ n) * v).sum(1) for w, v in zip(clusters, items, strict=True)]
    low, high = np.quantile(np.concatenate(means), TAILS)
    return float(low), float(high)


def wilson(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Wilson's score intervals for proportions, float64 [K, 2]; sums, counts: [S, K], of figures that `is_proportion`."""
    n = counts.sum(0).astype(np.float64)
    p = sums.sum(0) / n
    middle = (p + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    found = np.stack([middle - half, middle + half], axis=1)
    return np.where((n > 1)[:, None], np.clip(found, 0, 1), np.nan)


def is_proportion(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which figures are shares of independent yes-or-no samples, one a cluster: bool [K]."""
    return ((counts <= 1) & ((sums == 0) | (sums == 1))).all(0)


def mcnemar(a: np.ndarray, b: np.ndarray) -> tuple[int, int, float]:
    """How many queries A alone has right, how many B alone, and the exact two-sided p; a, b: 0 or 1, of the same queries.

    Where neither model is better, each of the queries they differ on is a fair coin (McNemar 1947).
    """
    from scipy.stats import binomtest

    only_a, only_b = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    if only_a + only_b == 0:
        return 0, 0, 1.0
    return only_a, only_b, float(binomtest(only_a, only_a + only_b).pvalue)


def _weights(n: int, draws: int, seed: int, stream: str, most: int | None = None) -> Iterator[np.ndarray]:
    """How often each of n is drawn, float64 [rows, n] a block; most: the widest array that is made of a row."""
    own = key(seed, "bootstrap", stream, n)
    rows = max(1, BLOCK // (most or n))
    for begin in range(0, draws, rows):
        size = min(rows, draws - begin)
        words = mix(np.arange(begin * n, (begin + size) * n, dtype=np.uint64) ^ own)
        drawn = ((words >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32)  # below n, uneven by at most n in 2**32
        cells = drawn.astype(np.int64).reshape(size, n) + n * np.arange(size)[:, None]
        yield np.bincount(cells.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _summable(values: np.ndarray, weight: int) -> np.ndarray:
    """The values, float64, rounded to so many bits that adding up to `weight` of them is exact.

    So no order of additions matters, and with it neither threads nor the BLAS; what is lost is below 2**-52 of the total.
    """
    values = np.asarray(values, np.float64)
    _, power = np.frexp(weight * np.abs(values).max())
    unit = np.ldexp(1.0, int(power) - 52)
    return np.round(values / unit) * unit
