"""The token sample: the documents' own tokens of some examples, one window an example, without separators and padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..seeded import permutation
from ..store import PackedDataset
from ..store.shards import Example

MOST_EXAMPLES = 64
MOST_TOKENS = 4 << 20


@dataclass(frozen=True)
class Window:
    """One window: tokens, int32 [T], of n pieces of documents; piece i is tokens[bounds[i] : bounds[i + 1]]. None is empty."""

    tokens: np.ndarray
    bounds: np.ndarray

    @property
    def pieces(self) -> list[np.ndarray]:
        """The tokens of each piece."""
        return [self.tokens[a:b] for a, b in pairwise(self.bounds.tolist())]

    @property
    def piece_of_token(self) -> np.ndarray:
        """int64 [T]: the piece each token is of."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))


def window_of(pieces: Iterable[np.ndarray]) -> Window:
    """The window of pieces that follow each other; empty ones are left out."""
    pieces = [piece for piece in pieces if len(piece)]
    bounds = np.cumsum([0, *map(len, pieces)])
    return Window(np.concatenate(pieces) if pieces else np.zeros(0, np.int32), bounds)


def sampled(dataset: PackedDataset, seed: int) -> np.ndarray:
    """The examples of the token sample, int64 in stored order: drawn by the seed, bounded in number and in tokens."""
    n = min(MOST_EXAMPLES, max(1, MOST_TOKENS // dataset.length), len(dataset))
    return np.sort(permutation(len(dataset), seed, "report")[:n])


def read_windows(dataset: PackedDataset, examples: np.ndarray) -> list[Window]:
    """A window for each of the examples that holds any document."""
    bos_id = dataset.manifest["join"]["bos_id"]
    windows = (window_of(own_tokens(dataset[int(i)], bos_id)) for i in examples)
    return [window for window in windows if len(window.tokens)]


def own_tokens(example: Example, bos_id: int | None) -> Iterator[np.ndarray]:
    """Each document's own tokens here, int32. A piece that goes on from an earlier example has no BOS before it; text never
    gives a BOS, so the id itself tells."""
    sizes = (example.doc_spans[:, 1] - example.doc_spans[:, 0]).tolist()
    for start, size in zip(example.doc_offsets.tolist(), sizes, strict=True):
        start += bos_id is not None and example.input_ids[start] == bos_id
        yield example.input_ids[start : start + size]
