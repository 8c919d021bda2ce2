"""Rows: a dataset's examples as a trainer reads them, whole or cut, some of them, in an order that any step can resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import SpliceError
from ..seeded import permutation

if TYPE_CHECKING:
    from .dataset import PackedDataset


@dataclass(frozen=True)
class Batch:
    """What one rank sees at one step: b = batch_size / world_size rows of T tokens.

    indices: int64 [b], the rows (the examples, unless they were cut); input_ids: int32 [b, T]; doc_offsets: b arrays int32
    [n], where each document starts, the first at 0 (the last ends where the padding begins); padding: int32 [b], tokens of
    padding at the end.
    """

    step: int
    epoch: int
    indices: np.ndarray
    input_ids: np.ndarray
    doc_offsets: list[np.ndarray]
    padding: np.ndarray


class Rows:
    """The `examples` of a dataset (default: all), each cut into L / length rows of `length` tokens (default: not cut).

    Row i is stretch i % per_example of the example examples[i // per_example]. Raises SpliceError for a length that does
    not divide the dataset's and where there is no row.
    """

    def __init__(self, dataset: PackedDataset, length: int | None = None, examples: range | None = None) -> None:
        self.dataset = dataset
        self.length = dataset.length if length is None else length
        self.examples = range(len(dataset)) if examples is None else examples
        if self.length < 1 or dataset.length % self.length:
            raise SpliceError(
                f"{dataset.path}: its examples of {dataset.length:,} tokens cannot be cut into rows of {self.length:,}; "
                f"take a length that divides {dataset.length:,}, or build it with --length {max(self.length, 16)}"
            )
        self.per_example = dataset.length // self.length
        if not len(self):
            raise SpliceError(f"{dataset.path}: holds no example")

    def __len__(self) -> int:
        return len(self.examples) * self.per_example

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """int64 [len]: the order of rows in an epoch, a permutation drawn by (seed, epoch)."""
        return permutation(len(self), seed, "epoch", epoch)

    def example_of(self, row: int) -> int:
        """The place in the dataset of the example that a row is cut from, as `splice inspect --example` counts."""
        return self.examples[row // self.per_example]

    def read(self, indices: np.ndarray, step: int = 0, epoch: int = 0) -> Batch:
        """The rows of `indices`, int64 [b]."""
        ids, offsets, padding = [], [], []
        for index in indices.tolist():
            tokens, starts, pad = self.dataset.training_columns(self.example_of(index))
            begin = index % self.per_example * self.length
            end = begin + self.length
            inside = starts[(starts > begin) & (starts < end)] - begin
            ids.append(tokens[begin:end])
            offsets.append(np.concatenate((np.zeros(1, np.int32), inside)).astype(np.int32))
            padding.append(min(self.length, max(0, end - (self.dataset.length - pad))))
        return Batch(step, epoch, indices, np.stack(ids), offsets, np.array(padding, np.int32))

    def iterate(
        self, seed: int, step: int = 0, rank: int = 0, world_size: int = 1, batch_size: int | None = None
    ) -> Iterator[Batch]:
        """Batches for `rank` from global step `step` on, for ever; epochs follow each other, each in its own order.

        A global batch of `batch_size` rows (default: one a rank) is the same for every world size, so (seed, step) is the
        whole state of a loader, also when training goes on with more or fewer ranks. Rows of an epoch that fill no
        whole batch open the next one. Raises SpliceError, at once, for numbers that do not fit together.
        """
        batch_size = world_size if batch_size is None else batch_size
        if step < 0 or not 0 <= rank < world_size or batch_size < 1 or batch_size % world_size:
            raise SpliceError(
                f"batch_size {batch_size} must be a multiple of world_size {world_size}, rank {rank} below it, "
                f"step {step} not negative"
            )
        return self._batches(seed, step, rank, batch_size // world_size, batch_size)

    def _batches(self, seed: int, step: int, rank: int, share: int, batch_size: int) -> Iterator[Batch]:
        n = len(self)
        epoch, order = -1, np.zeros(0, np.int64)
        while True:
            places = np.arange(step * batch_size + rank * share, step * batch_size + (rank + 1) * share)
            indices = np.empty(share, np.int64)
            for i, place in enumerate(places.tolist()):
                if place // n != epoch:
                    epoch = place // n
                    order = self.order(seed, epoch)
                indices[i] = order[place % n]
            yield self.read(indices, step, int(places[0] // n))
            step += 1
