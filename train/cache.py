"""What a model has read, kept for what follows: keys and values, and FoT's memory.

Without FoT: one growing list of keys and values a layer. With FoT the model reads in local contexts: what is in the
current one keeps ordinary positions; when it ends (`close`), memory layers keep its keys as of position 0 and its values,
the other layers nothing (section 2.2 of the FoT paper; LongLLaMA reads prompts so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from splice.errors import SpliceError

from .merge import attend, merge

if TYPE_CHECKING:
    from .model import Llama


class Cache:
    """length: tokens read in all; local: tokens in the current context, which is where the next token's position starts."""

    def __init__(self) -> None:
        self.length = 0
        self.local = 0
        self._keys: dict[
            int, tuple[Tensor, Tensor, Tensor | None]
        ] = {}  # layer -> k, v, memory k of the current context
        self._memory: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, memory_k: Tensor | None, scale: float | None = None
    ) -> Tensor:
        """Attention of t new tokens, q [B, H, t, D], over all that the layer has kept and over themselves."""
        parts = [attend(q, *seen, scale=scale) for seen in self.seen(layer)]
        kept = self._keys.get(layer)
        self._keys[layer] = (k, v, memory_k) if kept is None else _joined(kept, (k, v, memory_k))
        return merge([*parts, attend(q, k, v, causal=True, scale=scale)])

    def seen(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values, [B, G, S, D] each, that every token to come sees: the memory's, the current context's."""
        kept = [self._keys[layer][:2]] if layer in self._keys else []
        return ([self._memory[layer]] if layer in self._memory else []) + kept

    def positions(self, tokens: int, device: torch.device) -> Tensor:
        """Those of the next tokens, int64 [tokens]."""
        return torch.arange(self.local, self.local + tokens, device=device)

    def advance(self, tokens: int) -> None:
        self.length += tokens
        self.local += tokens

    def close(self) -> None:
        """End the current context: its keys and values go to the memory, positions start again at 0."""
        for layer, (_, v, memory_k) in self._keys.items():
            if memory_k is not None:
                kept = self._memory.get(layer)
                self._memory[layer] = (memory_k, v) if kept is None else _joined(kept, (memory_k, v))
        self._keys.clear()
        self.local = 0

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens. In the memory these must be whole local contexts."""
        kept = length - (self.length - self.local)  # of the current context
        if kept > 0:
            self._keys = {
                layer: tuple(None if x is None else x[:, :, :kept] for x in kept_keys)  # type: ignore[misc]
                for layer, kept_keys in self._keys.items()
            }
            self.length, self.local = length, kept
            return
        self._keys.clear()
        memory = self._memory if length else {}  # attention over no keys at all is not defined
        self._memory = {layer: (k[:, :, :length], v[:, :, :length]) for layer, (k, v) in memory.items()}
        self.length, self.local = length, 0


def _joined(kept: tuple, more: tuple) -> tuple:
    return tuple(None if b is None else torch.cat((a, b), 2) for a, b in zip(kept, more, strict=True))


@torch.no_grad()
def read(model: Llama, ids: Tensor, cache: Cache, chunk: int = 2048) -> Tensor:
    """Read ids [B, t] into the cache; gives the logits [B, t, V] of all of them.

    Without FoT in chunks of `chunk` tokens. With FoT in local contexts, counted from where the cache is, so that reading
    in pieces is the same as reading at once.
    """
    fot = model.config.fot
    logits = []
    while ids.shape[1]:
        if fot and cache.local == fot.local_context:
            cache.close()
        size = min(ids.shape[1], fot.local_context - cache.local if fot else chunk)
        logits.append(model(ids[:, :size], cache=cache))
        ids = ids[:, size:]
    return torch.cat(logits, 1)


@torch.no_grad()
def read_prompt(model: Llama, ids: Tensor, cache: Cache) -> Tensor:
    """Read a prompt [B, t] as LongLLaMA does; gives the logits [B, V] of its last token.

    With FoT all but the last `last_context` tokens end in the memory, so that what is generated next has a whole
    local context before it however long the prompt is.
    """
    fot = model.config.fot
    if not ids.shape[1]:
        raise SpliceError("an empty prompt: a model needs at least one token to go on from")
    last = min(fot.last_context, fot.local_context) if fot else ids.shape[1]
    if ids.shape[1] > last:
        read(model, ids[:, :-last], cache)
        cache.close()
    return read(model, ids[:, -last:], cache)[:, -1]


@torch.no_grad()
def generate(model: Llama, ids: Tensor, tokens: int) -> Tensor:
    """Greedy continuation of prompts ids [B, t] of one length: int64 [B, tokens]."""
    cache = Cache()
    token = read_prompt(model, ids, cache).argmax(-1, keepdim=True)
    out = [token]
    for _ in range(tokens - 1):
        token = read(model, token, cache)[:, -1].argmax(-1, keepdim=True)
        out.append(token)
    return torch.cat(out, 1)[:, :tokens]
