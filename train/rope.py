"""Rotary position embeddings, and the four ways to stretch them over a longer context.

Every method changes the table of a Llama model and nothing else (rotate-half layout, as in Hugging Face's code). D is
the head size, s = new context / original context:

    naive       nothing
    linear      inverse frequencies / s                          Chen et al. 2023, arXiv:2306.15595
    codellama   theta 10 000 -> 1 000 000                        Roziere et al. 2023, arXiv:2308.12950
    yarn        NTK by parts; cos and sin times 0.1 ln s + 1    Peng et al. 2023, arXiv:2309.00071
    llama3      wave lengths over L0/low are divided by s        Llama 3.1; read from checkpoints, no method of ours

The operations stand in the order of transformers' `modeling_rope_utils`, so that logits agree to the bit: the
algebraically equal forms differ by 1e-5 at a thousand tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from splice.errors import SpliceError

Method = Literal["naive", "linear", "codellama", "yarn"]
CODELLAMA_THETA = 1_000_000.0


@dataclass(frozen=True)
class Rope:
    """What Hugging Face calls `rope_parameters`.

    original: L0, the context the frequencies were trained for, in tokens. attention_factor: None for YaRN's own
    0.1 ln(factor) + 1. The beta pair is YaRN's, the freq_factor pair llama3's.
    """

    type: Literal["default", "linear", "yarn", "llama3"] = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original: int = 2048
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0


def extend(rope: Rope, method: Method, length: int) -> Rope:
    """The table for a context of `length` tokens, made from one that was trained for `rope.original`.

    Raises SpliceError where the table is already stretched: two methods cannot be piled up.
    """
    if method == "naive":
        return rope
    if rope.type != "default":
        raise SpliceError(
            f"context.method {method}: the model's positions are already stretched ({rope.type}, factor {rope.factor:g}); "
            "go on with them as they are (context.method naive), or start from the model before that"
        )
    if method == "codellama":
        return replace(rope, theta=CODELLAMA_THETA)
    return replace(rope, type=method, factor=max(1.0, length / rope.original))


def frequencies(rope: Rope, head_size: int) -> tuple[Tensor, float]:
    """Inverse frequencies, float32 [D/2], and the factor that cos and sin are multiplied by."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size)
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "yarn":
        return _yarn(rope, head_size)
    if rope.type == "llama3":
        return _llama3(rope, plain), 1.0
    return plain, 1.0


def cos_sin(rope: Rope, head_size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles at `positions` (int [T]), float32 [T, D] each: both halves of D hold the same angles."""
    inverse, factor = frequencies(rope, head_size)
    half = positions.float()[:, None] * inverse.to(positions.device)[None, :]
    angles = torch.cat((half, half), dim=-1)
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE of x [..., T, D] with tables [T, D]: (a, b) -> (a cos - b sin, b cos + a sin) over the two halves of D."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def _yarn(rope: Rope, head_size: int) -> tuple[Tensor, float]:
    def dimension(rotations: float) -> float:
        """The dimension that turns `rotations` times over the original context."""
        return head_size * math.log(rope.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension(rope.beta_fast)), 0)
    high: float = min(math.ceil(dimension(rope.beta_slow)), head_size - 1)
    if low == high:
        high += 0.001  # or the ramp would divide by zero
    ramp = torch.clamp((torch.arange(head_size // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    powers = rope.theta ** (torch.arange(0, head_size, 2).float() / head_size)
    inverse = 1.0 / (rope.factor * powers) * (1 - keep) + 1.0 / powers * keep
    factor = rope.attention_factor
    if factor is None:
        factor = 1.0 if rope.factor <= 1 else 0.1 * math.log(rope.factor) + 1.0
    return inverse, factor


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    longest, shortest = rope.original / rope.low_freq_factor, rope.original / rope.high_freq_factor
    waves = 2 * math.pi / plain
    slowed = torch.where(waves > longest, plain / rope.factor, plain)
    share = (rope.original / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = (1 - share) * slowed / rope.factor + share * slowed
    between = ~(waves < shortest) * ~(waves > longest)
    return torch.where(between, smooth, slowed)
