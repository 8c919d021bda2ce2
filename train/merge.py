"""Attention over keys in parts: each part by itself with its log-sum-exp, and the parts merged.

softmax over the union of parts is the mean of the parts' outputs, weighted by exp(lse): what FlashAttention does between
blocks (Dao et al. 2022, arXiv:2205.14135, section 3.1), here between what a cache holds and what is read at the moment. So no mask over the
cache is ever needed, and many queries share one copy of it.

Shapes: B rows, T queries, S keys, H heads, G key-value heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_SCORES = 2**27  # 512 MiB in float32
Part = tuple[
    Tensor, Tensor
]  # what a part gives: out [B, H, T, D], and log-sum-exp of its scores, float32 (float64 for such) [B, H, T]


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, mask: Tensor | None = None, scale: float | None = None
) -> Part:
    """Attention of q [B, H, T, D] over k and v [B, G, S, D].

    causal: query i sees keys up to i (S is T); mask: bool [B, T, S], what is seen, at least one key of each query; neither: all.
    scale: of the scores, by default 1 / sqrt D.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    b, h, t, _ = q.shape
    share = h // k.shape[1]
    if share > 1 and causal:
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    elif share > 1:  # the heads of a group as more queries of it, so that its keys are read once
        q = q.reshape(b, k.shape[1], share * t, -1)
        mask = None if mask is None else mask.repeat(1, share, 1)
    out, lse = _plain(q, k, v, mask, scale) if mask is not None else _kernel(q, k, v, causal, scale)
    return out.reshape(b, h, t, -1), lse.reshape(b, h, t)


def merge(parts: Iterable[Part]) -> Tensor:
    """Attention over the union of parts with disjoint keys: [B, H, T, D]."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0][0]
    weights = torch.stack([lse for _, lse in parts]).softmax(0)  # [parts, B, H, T]
    out = sum(weight[..., None] * out for weight, (out, _) in zip(weights, parts, strict=True))
    return out.to(parts[0][0].dtype)  # type: ignore[union-attr]


def _kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Part:
    """The fused kernel of the device. Only aten's names for them give the log-sum-exp."""
    aten = torch.ops.aten
    size = v.shape[-1]
    if q.shape[-1] != size:
        mask = torch.ones(1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril() if causal else None
        return _plain(q, k, v, mask, scale)
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    if (
        size % 8
    ):  # the kernels load eight numbers at a time; zeros change neither scores nor what is taken of the values
        q, k, v = (F.pad(x, (0, -size % 8)) for x in (q, k, v))
    if q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256:
        out, lse = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]
    else:
        out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    return out[..., :size], lse[..., : q.shape[2]]  # a kernel may pad its rows to whole tiles


def _plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Part:
    """Written out, for what the kernels do not take; no more than MOST_SCORES at a time."""
    step = max(1, MOST_SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    if q.shape[2] > step:
        pieces = range(0, q.shape[2], step)
        done = [
            _plain(q[:, :, i : i + step], k, v, None if mask is None else mask[:, i : i + step], scale) for i in pieces
        ]
        return torch.cat([out for out, _ in done], 2), torch.cat([lse for _, lse in done], 2)
    if q.dtype in (torch.float16, torch.bfloat16):  # the kernels do not round scores either
        q, k = q.float(), k.float()
    scores = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -math.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse
