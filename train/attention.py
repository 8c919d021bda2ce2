"""Attention: one entry point, and who does the work.

    what a token sees                          on CPU                                     on CUDA
    all before it                              SDPA, causal                               SDPA, causal (flash)
    all before it in its local context         SDPA, causal, contexts folded into rows    the same
    all before it in its document              SDPA, causal, a document at a time         FlexAttention
    memory: earlier contexts too (FoT)         SDPA over memory and local, a context      FlexAttention
                                               at a time

FlexAttention works in blocks of 128 tokens and has no backward on CPU; where it cannot, the first column stands in. Both
follow one predicate (`Sight.sees`) over a micro-batch laid end to end: N = B T tokens, cut into contexts of L (T
itself without FoT). Shapes: B examples, T tokens, H heads, G key-value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from splice.errors import SpliceError

from .fot import FoT, visible_contexts

BLOCK = 128  # FlexAttention's


@dataclass(frozen=True)
class Sight:
    """What the tokens of a micro-batch see; made by `look`.

    context: L, tokens. visible: int64 [N / L], contexts a memory layer sees from each, None without FoT. documents: int64
    [N], numbers that rise along an example and that no two examples share, None where attention crosses documents.
    pieces: the stretches of one document in one context, where SDPA works on them one by one. masks: FlexAttention's
    block masks where that works, of memory layers (True) and of the others (False).
    """

    context: int
    visible: Tensor | None = None
    documents: Tensor | None = None
    pieces: tuple[tuple[int, int], ...] = ()
    masks: dict[bool, Any] = field(default_factory=dict)

    def sees(self, memory: bool) -> Callable[[Tensor, Tensor], Tensor]:
        """(query i, key j) -> whether i sees j. In memory layers there are 2 N keys: rotated, then those at position 0."""
        context, visible, documents = self.context, self.visible, self.documents

        def local(i: Tensor, j: Tensor) -> Tensor:
            seen = (i // context == j // context) & (j <= i)
            return seen if documents is None else seen & (documents[i] == documents[j])

        if not memory:
            return local
        assert visible is not None
        n = visible.numel() * context

        def with_memory(i: Tensor, j: Tensor) -> Tensor:
            raw = j >= n
            key = torch.where(raw, j - n, j)
            back = i // context - key // context
            earlier = raw & (back > 0) & (back < visible[i // context])
            if documents is not None:
                earlier = earlier & (documents[i] == documents[key])
            return earlier | (~raw & local(i, key))

        return with_memory


def look(examples: int, length: int, fot: FoT | None, documents: Tensor | None, device: torch.device) -> Sight:
    """What `examples` of `length` tokens see.

    documents: int [B, T], the number of each token's document, 0 .. T - 1, rising along T; None lets attention cross
    documents. Raises SpliceError for a length that is no multiple of FoT's local context.
    """
    context = fot.local_context if fot else length
    if length % context:
        raise SpliceError(
            f"{length} tokens are no multiple of the local context of {context}; give whole contexts, or a cache"
        )
    n = examples * length
    visible = None
    if fot:
        visible = visible_contexts(n // context, fot.cross_batch_range, length // context).to(device, non_blocking=True)
    flat = None
    if documents is not None:
        apart = length * torch.arange(examples, device=device)[:, None]
        flat = (documents.to(device).long() + apart).flatten()
    sight = Sight(context, visible, flat)
    if device.type == "cuda" and context % BLOCK == 0 and (fot or flat is not None):
        if flat is not None:
            sight.masks[False] = block_mask(sight, n, memory=False)
        if fot:
            sight.masks[True] = block_mask(sight, n, memory=True)
    elif flat is not None:
        places = torch.arange(n, device=device)
        first = (places % context == 0) | (flat != flat.roll(1))
        edges = [*first.nonzero().flatten().tolist(), n]
        return Sight(context, visible, flat, tuple(pairwise(edges)))
    return sight


def attention(q: Tensor, k: Tensor, v: Tensor, sight: Sight, memory_k: Tensor | None = None) -> Tensor:
    """Softmax attention, [B, H, T, D], of q [B, H, T, D] over k and v [B, G, T, D], scaled by 1 / sqrt D.

    memory_k: in FoT's memory layers, the same keys rotated as position 0 ([B, G, T, D]); they are what later
    contexts see of this one, under the one softmax (section 2.1 of the FoT paper).
    """
    memory = memory_k is not None
    if memory in sight.masks:
        return _flex(q, k, v, sight, memory_k)
    if memory_k is not None:
        return _by_context(q, k, v, sight, memory_k)
    if sight.documents is not None:
        return _by_piece(q, k, v, sight)
    b, _, t, d = q.shape
    if sight.context == t:
        return _sdpa(q, k, v, is_causal=True)
    fold = [
        x.view(b, x.shape[1], t // sight.context, sight.context, d).transpose(1, 2).flatten(0, 1) for x in (q, k, v)
    ]
    out = _sdpa(*fold, is_causal=True)  # [B T/L, H, L, D]
    return out.unflatten(0, (b, -1)).transpose(1, 2).flatten(2, 3)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    if q.is_cuda and q.dtype == torch.float32 and q.shape[1] != k.shape[1]:
        # no kernel but the one that writes out every score takes float32 and grouped heads
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **how)


def _end_to_end(x: Tensor) -> Tensor:
    """[B, H, T, D] -> [1, H, B T, D]; no copy where B is 1."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def _apart(out: Tensor, examples: int) -> Tensor:
    """[1, H, B T, D] -> [B, H, T, D]."""
    return out[0].unflatten(1, (examples, -1)).transpose(0, 1)


