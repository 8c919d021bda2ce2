"""The exponent of a zeta (Zipf) distribution, p(n) = n^-a / zeta(a) for n = 1, 2, ..., by maximum likelihood.

zeta and its derivative are sums of their first terms and the Euler-Maclaurin formula for the rest, right to about 14 digits
for any exponent above 1.
"""

from __future__ import annotations

import math

import numpy as np

BOUNDS = (1.01, 10.0)
TERMS = 12  # summed one by one before the formula
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)  # B2, B4, ...
HALVINGS = 50  # of the bounds, down to the precision of a float


def zeta(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """zeta(a) and zeta'(a) as float64 [N] for exponents a > 1, float64 [N]."""
    a = np.asarray(a, np.float64)
    k = np.arange(1, TERMS)
    powers = np.exp(-np.log(k) * a[..., None])
    last, log = np.exp(-math.log(TERMS) * a), math.log(TERMS)
    value = powers.sum(-1) + TERMS * last / (a - 1) + last / 2
    slope = -(powers * np.log(k)).sum(-1) - TERMS * last / (a - 1) * (log + 1 / (a - 1)) - log * last / 2
    rising, logs = a, 1 / a  # a (a+1) ... (a+2j-2), and the derivative of its logarithm
    for j, bernoulli in enumerate(BERNOULLI, 1):
        term = bernoulli / math.factorial(2 * j) * rising * last * TERMS ** (1 - 2 * j)
        value = value + term
        slope = slope + term * (logs - log)
        rising = rising * (a + 2 * j - 1) * (a + 2 * j)
        logs = logs + 1 / (a + 2 * j - 1) + 1 / (a + 2 * j)
    return value, slope


def fit_exponent(mean_log: np.ndarray) -> np.ndarray:
    """The likeliest exponents for samples with these means of log n; float64 [N] to float64 [N], within BOUNDS.

    The likelihood is greatest where -zeta'(a) / zeta(a), which falls with a, equals the mean. A sample of ones only has no
    greatest likelihood and gets the upper bound.
    """
    mean_log = np.asarray(mean_log, np.float64)
    low, high = (np.full(mean_log.shape, bound) for bound in BOUNDS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        value, slope = zeta(middle)
        too_small = -slope / value > mean_log
        low = np.where(too_small, middle, low)
        high = np.where(too_small, high, middle)
    return (low + high) / 2
