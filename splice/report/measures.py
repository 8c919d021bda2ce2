"""Figures of one window that differ between related documents and any documents. Plain functions over arrays."""

from __future__ import annotations

import numpy as np

from .ngrams import covered, near_duplicates, ngrams
from .windows import Window

SHORT, LONG = 5, 50  # tokens of an n-gram that related documents share, and of one that only copies share
ZSTD_LEVEL = 3
ZSTD_SIZE = 1 << 20  # bytes of the inputs that the parameters are for
ZSTD_WINDOW_LOG = 24  # how far back it looks, as a power of two


def counts(window: Window) -> np.ndarray:
    """How often each distinct token occurs, int64 [V], the most frequent first."""
    found = np.bincount(window.tokens)
    return np.sort(found[found > 0])[::-1]


def mean_log_count(counts: np.ndarray) -> float:
    """All that the Zipf exponent's fit needs of the counts (zipf.fit_exponent)."""
    return float(np.log(counts).mean())


def rank_slope(counts: np.ndarray) -> float:
    """Minus the least-squares slope of log count over log rank; 0 with fewer than two distinct tokens."""
    if len(counts) < 2:
        return 0.0
    x, y = np.log(np.arange(1, len(counts) + 1)), np.log(counts)
    x = x - x.mean()
    return float(-(x @ (y - y.mean())) / (x @ x))


def types_per_token(counts: np.ndarray) -> float:
    """Distinct tokens over tokens."""
    return len(counts) / int(counts.sum())


def related_and_copied(window: Window) -> tuple[float, float, np.ndarray]:
    """Shares of the window's tokens: in 5-grams that another piece holds too but in no such 50-gram, and in such 50-grams.

    With them bool [tested]: which pieces are near-duplicates by their 5-grams (ngrams.near_duplicates).
    """
    short = ngrams(window, SHORT)
    phrases = covered(short)
    copied = float(covered(ngrams(window, LONG, within=phrases)).mean())
    return float(phrases.mean()) - copied, copied, near_duplicates(window, short)


def compression_gain(window: Window) -> float:
    """1 - the size of the window compressed / the sum of its pieces compressed apart, by zstd at level 3.

    Token ids are little endian, two bytes each where all of the window's fit, else four. zstd chooses its parameters by the
    input's size, with jumps between classes; here they are the same for any size, so that sizes compare.
    """
    import zstandard

    dtype = "<u2" if window.tokens.max() < 2**16 else "<u4"
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL, source_size=ZSTD_SIZE, window_log=ZSTD_WINDOW_LOG
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    together = len(compressor.compress(window.tokens.astype(dtype).tobytes()))
    return 1 - together / sum(len(compressor.compress(piece.astype(dtype).tobytes())) for piece in window.pieces)
