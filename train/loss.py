"""Cross-entropy of a language-model head, a chunk of tokens at a time: logits [N, vocab] never exist as a whole.

The gradient of a chunk is taken while its logits are there, in the forward pass, so nothing of size [N, vocab] is
kept for the backward one. Torch 2.13's linear_cross_entropy does the same but is not in 2.11.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a target that no loss is taken of
CHUNK_LOGITS = 2**26  # 256 MiB in float32


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Sum of the negative log-likelihoods, float32 scalar, of targets int64 [N] under hidden [N, D] @ weight [V, D] ^T.

    Targets are ids, or IGNORED for those that are left out; nothing else is checked. The product is made in the inputs' dtype,
    softmax and loss in float32. The gradient of the gradient is not
    defined.
    """
    return _CrossEntropy.apply(hidden, weight, targets)


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The negative log-likelihood of each target, float32 [N]; 0 where the target is IGNORED."""
    size = _chunk(weight)
    parts = zip(hidden.split(size), targets.split(size), strict=True)
    return torch.cat(
        [F.cross_entropy((h @ weight.T).float(), t, ignore_index=IGNORED, reduction="none") for h, t in parts]
    )


def with_gradient_of(loss: Tensor, other: Tensor) -> Tensor:
    """`loss`, whose gradient is that of loss + other."""
    return _WithGradientOf.apply(loss, other)


def fuse() -> None:
    """Compile what lies between the products of a chunk: on a GPU a dozen passes over its logits become three."""
    global _softmax
    if _softmax is _softmax_of_chunk:
        _softmax = torch.compile(_softmax_of_chunk, dynamic=False)


def _softmax_of_chunk(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the losses of logits [n, V], which are used up, and its slope: softmax - one-hot, [n, V] in the logits' dtype."""
    dtype = logits.dtype
    place, counted = targets.clamp(min=0)[:, None], (targets != IGNORED)[:, None]
    logits = logits.float()
    logits = logits.sub_(logits.amax(1, keepdim=True))  # so that no exponential overflows
    likely = logits.gather(1, place)
    mass = logits.exp_().sum(1, keepdim=True)
    loss = torch.where(counted, mass.log() - likely, 0).sum()
    slope = logits.mul_(counted / mass).scatter_add_(1, place, -counted.float())
    return loss, slope.to(dtype)


_softmax = _softmax_of_chunk


def _chunk(weight: Tensor) -> int:
    return max(256, CHUNK_LOGITS // len(weight) // 128 * 128)  # whole tiles of the products


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        size = _chunk(weight)
        for start in range(0, len(hidden), size):
            h, t = hidden[start : start + size], targets[start : start + size]
            loss, slope = _softmax(h @ weight.T, t)
            total += loss
            if d_hidden is not None:
                torch.mm(slope, weight, out=d_hidden[start : start + size])
            if d_weight is not None:
                d_weight += slope.T @ h
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return (
            # in float32: rounded to bfloat16 the scale would be another than the head's
            None if d_hidden is None else (d_hidden.float() * grads[0]).to(d_hidden.dtype),
            None if d_weight is None else (d_weight * grads[0]).to(ctx.weight_dtype),
            None,
        )


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, other: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]