@torch.compiler.disable  # its loop follows the data
def _by_piece(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    flat = [_end_to_end(x) for x in (q, k, v)]
    out = [_sdpa(*(x[:, :, a:b] for x in flat), is_causal=True) for a, b in sight.pieces]
    return _apart(torch.cat(out, dim=2), len(q))


@torch.compiler.disable
def _by_context(q: Tensor, k: Tensor, v: Tensor, sight: Sight, memory_k: Tensor) -> Tensor:
    assert sight.visible is not None
    size = sight.context
    qs, ks, vs, raw = (_end_to_end(x) for x in (q, k, v, memory_k))
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    outs = []
    for row, contexts in enumerate(sight.visible.tolist()):
        first, start, end = (row - contexts + 1) * size, row * size, (row + 1) * size
        mask = F.pad(causal, (start - first, 0), value=True)  # memory in full, itself up to the diagonal
        if sight.documents is not None:
            mask = mask & (sight.documents[start:end, None] == sight.documents[None, first:end])
        keys = torch.cat((raw[:, :, first:start], ks[:, :, start:end]), dim=2)
        outs.append(_sdpa(qs[:, :, start:end], keys, vs[:, :, first:end], attn_mask=mask))
    return _apart(torch.cat(outs, dim=2), len(q))


def _flex(q: Tensor, k: Tensor, v: Tensor, sight: Sight, memory_k: Tensor | None) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    memory = memory_k is not None
    qs, ks, vs = (_end_to_end(x) for x in (q, k, v))
    if memory_k is not None:
        ks, vs = torch.cat((ks, _end_to_end(memory_k)), dim=2), torch.cat((vs, vs), dim=2)
    run = flex_attention if torch.compiler.is_compiling() else _compiled(flex_attention)
    return _apart(run(qs, ks, vs, block_mask=sight.masks[memory], enable_gqa=q.shape[1] != k.shape[1]), len(q))


_compiled_once: dict[Callable[..., Any], Callable[..., Any]] = {}


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention uncompiled would write out every score."""
    if function not in _compiled_once:
        _compiled_once[function] = torch.compile(function)
    return _compiled_once[function]


def block_mask(sight: Sight, n: int, memory: bool) -> Any:
    """FlexAttention's mask of `n` tokens, its blocks found from the geometry instead of from all n^2 pairs.

    A block of queries lies in one context, and document numbers rise, so the first and last document of a block say
    which blocks of keys it sees in part and which as a whole.
    """
    from torch.nn.attention.flex_attention import BlockMask

    device = sight.documents.device if sight.documents is not None else sight.visible.device  # type: ignore[union-attr]
    block = torch.arange(n // BLOCK, device=device)
    context = block * BLOCK // sight.context
    q, k = block[:, None], block[None, :]
    back = context[:, None] - context[None, :]
    partly, wholly = (back == 0) & (k <= q), (back == 0) & (k < q)
    if memory:
        assert sight.visible is not None
        earlier = (back > 0) & (back < sight.visible[context][:, None])
        partly, wholly = torch.cat((partly, earlier), 1), torch.cat((wholly, earlier), 1)
    if sight.documents is not None:
        first, last = sight.documents.view(-1, BLOCK)[:, 0], sight.documents.view(-1, BLOCK)[:, -1]
        overlap = (first[:, None] <= last[None, :]) & (first[None, :] <= last[:, None])
        alone = first == last
        same = alone[:, None] & alone[None, :] & (first[:, None] == first[None, :])
        if memory:
            overlap, same = overlap.repeat(1, 2), same.repeat(1, 2)
        partly, wholly = partly & overlap, wholly & same
    partly &= ~wholly
    sees = sight.sees(memory)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return sees(i, j)

    return BlockMask.from_kv_blocks(
        *_listed(partly), *_listed(wholly), BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(n, n * (1 + memory))
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """bool [Q, K] -> how many blocks of keys each block of queries sees, [1, 1, Q], and which, first ones first, [1, 1, Q, K]."""
    order = torch.argsort(blocks.int(), dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]
