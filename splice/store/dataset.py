"""PackedDataset: a built dataset as a map of examples, memory-mapped, with an order that any step can resume."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..seeded import permutation
from .manifest import read_manifest
from .shards import Example, read_rows

CACHED_ROW_GROUPS = 4
TRAINING = ("input_ids", "doc_offsets", "padding")  # all a trainer reads: half the time of the whole row group


@dataclass(frozen=True)
class Batch:
    """What one rank sees at one step: b = batch_size / world_size examples.

    indices: int64 [b], the examples; input_ids: int32 [b, L]; doc_offsets: b arrays int32 [n], where each document starts
    (the last ends where the padding begins); padding: int32 [b], tokens of padding at the end.
    """

    step: int
    epoch: int
    indices: np.ndarray
    input_ids: np.ndarray
    doc_offsets: list[np.ndarray]
    padding: np.ndarray


class PackedDataset:
    """Examples 0 .. len - 1 of the dataset at `path`, in stored order (which is already shuffled by the build's seed).

    `dataset[i]` is the example with its provenance (an `Example` of numpy arrays). Reads map the shards and keep a few
    row groups; threads may share it, and it can be pickled to worker processes. Raises SpliceError where the dataset is
    unfinished or a shard is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.length: int = self.manifest["settings"]["length"]
        self.shards: list[str] = [shard["file"] for shard in self.manifest["shards"]]
        missing = [name for name in self.shards if not (self.path / "data" / name).is_file()]
        if missing:
            raise SpliceError(
                f"{self.path}: shard data/{missing[0]} is missing ({len(missing)} in all); build it again"
            )
        self._first = np.cumsum([0] + [shard["examples"] for shard in self.manifest["shards"]])
        self._open()

    def _open(self) -> None:
        self._files: dict[int, tuple[Any, np.ndarray]] = {}
        self._groups: OrderedDict[tuple[int, int, tuple[str, ...] | None], Any] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_files", "_groups", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> Example:
        table, row = self._locate(index)
        return read_rows(table, [row])[0]

    def input_ids(self, index: int) -> np.ndarray:
        """int32 [L] of one example, without its provenance."""
        table, row = self._locate(index, TRAINING)
        return table.column("input_ids")[row].values.to_numpy()

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """int64 [len]: the order of examples in an epoch, a permutation drawn by (seed, epoch)."""
        return permutation(len(self), seed, "epoch", epoch)

    def iterate(
        self, seed: int, step: int = 0, rank: int = 0, world_size: int = 1, batch_size: int | None = None
    ) -> Iterator[Batch]:
        """Batches for `rank` from global step `step` on, for ever; epochs follow each other, each in its own order.

        A global batch of `batch_size` examples (default: one a rank) is the same for every world size, so (seed, step)
        is the whole state of a loader, also when training goes on with more or fewer ranks. Examples of an epoch that
        fill no whole batch open the next one. Raises SpliceError, at once, for numbers that do not fit together.
        """
        batch_size = world_size if batch_size is None else batch_size
        if step < 0 or not 0 <= rank < world_size or batch_size < 1 or batch_size % world_size:
            raise SpliceError(
                f"batch_size {batch_size} must be a multiple of world_size {world_size}, rank {rank} below it, "
                f"step {step} not negative"
            )
        if len(self) == 0:
            raise SpliceError(f"{self.path}: holds no example")
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
            rows = [self._locate(int(index), TRAINING) for index in indices]
            ids, offsets, padding = ([table.column(name)[row] for table, row in rows] for name in TRAINING)
            yield Batch(
                step,
                int(places[0] // n),
                indices,
                np.stack([value.values.to_numpy() for value in ids]),
                [value.values.to_numpy() for value in offsets],
                np.array([value.as_py() for value in padding], np.int32),
            )
            step += 1

    def _locate(self, index: int, columns: tuple[str, ...] | None = None) -> tuple[Any, int]:
        """The row group table that holds an example (all columns, or those named), and the example's row there."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"example {index} of a dataset of {n}")
        index %= n
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        row = index - int(self._first[shard])
        with self._lock:
            file, starts = self._file(shard)
            group = int(np.searchsorted(starts, row, side="right")) - 1
            table = self._groups.get((shard, group, columns))
            if table is None:
                table = file.read_row_group(group, columns, use_threads=False)
                self._groups[shard, group, columns] = table
                if len(self._groups) > CACHED_ROW_GROUPS:
                    self._groups.popitem(last=False)
            else:
                self._groups.move_to_end((shard, group, columns))
        return table, row - int(starts[group])

    def _file(self, shard: int) -> tuple[Any, np.ndarray]:
        import pyarrow.parquet as pq

        if shard not in self._files:
            file = pq.ParquetFile(self.path / "data" / self.shards[shard], memory_map=True)
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            self._files[shard] = (file, np.cumsum([0, *sizes])[:-1])
        return self._files[shard]
