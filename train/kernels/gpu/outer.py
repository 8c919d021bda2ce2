"""Gradients of weights: for each expert, the sum over its slots of the outer product of two rows."""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from .blocks import Blocks, with_blocks
from .launch import launch
from .tiles import place

if TYPE_CHECKING:
    from ..schedule import Schedule

GROUP = 8


def outer(left: Tensor, right: Tensor, out: Tensor, plan: Schedule, gather: str) -> None:
    """out [E, M, N] = sum over e's slots of left[slot]^T right[slot]; zeros for an expert without slots.

    left: [S, M] and right: [S, N], row by row contiguous or not; the one that `gather` names ("left", "right") is
    [T, ...] instead, and read at the slots' tokens.
    """
    height, width, experts = left.shape[1], right.shape[1], len(plan.offsets) - 1

    def start(b: Blocks) -> None:
        launch(
            outer_kernel,
            (triton.cdiv(height, b.m) * triton.cdiv(width, b.n), experts),
            b.warps,
            b.stages,
            left=left,
            right=right,
            out=out,
            tokens=plan.tokens,
            offsets=plan.offsets,
            height=height,
            width=width,
            stride_ls=left.stride(0),
            stride_lm=left.stride(1),
            stride_rs=right.stride(0),
            stride_rn=right.stride(1),
            stride_oe=out.stride(0),
            stride_om=out.stride(1),
            stride_on=out.stride(2),
            GATHER_LEFT=gather == "left",
            GATHER_RIGHT=gather == "right",
            BLOCK_M=b.m,
            BLOCK_N=b.n,
            BLOCK_K=b.k,
            GROUP=GROUP,
            EVEN_M=height % b.m == 0,
            EVEN_N=width % b.n == 0,
        )

    rows = max(len(plan.entries) // experts, 1)
    with_blocks("outer", left, rows, (width, height), False, start)


@triton.jit
def outer_kernel(
    left, right, out, tokens, offsets, height, width,
    stride_ls, stride_lm, stride_rs, stride_rn, stride_oe, stride_om, stride_on,
    GATHER_LEFT: tl.constexpr, GATHER_RIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(1)
    row, column = place(tl.program_id(0), tl.cdiv(height, BLOCK_M), tl.cdiv(width, BLOCK_N), GROUP)
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    slot = tl.load(offsets + expert) + tl.arange(0, BLOCK_K)
    end = tl.load(offsets + expert + 1)
    # Tokens are read a step ahead of their rows: a read that waits for a read of the same step halves the pipeline.
    token = tl.load(tokens + slot, mask=slot < end, other=0)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(tl.load(offsets + expert), end, BLOCK_K):
        live = slot < end  # both sides are 0 elsewhere: what lies there may be no number
        row_left = (token if GATHER_LEFT else slot).to(tl.int64)
        row_right = (token if GATHER_RIGHT else slot).to(tl.int64)
        some_left = live[None, :]
        some_right = live[:, None]
        if not EVEN_M:
            some_left = some_left & (m < height)[:, None]
        if not EVEN_N:
            some_right = some_right & (n < width)[None, :]
        rows_left = tl.load(left + row_left[None, :] * stride_ls + m[:, None] * stride_lm, mask=some_left, other=0.0)
        rows_right = tl.load(
            right + row_right[:, None] * stride_rs + n[None, :] * stride_rn, mask=some_right, other=0.0
        )
        total = tl.dot(rows_left, rows_right, total, input_precision="ieee")
        slot += BLOCK_K
        token = tl.load(tokens + slot, mask=slot < end, other=0)
    to = out + expert.to(tl.int64) * stride_oe + m.to(tl.int64)[:, None] * stride_om + n[None, :] * stride_on
    tl.store(to, total.to(out.dtype.element_ty), mask=(m < height)[:, None] & (n < width)[None, :])
