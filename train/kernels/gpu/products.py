"""Rows of slots times their expert's weight, with what comes before and after it in the same kernel.

    up       H = x[token] W1^T and A = activation(H)       tokens are gathered as they are read
    product  Y = A W2^T;  dX = dH W1
    slope    dA' = dout[token] W2, from it dH, w A and the sums of <dA', A>

A program computes one tile of an expert's slots (tiles.py) by BLOCK_N columns. The rows of a tile that are another
expert's, or nobody's, are not written.
"""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .activation import activate, slopes
from .blocks import Blocks, with_blocks
from .launch import launch
from .tiles import Tiles, place

if TYPE_CHECKING:
    from ..schedule import Schedule

GROUP = 8  # tiles that go through the columns of a weight together


def up(x: Tensor, weight: Tensor, plan: Schedule, tiles: Tiles, activation: str) -> tuple[Tensor, Tensor]:
    """H [S, 2F or F] and A [S, F] of tokens x [T, D] and weight [E, 2F or F, D], in x's dtype.

    A is computed from H as it was rounded, so that the backward pass finds the same.
    """
    slots, depth, gated = len(plan.entries), x.shape[1], activation == "swiglu"
    width = weight.shape[1] // 2 if gated else weight.shape[1]
    h, a = x.new_empty(slots, weight.shape[1]), x.new_empty(slots, width)

    def start(b: Blocks) -> None:
        launch(
            up_kernel,
            (tiles.bound(b.m) * triton.cdiv(width, b.n),),
            b.warps,
            b.stages,
            x=x,
            weight=weight,
            h=h,
            a=a,
            tokens=plan.tokens,
            offsets=plan.offsets,
            tiles=tiles.of(b.m),
            bound=tiles.bound(b.m),
            width=width,
            depth=depth,
            stride_xt=x.stride(0),
            stride_xd=x.stride(1),
            stride_we=weight.stride(0),
            stride_wn=weight.stride(1),
            stride_wk=weight.stride(2),
            ACTIVATION=activation,
            PART=32,
            **_constants(b, width, depth),
        )

    with_blocks("up", x, _rows(plan), (width, depth), gated, start)
    return h, a


def product(rows: Tensor, weight: Tensor, plan: Schedule, tiles: Tiles) -> Tensor:
    """[S, N] of rows [S, K] and weight [E, N, K], of any strides."""
    slots, depth = rows.shape
    width = weight.shape[1]
    out = rows.new_empty(slots, width)

    def start(b: Blocks) -> None:
        launch(
            product_kernel,
            (tiles.bound(b.m) * triton.cdiv(width, b.n),),
            b.warps,
            b.stages,
            rows=rows,
            weight=weight,
            out=out,
            offsets=plan.offsets,
            tiles=tiles.of(b.m),
            bound=tiles.bound(b.m),
            width=width,
            depth=depth,
            stride_we=weight.stride(0),
            stride_wn=weight.stride(1),
            stride_wk=weight.stride(2),
            **_constants(b, width, depth),
        )

    with_blocks("product", rows, _rows(plan), (width, depth), False, start)
    return out


def slope(
    d_out: Tensor, weight: Tensor, h: Tensor, weights: Tensor, plan: Schedule, tiles: Tiles, activation: str
) -> tuple[Tensor, Tensor, Tensor]:
    """dH [S, 2F or F], w A [S, F] and float32 [blocks, S], whose sum over blocks is <dA', A>.

    d_out: [T, D], contiguous. weight: the down projection [E, D, F]. weights: float32 [S], contiguous.
    """
    slots, depth, gated = len(plan.entries), d_out.shape[1], activation == "swiglu"
    width = weight.shape[2]
    d_h, weighted = torch.empty_like(h), h.new_empty(slots, width)

    def start(b: Blocks) -> Tensor:
        sums = weights.new_empty(triton.cdiv(width, b.n), slots)
        launch(
            slope_kernel,
            (tiles.bound(b.m) * triton.cdiv(width, b.n),),
            b.warps,
            b.stages,
            d_out=d_out,
            weight=weight,
            h=h,
            weights=weights,
            d_h=d_h,
            weighted=weighted,
            sums=sums,
            tokens=plan.tokens,
            entries=plan.entries,
            offsets=plan.offsets,
            tiles=tiles.of(b.m),
            slots=slots,
            bound=tiles.bound(b.m),
            width=width,
            depth=depth,
            stride_we=weight.stride(0),
            stride_wn=weight.stride(2),
            stride_wk=weight.stride(1),
            ACTIVATION=activation,
            PART=16 if b.m > 64 else 32,
            **_constants(b, width, depth),
        )
        return sums

    sums = with_blocks("slope", d_out, _rows(plan), (width, depth), gated, start)
    return d_h, weighted, sums


