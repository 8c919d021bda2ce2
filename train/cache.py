"""What a model has read, kept for what follows: keys and values, and FoT's memory.

Without FoT: one growing list of keys and values a layer. With FoT the model reads in local contexts: what is in the
current one keeps ordinary positions; when it ends (`close`), memory layers keep its keys as of position 0 and its values,
the other layers nothing (section 2.2 of the FoT paper; LongLLaMA reads prompts so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from splice.errors import SpliceError

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

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, memory_k: Tensor | None) -> Tensor:
        """Attention of t new tokens, q [B, H, t, D], over all that the layer has kept and over themselves."""
        kept = self._keys.get(layer)
        if kept is not None:
            k, v = torch.cat((kept[0], k), 2), torch.cat((kept[1], v), 2)
            memory_k = None if memory_k is None or kept[2] is None else torch.cat((kept[2], memory_k), 2)
        self._keys[layer] = (k, v, memory_k)
        if layer in self._memory:
            k, v = torch.cat((self._memory[layer][0], k), 2), torch.cat((self._memory[layer][1], v), 2)
        t, s = q.shape[2], k.shape[2]
        how: dict[str, object] = {"is_causal": True}
        if s > t:
            mask = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
            how = {"attn_mask": None if t == 1 else F.pad(mask, (s - t, 0), value=True)}
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **how)  # type: ignore[arg-type]

    def advance(self, tokens: int) -> None:
        self.length += tokens
        self.local += tokens

    def close(self) -> None:
        """End the current context: its keys and values go to the memory, positions start again at 0."""
        for layer, (_, v, memory_k) in self._keys.items():
            if memory_k is None:
                continue
            if layer in self._memory:
                memory_k, v = (torch.cat(pair, 2) for pair in zip(self._memory[layer], (memory_k, v), strict=True))
            self._memory[layer] = (memory_k, v)
        self._keys.clear()
        self.local = 0


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
