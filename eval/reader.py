"""Reads a prefix once and runs many queries against what was kept of it.

Exactness: the logits are those of a full forward pass over prefix and query, to float32's last digits, since attention over
parts is merged exactly (splice.train.merge). Reading is in chunks that begin at multiples of the chunk, whatever was
kept from the prefix before, so that a result does not depend on what was asked earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from splice.errors import SpliceError
from splice.train.cache import Cache
from splice.train.fot import FoT

from .rows import Rows
from .tree import Tree, ancestors, batches

MOST_LOGITS = 2**26  # of one forward pass; 256 MiB in float32
Path = tuple[list[float], list[bool]]  # of one answer: log-likelihood of each token, and whether it is the likeliest


class Net(Protocol):
    """A model that keeps nothing itself: what it has read is in the cache it is handed."""

    vocab_size: int
    device: torch.device
    fot: FoT | None

    def run(self, ids: Tensor, cache: Cache | Rows, at: Tensor) -> Tensor:
        """Feed ids int64 [n]; gives the logits [m, V] at the places `at`, int64 [m]."""

    def losses(self, ids: Tensor, cache: Cache | Rows, targets: Tensor) -> Tensor:
        """Feed ids int64 [n]; gives the negative log-likelihood of targets int64 [n], float32 [n]."""


class Reader(Protocol):
    """What the engine asks of a model; SharedReader reads a prefix once, WholeReader (whole.py) cannot.

    most: tokens of a query and its answer that may follow a shared prefix; None: any.
    """

    most: int | None

    def read(self, ids: Sequence[int], room: int) -> object:
        """Read a prefix; `room`: the tokens that the longest query and its answer will take."""

    def score(self, prefix: object, trees: Sequence[Tree]) -> list[list[Path]]:
        """Of each tree, each answer's tokens."""

    def generate(
        self, prefix: object, suffixes: Sequence[Sequence[int]], tokens: int, ended: Callable[[int, list[int]], bool]
    ) -> list[list[int]]:
        """Greedy continuations, `tokens` long at most. ended(row, its tokens so far) stops a row, its last token included."""

    def losses(self, ids: Sequence[int]) -> np.ndarray:
        """Negative log-likelihood of ids[1:], each after all before it: float32 [T - 1], nats."""


def require_finite(values: Tensor) -> None:
    """Raises SpliceError for logits that are no numbers: whatever is made of them would look like an answer."""
    if not values.isfinite().all():
        raise SpliceError("the model's logits are no finite numbers; try --dtype float32, or another checkpoint")


