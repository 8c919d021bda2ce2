"""PackedDataset: a built dataset as a map of examples, memory-mapped, with an order that any step can resume."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SpliceError
from ..storage import local, location, names
from .manifest import read_manifest
from .rows import Batch, Rows
from .shards import Example, read_rows

CACHED_ROW_GROUPS = 4
TRAINING = ("input_ids", "doc_offsets", "padding")  # all a trainer reads: half the time of the whole row group


class PackedDataset:
    """Examples 0 .. len - 1 of the dataset at `path` (or URL), in stored order (which is already shuffled by the build's seed).

    `dataset[i]` is the example with its provenance (an `Example` of numpy arrays). Reads map the shards and keep a few
    row groups; threads may share it, and it can be pickled to worker processes. Raises SpliceError where the dataset is
    unfinished or a shard is missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = location(path)
        self.manifest = read_manifest(self.path)
        self.length: int = self.manifest["settings"]["length"]
        self.shards: list[str] = [shard["file"] for shard in self.manifest["shards"]]
        there = names(self.path / "data")
        missing = [name for name in self.shards if name not in there]
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

    def training_columns(self, index: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Of one example: its tokens, int32 [L], where each document starts, int32 [n], and the tokens of padding at its end."""
        table, row = self._locate(index, TRAINING)
        ids, offsets, padding = (table.column(name)[row] for name in TRAINING)
        return ids.values.to_numpy(), offsets.values.to_numpy(), int(padding.as_py())

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """int64 [len]: the order of examples in an epoch, a permutation drawn by (seed, epoch)."""
        return Rows(self).order(seed, epoch)

    def iterate(
        self, seed: int, step: int = 0, rank: int = 0, world_size: int = 1, batch_size: int | None = None
    ) -> Iterator[Batch]:
        """Batches of whole examples for `rank` from global step `step` on, for ever: see `Rows.iterate`."""
        return Rows(self).iterate(seed, step, rank, world_size, batch_size)

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
        import pyarrow as pa
        import pyarrow.parquet as pq

        if shard not in self._files:
            path = self.path / "data" / self.shards[shard]
            try:
                file = pq.ParquetFile(local(path), memory_map=True)
            except (pa.ArrowInvalid, OSError) as error:
                raise SpliceError(f"{path}: cannot be read ({error}); build the dataset again") from None
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            self._files[shard] = (file, np.cumsum([0, *sizes])[:-1])
        return self._files[shard]
