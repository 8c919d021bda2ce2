"""Rows of a dataset as micro-batches on the device: targets, documents, this rank's share, read ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from splice.store import Batch, Rows

from .loss import IGNORED
from .parallel import World

AHEAD = 2  # steps read ahead of the one that is computed


@dataclass(frozen=True)
class MicroBatch:
    """m rows; with context parallelism ids and targets are this rank's T / P tokens of each.

    rows: int64 [m], which rows of the dataset. ids, targets: int64 [m, T / P]; a target is the next token of the row, or
    IGNORED. documents: int64 [m, T], rising along the row, where attention stays within documents, else None.
    """

    rows: np.ndarray
    ids: Tensor
    targets: Tensor
    documents: Tensor | None

    def to(self, device: torch.device) -> MicroBatch:
        moved = (
            None if x is None else x.to(device, non_blocking=True) for x in (self.ids, self.targets, self.documents)
        )
        return MicroBatch(self.rows, *moved)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Step:
    """What one rank computes in one step. predicted: targets of its micro-batches that are not IGNORED."""

    epoch: int
    micro: list[MicroBatch]
    predicted: int


@dataclass(frozen=True)
class Policy:
    """What of a row counts. document_mask: attention within documents. skip_starts: no loss on a document's first token."""

    document_mask: bool = False
    skip_starts: bool = False


def prepare(batch: Batch, micro: int, policy: Policy, world: World) -> Step:
    """A batch of rows as micro-batches of `micro` rows.

    Targets are shifted within the whole row, before FoT or context parallelism cut it: the last token has none, padding
    and what predicts it have none. With a document mask the first token of a document cannot be predicted from
    anything it sees but the end of another one, so its loss is left out too.
    """
    n, length = batch.input_ids.shape
    ids = batch.input_ids.astype(np.int64)
    targets = np.full((n, length), IGNORED, np.int64)
    targets[:, :-1] = ids[:, 1:]
    documents = np.zeros((n, length), np.int64)
    for row in range(n):
        end = length - int(batch.padding[row])
        targets[row, max(end - 1, 0) :] = IGNORED
        starts = batch.doc_offsets[row][1:]  # the first opens the row
        documents[row, starts] = 1
        if end < length:
            documents[row, end] = 1  # padding is a document of its own
        if policy.skip_starts or policy.document_mask:
            targets[row, starts - 1] = IGNORED
    documents = documents.cumsum(1)
    share = length // world.context_size
    mine = slice(world.context_rank * share, (world.context_rank + 1) * share)
    parts = []
    for a in range(0, n, micro):
        some = slice(a, a + micro)
        parts.append(
            MicroBatch(
                batch.indices[some],
                torch.from_numpy(ids[some, mine].copy()),
                torch.from_numpy(targets[some, mine].copy()),
                torch.from_numpy(documents[some]) if policy.document_mask else None,
            )
        )
    return Step(batch.epoch, parts, int((targets[:, mine] != IGNORED).sum()))


def feed(
    rows: Rows, seed: int, first: int, last: int, size: int, micro: int, policy: Policy, world: World
) -> Iterator[Step]:
    """Steps `first` .. `last` - 1 of a run, read ahead. size: rows of a step over all ranks.

    The order depends on (seed, step) alone, and a micro-batch holds the same rows whatever the number of ranks.
    """
    ready: queue.Queue[Step | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def give(item: Step | BaseException | None) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                break

    def read() -> None:
        try:
            batches = rows.iterate(seed, first, world.data_rank, world.data_size, size)
            for _ in range(first, last):
                if stop.is_set():
                    return
                step = prepare(next(batches), micro, policy, world)
                if world.device.type == "cuda":
                    step = Step(step.epoch, [_pinned(m) for m in step.micro], step.predicted)
                give(step)
            give(None)
        except BaseException as error:  # raised again where the steps are used
            give(error)

    reader = threading.Thread(target=read, name="feed", daemon=True)
    reader.start()
    try:
        while (step := ready.get()) is not None:
            if isinstance(step, BaseException):
                raise step
            yield step
    finally:
        stop.set()
        reader.join()  # Python may not end while it is within a library


def _pinned(micro: MicroBatch) -> MicroBatch:
    """In memory that the GPU can copy from while it computes."""
    pinned = (None if x is None else x.pin_memory() for x in (micro.ids, micro.targets, micro.documents))
    return MicroBatch(micro.rows, *pinned)  # type: ignore[arg-type]
