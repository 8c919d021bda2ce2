"""Where a run's figures go: the one interface of file, screens and trackers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


class Sink(AbstractContextManager["Sink"]):
    """A place that a run's figures go to. Opened by `with`; each says only what it has a use for."""

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def step(self, record: dict[str, Any]) -> None:
        """A finished step, keys as in metrics.jsonl."""

    def validation(self, step: int, result: dict[str, Any]) -> None:
        """An evaluation after `step` steps: loss, perplexity, tokens, by_position."""

    def experts(self, step: int, layers: dict[int, dict[str, Any]]) -> None:
        """What the expert layers did up to `step`: by layer, load [E] and its dropped, entropy, dead, balance, z."""

    def say(self, text: str) -> None:
        """A sentence for whoever watches."""
