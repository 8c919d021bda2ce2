"""From slots back to tokens and assignments: sums in a fixed order, without atomic additions."""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch

if TYPE_CHECKING:
    from ..schedule import Schedule


def combine(y: Tensor, like: Tensor, plan: Schedule, weights: Tensor | None) -> Tensor:
    """[T, D] as `like` is laid out: the sum over a token's slots of w y[slot], y [S, D], in float32.

    weights: float32 [S] of assignments, contiguous, or None for 1. Slots that nobody computes count for nothing.
    """
    out = torch.empty_like(like)
    tokens, width = out.shape
    block = min(triton.next_power_of_2(width), 1024)
    per_token = triton.next_power_of_2(max(len(plan.entries) // max(tokens, 1), 1))
    launch(
        combine_kernel,
        (tokens, triton.cdiv(width, block)),
        max(1, min(block // 256, 4)),
        y=y,
        out=out,
        rows=plan.rows,
        slots=plan.slots,
        entries=plan.entries,
        offsets=plan.offsets,
        weights=y if weights is None else weights,
        count=len(plan.offsets) - 1,
        width=width,
        stride_ot=out.stride(0),
        stride_od=out.stride(1),
        WEIGHTED=weights is not None,
        CHUNK=min(per_token, 8),
        BLOCK=block,
    )
    return out


def to_assignments(sums: Tensor, plan: Schedule) -> Tensor:
    """float32 [S] in the order of assignments: the sum over blocks of sums [blocks, S]; 0 where nobody computes."""
    blocks, slots = sums.shape
    out = sums.new_empty(slots)
    launch(
        assign_kernel,
        (triton.cdiv(slots, 256),),
        sums=sums,
        out=out,
        entries=plan.entries,
        offsets=plan.offsets,
        count=len(plan.offsets) - 1,
        slots=slots,
        blocks=blocks,
        BLOCK=256,
    )
    return out


@triton.jit
def combine_kernel(
    y, out, rows, slots, entries, offsets, weights, count, width, stride_ot, stride_od,
    WEIGHTED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    computed = tl.load(offsets + count)
    end = tl.load(rows + token + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.load(rows + token), end, CHUNK):
        nth = first + tl.arange(0, CHUNK)  # several at once, so that their reads overlap
        slot = tl.load(slots + nth, mask=nth < end, other=computed)
        live = slot < computed
        at = slot.to(tl.int64)[:, None] * width + column[None, :]
        tile = tl.load(y + at, mask=live[:, None] & (column < width)[None, :], other=0.0).to(tl.float32)
        if WEIGHTED:
            w = tl.load(weights + tl.load(entries + slot, mask=live, other=0), mask=live, other=0.0)
            tile *= w[:, None]
        total += tl.sum(tile, 0)
    to = out + token.to(tl.int64) * stride_ot + column * stride_od
    tl.store(to, total.to(out.dtype.element_ty), mask=column < width)


@triton.jit(do_not_specialize=["slots", "blocks"])
def assign_kernel(sums, out, entries, offsets, count, slots, blocks, BLOCK: tl.constexpr):
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = slot < tl.load(offsets + count)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(blocks):
        total += tl.load(sums + tl.cast(i, tl.int64) * slots + slot, mask=live, other=0.0)
    tl.store(out + tl.load(entries + slot, mask=slot < slots, other=0), total, mask=slot < slots)
