"""Softmax, the best k and the sums of a router: one pass over the logits each way; sums over tokens in a fixed order."""

# ruff: noqa: ANN001, ANN201 - arguments of kernels have no types that Python knows

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch

TILE, BACKWARD_TILE = 2048, 1024  # logits a program holds in registers


def route(logits: Tensor, k: int, renormalise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See route.route."""
    tokens, count = logits.shape
    pad, height = _tile(count, TILE)
    blocks = triton.cdiv(tokens, height)
    experts = logits.new_empty((tokens, k), dtype=torch.int32)
    weights = logits.new_empty((tokens, k))
    mass, square, entropy = (logits.new_empty((blocks, *shape)) for shape in ((count,), (), ()))
    launch(
        route_kernel,
        (blocks,),
        logits=logits,
        experts=experts,
        weights=weights,
        mass=mass,
        square=square,
        entropy=entropy,
        tokens=tokens,
        count=count,
        stride_t=logits.stride(0),
        stride_e=logits.stride(1),
        K=k,
        RENORMALISE=renormalise,
        HEIGHT=height,
        PAD=pad,
        K_PAD=triton.next_power_of_2(k),
    )
    return experts, weights, mass.sum(0), square.sum(0), entropy.sum(0)


def backward(
    d_weights: Tensor, d_mass: Tensor, d_square: Tensor, logits: Tensor, experts: Tensor, renormalise: bool
) -> Tensor:
    """The gradient of logits [T, E]."""
    tokens, count = logits.shape
    pad, height = _tile(count, BACKWARD_TILE)
    d_logits = torch.empty_like(logits)
    launch(
        backward_kernel,
        (triton.cdiv(tokens, height),),
        logits=logits,
        experts=experts,
        d_weights=d_weights,
        d_mass=d_mass,
        d_square=d_square,
        d_logits=d_logits,
        tokens=tokens,
        count=count,
        stride_t=logits.stride(0),
        stride_e=logits.stride(1),
        stride_dt=d_logits.stride(0),
        stride_de=d_logits.stride(1),
        K=experts.shape[1],
        RENORMALISE=renormalise,
        HEIGHT=height,
        PAD=pad,
    )
    return d_logits


def _tile(count: int, size: int) -> tuple[int, int]:
    """(columns, tokens) of a program's tile."""
    pad = max(triton.next_power_of_2(count), 2)
    return pad, max(1, min(64, size // pad))


@triton.jit
def softmax(logits, token, column, tokens, count, stride_t, stride_e):
    """Shares and their logarithms [HEIGHT, PAD], 0 outside, and logsumexp [HEIGHT]."""
    inside = (token < tokens)[:, None] & (column < count)[None, :]
    at = logits + token.to(tl.int64)[:, None] * stride_t + column[None, :] * stride_e
    # Past the last token all logits are 0, past the last expert -inf: no NaN arises where nothing is stored.
    logit = tl.load(at, mask=inside, other=0.0)
    logit = tl.where((column < count)[None, :], logit, float("-inf"))
    most = tl.max(logit, 1)
    power = tl.exp(logit - most[:, None])
    total = tl.sum(power, 1)
    lse = most + tl.log(total)
    return power / total[:, None], logit - lse[:, None], lse


@triton.jit(do_not_specialize=["tokens"])
def route_kernel(
    logits, experts, weights, mass, square, entropy, tokens, count, stride_t, stride_e,
    K: tl.constexpr, RENORMALISE: tl.constexpr, HEIGHT: tl.constexpr, PAD: tl.constexpr, K_PAD: tl.constexpr,
):  # fmt: skip
    """mass [blocks, count], square and entropy [blocks]: the sums over a block's tokens."""
    block = tl.program_id(0)
    token = block * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.arange(0, PAD)
    live = token < tokens
    share, log_share, lse = softmax(logits, token, column, tokens, count, stride_t, stride_e)

    tl.store(
        mass + block.to(tl.int64) * count + column, tl.sum(tl.where(live[:, None], share, 0.0), 0), mask=column < count
    )
    tl.store(square + block, tl.sum(tl.where(live, lse * lse, 0.0), 0))
    surprise = tl.where(live[:, None] & (share > 0), -log_share, 0.0)
    tl.store(entropy + block, tl.sum(tl.sum(share * surprise, 1), 0))

    nth = tl.arange(0, K_PAD)
    best = tl.zeros([HEIGHT, K_PAD], tl.int32)
    weight = tl.zeros([HEIGHT, K_PAD], tl.float32)
    # A NaN goes before any share, as in torch's sort, so that a number that is no expert's is never chosen.
    left = tl.where(share == share, share, 2.0)
    left = tl.where((column < count)[None, :], left, -2.0)
    for i in range(K):
        most = tl.max(left, 1)
        at = tl.min(tl.where(left == most[:, None], column[None, :], PAD), 1)  # of equals the first
        best = tl.where((nth == i)[None, :], at[:, None], best)
        weight = tl.where((nth == i)[None, :], tl.where(most > 1.5, float("nan"), most)[:, None], weight)
        left = tl.where(column[None, :] == at[:, None], -1.0, left)
    if RENORMALISE:
        weight = weight / tl.sum(weight, 1)[:, None]
    to = token.to(tl.int64)[:, None] * K + nth[None, :]
    tl.store(experts + to, best, mask=live[:, None] & (nth < K)[None, :])
    tl.store(weights + to, weight, mask=live[:, None] & (nth < K)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def backward_kernel(
    logits, experts, d_weights, d_mass, d_square, d_logits, tokens, count, stride_t, stride_e, stride_dt, stride_de,
    K: tl.constexpr, RENORMALISE: tl.constexpr, HEIGHT: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    column = tl.arange(0, PAD)
    live = token < tokens
    share, _, lse = softmax(logits, token, column, tokens, count, stride_t, stride_e)
    chosen = tl.zeros([HEIGHT, PAD], tl.float32)
    d_chosen = tl.zeros([HEIGHT, PAD], tl.float32)
    at = token.to(tl.int64) * K
    for i in range(K):
        hit = column[None, :] == tl.load(experts + at + i, mask=live, other=0)[:, None]
        chosen = tl.where(hit, 1.0, chosen)
        d_chosen = tl.where(hit, tl.load(d_weights + at + i, mask=live, other=0.0)[:, None], d_chosen)
    if RENORMALISE:
        total = tl.sum(chosen * share, 1)[:, None]
        mean = tl.sum(d_chosen * share, 1)[:, None] / total
        d_chosen = chosen * (d_chosen - mean) / total
    d_share = d_chosen + tl.load(d_mass + column, mask=column < count, other=0.0)[None, :]
    through = share * (d_share - tl.sum(share * d_share, 1)[:, None])
    d_logit = through + 2 * tl.load(d_square) * lse[:, None] * share
    to = token.to(tl.int64)[:, None] * stride_dt + column[None, :] * stride_de
    tl.store(d_logits + to, d_logit, mask=live[:, None] & (column < count)[None, :])