class SharedReader:
    """chunk: tokens of a prefix read at a time; batch_tokens: tokens of queries in one pass."""

    def __init__(self, net: Net, chunk: int, batch_tokens: int) -> None:
        self._net = net
        self._fot = net.fot
        self._chunk = net.fot.local_context if net.fot else chunk
        self._batch_tokens = batch_tokens
        self.most = net.fot.local_context - net.fot.last_context if net.fot else None
        self._last: tuple[list[int], Cache] = ([], Cache())

    @torch.inference_mode()
    def read(self, ids: Sequence[int], room: int) -> Cache:
        """The cache of a prefix, from what it has in common with the one before it.

        With FoT all but the end of the prefix goes to the memory, as LongLLaMA reads a prompt; the end, `last_context` tokens or what
        leaves room for the queries, stays in the local context. Raises SpliceError where the queries fill that alone.
        """
        ids = list(ids)
        last, cache = self._last
        self._last = ([], Cache())  # the old one goes as soon as it is cropped
        common = next((i for i, (a, b) in enumerate(zip(ids, last, strict=False)) if a != b), min(len(ids), len(last)))
        remembered = len(ids) - self._kept_local(len(ids), room)  # by FoT's memory
        start = min(common, remembered, cache.length - cache.local) if self._fot else common
        start = start // self._chunk * self._chunk
        if start and start < cache.length:
            cache.crop(start)
        elif not start:
            cache = Cache()
        if self._fot:
            self._feed(ids[start:remembered], cache, close=True)
            self._feed(ids[remembered:], cache)
        else:
            self._feed(ids[start:], cache)
        self._last = (ids, cache)
        return cache

    def _kept_local(self, tokens: int, room: int) -> int:
        """Tokens at the end of a prefix that FoT keeps out of the memory."""
        if self._fot is None:
            return 0
        kept = min(self._fot.last_context, self._fot.local_context - room)
        if kept < 1:
            raise SpliceError(
                f"a query and its answer of {room:,} tokens do not fit the model's local context of "
                f"{self._fot.local_context:,}; generate fewer tokens (--answer-tokens), or take a model with a longer one"
            )
        return min(tokens, kept)

    def _feed(self, ids: list[int], cache: Cache, close: bool = False) -> None:
        for start in range(0, len(ids), self._chunk):
            piece = self._tensor(ids[start : start + self._chunk])
            self._net.run(piece, cache, piece.new_zeros(1))
            if close:
                cache.close()

    def _tensor(self, ids: object) -> Tensor:
        return torch.as_tensor(np.asarray(ids, np.int64), device=self._net.device)

    @torch.inference_mode()
    def score(self, prefix: Cache, trees: Sequence[Tree]) -> list[list[Path]]:
        """As Reader's; trees of like size share a forward pass."""
        results: list[list[Path]] = [[] for _ in trees]
        places = [sorted({place for path in tree.paths for place, _ in path}) for tree in trees]
        sizes, predicted = [len(tree.tokens) for tree in trees], [len(p) for p in places]
        for batch in batches(sizes, predicted, self._batch_tokens, MOST_LOGITS // self._net.vocab_size):
            size = sizes[batch[0]]
            some = [trees[row] for row in batch]
            ids, depths = (np.zeros((len(some), size), np.int64) for _ in range(2))
            for row, tree in enumerate(some):
                ids[row, : len(tree.tokens)] = tree.tokens
                depths[row, : len(tree.tokens)] = tree.depths
            rows = Rows(prefix)
            chains = all(tree.chain for tree in some)
            rows.lay(self._tensor(depths), None if chains else self._mask(ancestors(some, size)))
            at = [row * size + place for row, i in enumerate(batch) for place in places[i]]
            logits = self._net.run(self._tensor(ids.ravel()), rows, self._tensor(at)).float()
            best, normaliser = logits.argmax(-1), logits.logsumexp(-1)
            require_finite(normaliser)
            index = {place: number for number, place in enumerate(at)}
            wanted = [
                (index[row * size + place], token)
                for row, tree in enumerate(some)
                for path in tree.paths
                for place, token in path
            ]
            line, token = self._tensor([w[0] for w in wanted]), self._tensor([w[1] for w in wanted])
            likelihoods = iter((logits[line, token] - normaliser[line]).tolist())
            greedy = iter((best[line] == token).tolist())
            for i, tree in zip(batch, some, strict=True):
                for path in tree.paths:
                    results[i].append(([next(likelihoods) for _ in path], [next(greedy) for _ in path]))
        return results

    def _mask(self, mask: np.ndarray) -> Tensor:
        return torch.from_numpy(mask).to(self._net.device)

    @torch.inference_mode()
    def generate(
        self, prefix: Cache, suffixes: Sequence[Sequence[int]], tokens: int, ended: Callable[[int, list[int]], bool]
    ) -> list[list[int]]:
        """As Reader's; rows that have ended leave the batch."""
        out: list[list[int]] = [[] for _ in suffixes]
        sizes = [len(suffix) for suffix in suffixes]
        room = self._batch_tokens + tokens * max(
            1, self._batch_tokens // max(sizes)
        )  # as many rows as are scored at once
        for batch in batches(
            [size + tokens for size in sizes], [1] * len(sizes), room, MOST_LOGITS // self._net.vocab_size
        ):
            self._continue(prefix, {row: suffixes[row] for row in batch}, tokens, ended, out)
        return out

    def _continue(
        self,
        prefix: Cache,
        suffixes: dict[int, Sequence[int]],
        tokens: int,
        ended: Callable[[int, list[int]], bool],
        out: list[list[int]],
    ) -> None:
        alive = list(suffixes)
        lengths = self._tensor([len(suffixes[row]) for row in alive])
        width = int(lengths.max())
        ids = np.zeros((len(alive), width), np.int64)
        for line, row in zip(ids, alive, strict=True):
            line[: len(suffixes[row])] = suffixes[row]
        columns = torch.arange(width, device=self._net.device)
        rows = Rows(prefix, keep=True)
        rows.lay(columns.expand(len(alive), -1), None)
        ends = torch.arange(len(alive), device=self._net.device) * width + lengths - 1
        logits = self._net.run(self._tensor(ids.ravel()), rows, ends)
        real = columns < lengths[:, None]  # kept tokens that are no padding, [Q, s]
        for step in range(tokens):
            require_finite(logits)
            chosen = logits.argmax(-1)
            going = []
            for line, (row, token) in enumerate(zip(alive, chosen.tolist(), strict=True)):
                out[row].append(token)
                if not ended(row, out[row]):
                    going.append(line)
            if not going or step == tokens - 1:
                return
            if len(going) < len(alive):
                kept = self._tensor(going)
                rows.select(kept)
                alive, chosen, real, lengths = [alive[i] for i in going], chosen[kept], real[kept], lengths[kept]
            real = torch.cat((real, torch.ones_like(real[:, :1])), 1)
            rows.lay((lengths + step)[:, None], real[:, None])
            logits = self._net.run(chosen, rows, torch.arange(len(alive), device=self._net.device))

    @torch.inference_mode()
    def losses(self, ids: Sequence[int]) -> np.ndarray:
        """As Reader's; in chunks, so that no more than a chunk's logits exist at a time."""
        self._last = ([], Cache())
        cache, losses = Cache(), []
        for start in range(0, len(ids) - 1, self._chunk):
            if self._fot and start:
                cache.close()
            stop = min(start + self._chunk, len(ids) - 1)
            piece, targets = self._tensor(ids[start:stop]), self._tensor(ids[start + 1 : stop + 1])
            losses.append(self._net.losses(piece, cache, targets))
            require_finite(losses[-1])
        return torch.cat(losses).cpu().numpy() if losses else np.zeros(0, np.float32)