def _rows(plan: Schedule) -> int:
    """Of an expert on average, as far as the host knows."""
    return max(len(plan.entries) // (len(plan.offsets) - 1), 1)


def _constants(b: Blocks, width: int, depth: int) -> dict[str, int | bool]:
    even = {"EVEN_N": width % b.n == 0, "EVEN_K": depth % b.k == 0}
    return {"BLOCK_M": b.m, "BLOCK_N": b.n, "BLOCK_K": b.k, "GROUP": GROUP, **even}


@triton.jit
def multiply(
    rows, weight, n, second, width, depth, stride_k, stride_wn, stride_wk, PAIR: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """float32 [BLOCK_M, BLOCK_N]: rows (pointers [BLOCK_M]) times the weight's rows n, and for a PAIR those `second` on."""
    k = tl.arange(0, BLOCK_K)
    left = rows[:, None] + k[None, :] * stride_k
    right = weight + n[None, :] * stride_wn + k[:, None] * stride_wk
    one = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    two = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        if EVEN_K:
            a = tl.load(left)
        else:
            a = tl.load(left, mask=(k < depth - start)[None, :], other=0.0)
        b = load_weight(right, n, k, width, depth - start, EVEN_N, EVEN_K)
        one = tl.dot(a, b, one, input_precision="ieee")
        if PAIR:
            b = load_weight(right + second * stride_wn, n, k, width, depth - start, EVEN_N, EVEN_K)
            two = tl.dot(a, b, two, input_precision="ieee")
        left += BLOCK_K * stride_k
        right += BLOCK_K * stride_wk
    return one, two


@triton.jit
def load_weight(at, n, k, width, left, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr):
    if EVEN_N and EVEN_K:
        tile = tl.load(at)
    elif EVEN_N:
        tile = tl.load(at, mask=(k < left)[:, None], other=0.0)
    elif EVEN_K:
        tile = tl.load(at, mask=(n < width)[None, :], other=0.0)
    else:
        tile = tl.load(at, mask=(k < left)[:, None] & (n < width)[None, :], other=0.0)
    return tile


@triton.jit
def within(live, n, width, EVEN_N: tl.constexpr):
    keep = live[:, None]
    if not EVEN_N:
        keep = keep & (n < width)[None, :]
    return keep


@triton.jit(do_not_specialize=["bound"])
def up_kernel(
    x, weight, h, a, tokens, offsets, tiles, bound, width, depth, stride_xt, stride_xd, stride_we, stride_wn, stride_wk,
    ACTIVATION: tl.constexpr, PART: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    GATED: tl.constexpr = ACTIVATION == "swiglu"
    tile, column = place(tl.program_id(0), bound, tl.cdiv(width, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    slot = tl.load(tiles + bound + tile) + tl.arange(0, BLOCK_M)
    live = slot < tl.load(offsets + expert + 1)
    token = tl.load(tokens + slot, mask=live, other=0).to(tl.int64)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    gate, value = multiply(
        x + token * stride_xt, weight + expert.to(tl.int64) * stride_we, n, width, width, depth, stride_xd,
        stride_wn, stride_wk, GATED, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K,
    )  # fmt: skip
    up_part(gate, value, h, a, slot, live, column * BLOCK_N, width, ACTIVATION, EVEN_N, BLOCK_M, BLOCK_N, PART)


@triton.jit
def up_part(
    gate, value, h, a, slot, live, first, width,
    ACTIVATION: tl.constexpr, EVEN_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Writes H and A of BLOCK_N columns from `first` on, PART at a time: all at once would not fit in registers."""
    if BLOCK_N > PART:
        gate_one, gate_two = halves(gate, BLOCK_M, BLOCK_N)
        value_one, value_two = halves(value, BLOCK_M, BLOCK_N)
        HALF: tl.constexpr = BLOCK_N // 2
        up_part(gate_one, value_one, h, a, slot, live, first, width, ACTIVATION, EVEN_N, BLOCK_M, HALF, PART)
        first += HALF
        up_part(gate_two, value_two, h, a, slot, live, first, width, ACTIVATION, EVEN_N, BLOCK_M, HALF, PART)
    else:
        n = first + tl.arange(0, BLOCK_N)
        gate = gate.to(h.dtype.element_ty)
        value = value.to(h.dtype.element_ty)
        keep = within(live, n, width, EVEN_N)
        at = slot.to(tl.int64)[:, None] * width + n[None, :]
        if ACTIVATION == "swiglu":
            to = slot.to(tl.int64)[:, None] * (2 * width) + n[None, :]
            tl.store(h + to, gate, mask=keep)
            tl.store(h + to + width, value, mask=keep)
        else:
            tl.store(h + at, gate, mask=keep)
        active = activate(gate.to(tl.float32), value.to(tl.float32), ACTIVATION)
        tl.store(a + at, active.to(a.dtype.element_ty), mask=keep)


@triton.jit(do_not_specialize=["bound"])
def product_kernel(
    rows, weight, out, offsets, tiles, bound, width, depth, stride_we, stride_wn, stride_wk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    tile, column = place(tl.program_id(0), bound, tl.cdiv(width, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    first = tl.load(tiles + bound + tile)
    slot = first + tl.arange(0, BLOCK_M)
    live = slot < tl.load(offsets + expert + 1)
    row = tl.where(live, slot, first).to(tl.int64)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    result, _ = multiply(
        rows + row * depth, weight + expert.to(tl.int64) * stride_we, n, 0, width, depth, 1,
        stride_wn, stride_wk, False, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K,
    )  # fmt: skip
    at = slot.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=within(live, n, width, EVEN_N))


@triton.jit(do_not_specialize=["bound", "slots"])
def slope_kernel(
    d_out, weight, h, weights, d_h, weighted, sums, tokens, entries, offsets, tiles, slots, bound, width, depth,
    stride_we, stride_wn, stride_wk,
    ACTIVATION: tl.constexpr, PART: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    tile, column = place(tl.program_id(0), bound, tl.cdiv(width, BLOCK_N), GROUP)
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    slot = tl.load(tiles + bound + tile) + tl.arange(0, BLOCK_M)
    live = slot < tl.load(offsets + expert + 1)
    token = tl.load(tokens + slot, mask=live, other=0).to(tl.int64)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    d_a, _ = multiply(
        d_out + token * depth, weight + expert.to(tl.int64) * stride_we, n, 0, width, depth, 1,
        stride_wn, stride_wk, False, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_N, EVEN_K,
    )  # fmt: skip

    w = tl.load(weights + tl.load(entries + slot, mask=live, other=0), mask=live, other=0.0)
    total = slope_part(
        d_a, h, w, d_h, weighted, slot, live, column * BLOCK_N, width, ACTIVATION, EVEN_N, BLOCK_M, BLOCK_N, PART
    )
    tl.store(sums + column.to(tl.int64) * slots + slot, total, mask=live)


@triton.jit
def halves(tile, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(tile, [BLOCK_M, 2, BLOCK_N // 2]), (0, 2, 1)))


@triton.jit
def slope_part(
    d_a, h, w, d_h, weighted, slot, live, first, width,
    ACTIVATION: tl.constexpr, EVEN_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Writes dH and w A of BLOCK_N columns from `first` on; the sum over them of <dA', A>. See up_part for PART."""
    if BLOCK_N > PART:
        one, two = halves(d_a, BLOCK_M, BLOCK_N)
        HALF: tl.constexpr = BLOCK_N // 2
        total = slope_part(one, h, w, d_h, weighted, slot, live, first, width, ACTIVATION, EVEN_N, BLOCK_M, HALF, PART)
        first += HALF
        total += slope_part(two, h, w, d_h, weighted, slot, live, first, width, ACTIVATION, EVEN_N, BLOCK_M, HALF, PART)
    else:
        n = first + tl.arange(0, BLOCK_N)
        keep = within(live, n, width, EVEN_N)
        at = slot.to(tl.int64)[:, None] * width + n[None, :]
        to = slot.to(tl.int64)[:, None] * (2 * width) + n[None, :]
        if ACTIVATION == "swiglu":
            gate = tl.load(h + to, mask=keep, other=0.0).to(tl.float32)
            value = tl.load(h + to + width, mask=keep, other=0.0).to(tl.float32)
        else:
            gate = tl.load(h + at, mask=keep, other=0.0).to(tl.float32)
            value = gate
        a = activate(gate, value, ACTIVATION)
        tl.store(weighted + at, (a * w[:, None]).to(weighted.dtype.element_ty), mask=keep)
        total = tl.sum(d_a * a, 1)
        to_gate, to_value = slopes(gate, value, ACTIVATION)
        d_a *= w[:, None]
        if ACTIVATION == "swiglu":
            tl.store(d_h + to, (d_a * to_gate).to(d_h.dtype.element_ty), mask=keep)
            tl.store(d_h + to + width, (d_a * to_value).to(d_h.dtype.element_ty), mask=keep)
        else:
            tl.store(d_h + at, (d_a * to_gate).to(d_h.dtype.element_ty), mask=keep)
    return total
