"""How related the documents of an example are: every measure on the sample, beside the same measure on the control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..seeded import key, mix
from .control import FEWEST_WINDOWS, deal
from .measures import compression_gain, counts, mean_log_count, rank_slope, related_and_copied, types_per_token
from .windows import Window
from .zipf import fit_exponent

ALARM_SHARE = 0.01  # of the tested documents that may be near-duplicates of another in their example
RESAMPLES = 1000


@dataclass(frozen=True)
class Measure:
    """What a figure is called, the axis it is drawn on, what it means, and where structured packing moves it."""

    key: str
    title: str
    axis: str
    rises: bool
    meaning: str
    percent: bool = False

    def show(self, value: float) -> str:
        """A value as the report writes it."""
        return f"{value:.1%}" if self.percent else f"{value:.3f}"


MEASURES = (
    Measure(
        "zipf", "Burstiness, Zipf exponent", "exponent of the zeta distribution", False,
        "Fitted to how often each token occurs in an example. Where tokens come back again and again the exponent is small, "
        "so related documents lower it.",
    ),
    Measure(
        "slope", "Burstiness, rank slope", "slope of log count over log rank", True,
        "How steeply the counts of an example's tokens fall from the most frequent to the rarest. Repeated tokens make it "
        "steeper, so related documents raise it.",
    ),
    Measure(
        "types", "Types per token", "distinct tokens / tokens", False,
        "How many different tokens an example needs for its length. Documents about one thing share their words, so related "
        "documents lower it.",
    ),
    Measure(
        "related", "Shared phrases", "tokens in shared 5-grams (%)", True,
        "The share of tokens in runs of 5 that another document of the example holds too, without what is copied at length. "
        "Related documents raise it.",
        percent=True,
    ),
    Measure(
        "copied", "Copied text", "tokens in shared 50-grams (%)", True,
        "The share of tokens in runs of 50 that another document of the example holds too: licences, boilerplate, copies. "
        "Related documents raise it a little; where it is high, the model learns to copy.",
        percent=True,
    ),
    Measure(
        "compression", "Compression gain", "bytes saved by compressing together (%)", True,
        "How much smaller an example's tokens become when they are compressed together and not document by document. What one "
        "document says of the next raises it.",
        percent=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean over windows and its 95% interval by the bootstrap (Efron 1979); of a single window, the interval is the mean."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Related:
    """By measure's key, the estimates of dataset and control, over `windows` windows of `tokens` tokens in all.

    near of tested: documents that are near-duplicates of another in their example.
    """

    windows: int
    tokens: int
    dataset: dict[str, Estimate]
    control: dict[str, Estimate]
    near: int
    tested: int

    @property
    def weak(self) -> bool:
        """Whether there are too few windows for the control to keep related documents apart."""
        return self.windows < FEWEST_WINDOWS

    @property
    def near_share(self) -> float:
        """The share of the tested documents that are near-duplicates."""
        return self.near / self.tested if self.tested else 0.0

    @property
    def alarm(self) -> bool:
        """Whether there are so many near-duplicates that examples teach copying."""
        return self.near_share > ALARM_SHARE


def relate(windows: Sequence[Window], seed: int) -> Related | None:
    """All measures of windows and of their control; None of no window."""
    if not windows:
        return None
    dataset, near = _measured(windows)
    control, _ = _measured(deal(windows, seed))
    return Related(
        windows=len(windows),
        tokens=sum(len(window.tokens) for window in windows),
        dataset={name: estimate(values, seed) for name, values in dataset.items()},
        control={name: estimate(values, seed) for name, values in control.items()},
        near=int(near.sum()),
        tested=len(near),
    )


def estimate(values: np.ndarray, seed: int) -> Estimate:
    """The mean of float64 [W], and the middle 95% of the means of as many values drawn from them anew."""
    draws = np.arange(RESAMPLES * len(values), dtype=np.uint64) ^ key(seed, "report", "interval")
    drawn = values[(mix(draws) % np.uint64(len(values))).astype(np.int64)].reshape(RESAMPLES, len(values))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return Estimate(float(np.mean(values)), float(low), float(high))


def _measured(windows: Sequence[Window]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Each measure as float64 [W], and bool [tested]: near-duplicates."""
    rows, logs, near = [], [], []
    for window in windows:
        found = counts(window)
        related, copied, duplicates = related_and_copied(window)
        logs.append(mean_log_count(found))
        near.append(duplicates)
        rows.append((rank_slope(found), types_per_token(found), related, copied, compression_gain(window)))
    columns = np.array(rows).T
    names = [measure.key for measure in MEASURES]
    return dict(zip(names, [fit_exponent(np.array(logs)), *columns], strict=True)), np.concatenate(near)
