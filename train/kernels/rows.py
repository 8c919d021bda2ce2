"""Rows of slots from tokens, and tokens from rows of slots: each is the gradient of the other, and neither keeps a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .schedule import Schedule


def gather(x: Tensor, plan: Schedule, count: int) -> Tensor:
    """[count, D]: of each of the first `count` slots, which are all that somebody computes, its token's row of x [T, D]."""
    return _Gather.apply(x, count, *plan)


def combine(rows: Tensor, plan: Schedule, tokens: int) -> Tensor:
    """[T, D] in the dtype of rows [count, D]: the sum over a token's slots in float32, always in the same order."""
    return _Combine.apply(rows, tokens, *plan)


def _sums(rows: Tensor, plan: Schedule, tokens: int) -> Tensor:
    if rows.is_cuda:
        from .gpu.combine import combine as kernel

        return kernel(rows.contiguous(), rows.new_empty(tokens, rows.shape[1]), plan, None)
    exact = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return exact.new_zeros(tokens, rows.shape[1]).index_add_(0, plan.tokens[: len(rows)], exact).to(rows.dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, *plan: Tensor) -> Tensor:
        ctx.save_for_backward(*plan)
        ctx.tokens = len(x)
        return x[Schedule(*plan).tokens[:count]]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _sums(grads[0], Schedule(*ctx.saved_tensors), ctx.tokens), *[None] * 6


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, tokens: int, *plan: Tensor) -> Tensor:
        ctx.save_for_backward(*plan)
        ctx.count = len(rows)
        return _sums(rows, Schedule(*plan), tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0][Schedule(*ctx.saved_tensors).tokens[: ctx.count]], *[None] * 6
